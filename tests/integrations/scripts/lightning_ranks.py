"""Lightning in a trial of two processes: the script is that of one."""

from lightning_classifier import train

__all__ = ["train"]
