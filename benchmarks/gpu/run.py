"""What only an accelerator can show, in one command of under ten minutes; each part is independent of the others.

    python benchmarks/gpu/run.py --json --results benchmarks/results/gpu.json

Without an accelerator it runs small on the CPU, and the result says under `fell_back` why and what was not seen.

Each file beside this one that has a function `run(options)` is a part; it returns a mapping with a `summary` (numbers
by name) and whatever else is worth keeping. A part that fails is named under `failed` with its error, the others go
on, and the exit status is 1. Each part has a process of its own and at most
`--part-seconds`, all together have `--seconds`.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "examples"))

from benchmarks._report import add_arguments, environment, finish, progress

__all__ = ["PARTS", "main"]

NOT_SEEN = (
    "copies next to computation on streams, pinned memory, the allocator's reserved bytes, CUDA's random "
    "states and nondeterministic kernels, graphs, the largest batches in a cap, and every figure of speed"
)
PARTS = ("exact", "study", "saving", "predicting", "serving", "recomputing")
GOALS = {
    "gpu_resume_mismatches": (0, 0), "gpu_rerun_mismatches": (0, 0), "gpu_save_mismatches_default": (0, 0),
    "gpu_save_mismatches_stream": (0, 0), "gpu_save_mismatches_graph": (0, 0), "gpu_study_results": (8, 8),
    "gpu_study_killed": (1, 1), "gpu_study_trials_that_differ": (0, 0), "gpu_blocking_over_torch_save": (0, 0.1),
    "gpu_step_beside_save_over_alone": (0, 1.2), "gpu_restore_over_torch_load": (0, 1.5),
    "gpu_gradient_mismatches": (0, 0), "gpu_violations": (0, 0), "gpu_peak_error_worst": (0, 0.05),
    "gpu_copies_hidden_least": (0.8, 1), "gpu_plan_over_hand_worst": (0, 1.01), "gpu_step_error_worst": (0, 0.2),
    "gpu_traced_peak_error_worst": (0, 0.1), "gpu_serving_difference_worst": (0, 1e-3),
    "gpu_overhead_percent_128": (-100, 10),
}  # fmt: skip
"""What each number is to lie between; on a CPU only what is counted is judged, for its sizes say nothing of speed."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the parts and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which to run, of {', '.join(PARTS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="else cuda where torch sees it")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all parts")
    parser.add_argument("--part-seconds", type=float, default=180.0, help="for one part")
    parser.add_argument("--quick", action="store_true", help="small sizes; no figures")
    add_arguments(parser)
    options = parser.parse_args(argv)
    chosen = options.parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--parts: got {unknown[0]!r}; allowed: {', '.join(PARTS)}")

    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: got 'cuda', which torch does not see here; allowed: cpu, to try the script")
    fell_back = None
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
        if options.device == "cpu":
            options.quick = True
            fell_back = f"torch {torch.__version__} sees no CUDA device: small sizes on the CPU; not seen: {NOT_SEEN}"
            progress(fell_back)
    begun = time.monotonic()
    summary: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    failed: dict[str, str] = {}
    result: dict[str, Any] = {}
    for part in chosen:
        left = min(options.part_seconds, options.seconds - (time.monotonic() - begun))
        progress(f"{part}:")
        since = time.monotonic()
        try:
            found = _run_part(part, options, left) if len(chosen) > 1 else _find_part(part)(options)
        except Exception as error:  # noqa: BLE001 -- time on such a machine is dear: the other parts go on
            failed[part] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        else:
            parts[part] = {**found, "part_seconds": time.monotonic() - since}
            summary |= found["summary"]
        result = _judge(options, summary, parts, failed, fell_back)
        if options.results is not None:
            # What was found stays, whatever ends this.
            finish(result, argparse.Namespace(results=options.results, json=False))
    for name, value in summary.items():
        met = result["verdicts"].get(name)
        verdict = "" if met is None else f"  {'met' if met else 'MISSED'}: {GOALS[name]}"
        print(f"{name}: {value}{verdict}")
    for part, why in failed.items():
        print(f"failed: {part}: {why}")
    finish(result, options)
    return result


def _find_part(part: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    found: Callable[[argparse.Namespace], dict[str, Any]] = importlib.import_module(f"benchmarks.gpu.{part}").run
    return found


def _run_part(part: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a part in a process of its own: one that hangs, or leaves the device without memory, ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "part.json"
        command = [sys.executable, __file__, "--parts", part, "--device", options.device, "--results", str(results)]
        subprocess.run([*command, *(["--quick"] if options.quick else [])], timeout=max(1.0, seconds), check=True)
        found: dict[str, Any] = json.loads(results.read_text())["parts"][part]
        return found


def _judge(
    options: argparse.Namespace,
    summary: dict[str, Any],
    parts: dict[str, Any],
    failed: dict[str, str],
    fell_back: str | None,
) -> dict[str, Any]:
    """Return the result with a verdict for each number that has a goal."""
    import torch

    judged = {name: value for name, value in summary.items() if name in GOALS and value is not None}
    if options.device == "cpu":
        judged = {name: value for name, value in judged.items() if isinstance(value, int)}
    verdicts = {name: GOALS[name][0] <= value <= GOALS[name][1] for name, value in judged.items()}
    facts = {**environment(), "device": options.device}
    if options.device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "torch": torch.__version__}
    return {
        "benchmark": "gpu", "summary": summary, "verdicts": verdicts, "fell_back": fell_back, "failed": failed,
        "parts": parts,
        "table": {
            "header": ["on the accelerator", "measured", "goal", "met"],
            "rows": [[name, f"{summary[name]:.4g}", "{} to {}".format(*GOALS[name]), "yes" if met else "no"]
                     for name, met in verdicts.items()],
        },
        "environment": facts,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(1 if main()["failed"] else 0)
