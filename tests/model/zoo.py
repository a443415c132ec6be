"""The models of the examples, small; they lie beside the package, so their folder goes on the path."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import alexnet, cosmoflow, densenet, gpt, inception, llama, mlp, resnet, unet, vgg, vit
from trainwright.model.trace.storages import StorageTracker


class HeldStorages(StorageTracker):
    """Counts storages alone: of models so small, a kernel's workspace is most of a peak."""

    held_peak_bytes = 0

    def restart_peak(self):
        super().restart_peak()
        self.held_peak_bytes = self.live_bytes

    def _change_bytes(self, owner, size):
        super()._change_bytes(owner, size)
        self.held_peak_bytes = max(self.held_peak_bytes, self.live_bytes)


SMALL = {
    "alexnet": (lambda: alexnet.alexnet(10, hidden=32), lambda: alexnet.sample(2, 64)),
    "cosmoflow": (lambda: cosmoflow.cosmoflow(8, width=4), lambda: cosmoflow.sample(2, 8)),
    "densenet": (densenet.densenet_small, lambda: densenet.sample(2, 32)),
    "gpt": (lambda: gpt.gpt("tiny", vocabulary=97, length=16), lambda: gpt.sample(2, 16, 97)),
    "inception": (lambda: inception.inception(10, width=2), lambda: inception.sample(2, 32)),
    "llama": (lambda: llama.llama("tiny", vocabulary=97), lambda: llama.sample(2, 16, 97)),
    "mlp": (lambda: mlp.mlp(32, 48, 3), lambda: mlp.sample(4, 32)),
    "resnet18": (lambda: resnet.resnet18(10, width=8), lambda: resnet.sample(2, 32)),
    "resnet50": (lambda: resnet.resnet50(10, width=8), lambda: resnet.sample(2, 32)),
    "unet": (lambda: unet.unet(width=4, levels=2), lambda: unet.sample(2, 16)),
    "vgg16": (lambda: vgg.vgg16(10, width=4, hidden=32), lambda: vgg.sample(2, 32)),
    "vit": (lambda: vit.vit_tiny(16), lambda: vit.sample(2, 16)),
}


FAST = {"gpt", "mlp", "resnet18", "unet"}


def small(name):
    """Return a model of the zoo, small, and a sample for it."""
    torch.manual_seed(0)
    model, sample = SMALL[name]
    return model(), sample()
