"""What a study leaves to be looked at: the self-contained HTML report, its summary, and its trials as tables."""

from trainwright.report.exports import export_csv, export_parquet, write_summary
from trainwright.report.html import write_report

__all__ = ["export_csv", "export_parquet", "write_report", "write_summary"]
