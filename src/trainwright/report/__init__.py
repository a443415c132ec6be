"""What a study leaves to be looked at: the self-contained HTML report, its summary, and its trials as tables."""

from trainwright.report.html import write_report
from trainwright.report.summary import write_summary
from trainwright.report.tabular import export_csv, export_parquet

__all__ = ["export_csv", "export_parquet", "write_report", "write_summary"]
