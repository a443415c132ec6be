"""Wraps a callable of arrays as a torch module, so that the code for networks also runs other members."""

import numpy as np
import torch

from trainwright.ensemble.library.callables import Predictor

__all__ = ["CallableModule"]


class CallableModule(torch.nn.Module):
    """Computes on the CPU, wherever its input is; has no parameters."""

    def __init__(self, predict: Predictor, input_dtype: str | None) -> None:
        super().__init__()
        self._predict = predict
        self._dtype = None if input_dtype is None else np.dtype(input_dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predictions for a batch of rows, on the device of the batch."""
        rows = x.detach().cpu().numpy()
        # Floats in the precision of the sample, so that served rows get the answers that arrays get.
        if rows.dtype.kind == "f" and self._dtype is not None and self._dtype.kind == "f":
            rows = rows.astype(self._dtype, copy=False)
        found = self._predict(rows)
        wide = np.array(found, dtype=np.float32 if found.dtype == np.float32 else np.float64)
        return torch.from_numpy(wide).to(x.device)
