"""What a study leaves to be looked at: the self-contained HTML report, and exports to other tools."""

from trainwright.report.finished_trials import FinishedTrials, Growing, follow
from trainwright.report.html import render, write_report
from trainwright.report.mlflow import MLflowRuns, export_mlflow
from trainwright.report.summary import write_summary
from trainwright.report.tabular import export_csv, export_importance, export_parquet
from trainwright.report.tensorboard import TensorBoardLog, export_tensorboard

__all__ = [
    "FinishedTrials",
    "Growing",
    "MLflowRuns",
    "TensorBoardLog",
    "export_csv",
    "export_importance",
    "export_mlflow",
    "export_parquet",
    "export_tensorboard",
    "follow",
    "render",
    "write_report",
    "write_summary",
]
