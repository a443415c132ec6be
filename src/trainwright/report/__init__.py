"""What a study leaves to be looked at: the self-contained HTML report, and exports to other tools."""

from trainwright.report.html import render, write_report
from trainwright.report.optuna_journal import OptunaJournal, export_optuna_journal
from trainwright.report.summary import write_summary
from trainwright.report.tabular import export_csv, export_parquet

__all__ = [
    "OptunaJournal",
    "export_csv",
    "export_optuna_journal",
    "export_parquet",
    "render",
    "write_report",
    "write_summary",
]
