"""`trainwright checkpoint ...`: look at checkpoints, check and compare them, and choose how and when to save."""

from trainwright.cli._checkpoint_costs import bench, interval
from trainwright.cli._checkpoint_files import convert, diff, inspect, verify
from trainwright.cli._checkpoint_proof import verify_resume
from trainwright.cli.command import make_group

__all__ = ["app"]

app = make_group(
    "checkpoint",
    "Look at checkpoints, check and compare them; when to save, and what it costs.",
    {
        inspect: "Show what is in a checkpoint, without its tensors.",
        verify: "Compute every checksum again.",
        verify_resume: "Interrupt a training, resume it, compare every step.",
        diff: "Compare two checkpoints, tensor by tensor.",
        convert: "Write a checkpoint in another format.",
        bench: "Measure what saving and restoring a model takes.",
        interval: "How often to save, by every estimator.",
    },
)
