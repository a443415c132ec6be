"""A Trainer in a trial of two processes: the script is that of one."""

from transformers_classification import OBJECTIVE, train

__all__ = ["OBJECTIVE", "train"]
