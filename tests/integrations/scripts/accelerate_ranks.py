"""accelerate in a trial of two processes: the script is that of one."""

from accelerate_loop import train

__all__ = ["train"]
