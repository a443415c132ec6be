"""Bytes that the oracle predicts beside published ones: activations of large models, and Megatron's own test runs.

Of the large models four iteration times are published too, which presets as they are predict.

The published activations (arXiv 2205.05198, as `calculon` lists them) count the transformer blocks alone. Megatron's
golden values are those of the rank that logs, which is of the last pipeline stage: it keeps one micro-batch, or
(v - 1) p + 1 chunks of an interleaved pipeline. What the option columns do not say is read off the case: attention
keeps its scores on the `local` implementation, in the older container (`dracooci`), and where a case neither resumes
nor allows nondeterminism; eight devices where no more are needed. Libraries' workspace is one constant, the median of
allocated bytes beyond the state over every fourth case; the other cases are scored.
"""

import csv
import functools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from trainwright.cluster import Cluster, Device, NetworkLevel
from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Forecast, Oracle

__all__ = ["Golden", "calculon", "calculon_seconds", "megatron"]

RECOMPUTE = {"none": "none", "attn_only": "selective", "full": "full"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Golden:
    """Relative errors of peak bytes by group of rows, and what was left out."""

    errors: Mapping[str, Sequence[float]]
    left_out: Mapping[str, int]
    workspace_bytes: float
    calibration_rows: int


def calculon(folder: Path) -> list[dict[str, Any]]:
    """Return every published activation memory with the oracle's: GiB, or percent of no recomputation."""
    found = []
    with (folder / "figures.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"].startswith("activation_memory")]
    for row in rows:
        setting = json.loads((folder / row["file"]).read_text())
        shape = json.loads((folder / "models" / f"{row['model']}.json").read_text())
        plan = _published(setting, shape, RECOMPUTE[setting["activation_recompute"]])
        predicted = plan.activation_bytes / 2**30
        if row["unit"] == "percent":
            plain = _published(setting | {"tensor_par_comm_type": "ar"}, shape, "none")
            predicted = 100 * plan.activation_bytes / plain.activation_bytes
        value = float(row["value"])
        found.append(
            {
                "model": row["model"],
                "recompute": row["recompute"],
                "unit": row["unit"],
                "published": value,
                "predicted": predicted,
                "error": abs(predicted / value - 1),
            }
        )
    return found


def calculon_seconds(folder: Path) -> list[dict[str, Any]]:
    """Return every published iteration time (A100) with the oracle's by its preset of the machine."""
    found = []
    with (folder / "figures.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "iteration_time"]
    for row in rows:
        setting = json.loads((folder / row["file"]).read_text())
        shape = json.loads((folder / "models" / f"{row['model']}.json").read_text())
        profile = _described(shape, vocabulary=51_200)
        cluster = Cluster.preset("dgx-a100", nodes=math.ceil(setting["num_procs"] / 8))
        plan = _planned(cluster, profile, setting, RECOMPUTE[setting["activation_recompute"]])
        value = float(row["value"])
        found.append(
            {
                "model": row["model"],
                "published": value,
                "predicted": plan.seconds_per_iteration,
                "error": abs(plan.seconds_per_iteration / value - 1),
            }
        )
    return found


def megatron(path: Path) -> Golden:
    """Return the relative error of every golden value whose case can be described."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["mem-max-allocated-bytes_max"]]
    cases = sorted({row["case"] for row in rows})
    calibrating = set(cases[::4])
    predictions: list[tuple[dict[str, str], float, float]] = []
    left_out: dict[str, int] = defaultdict(int)
    for row in rows:
        try:
            peak, state = _golden_bytes(row)
        except _NotDescribedError as reason:
            left_out[str(reason)] += 1
        except InputError as refusal:
            left_out[str(refusal).split(":")[0]] += 1
        else:
            predictions.append((row, peak, state))
    beyond = [
        float(row["mem-allocated-bytes_max"]) - state
        for row, _, state in predictions
        if row["case"] in calibrating and row["mem-allocated-bytes_max"]
    ]
    workspace = median(beyond) if beyond else 0.0
    errors: dict[str, list[float]] = defaultdict(list)
    for row, peak, _ in predictions:
        if row["case"] not in calibrating:
            error = (peak + workspace) / float(row["mem-max-allocated-bytes_max"]) - 1
            for group in ("all", row["case"].split("/")[0], f"platform {_platform(row['platform'])}"):
                errors[group].append(error)
    return Golden(
        errors=errors,
        left_out=left_out,
        workspace_bytes=workspace,
        calibration_rows=len(predictions) - len(errors["all"]),
    )


class _NotDescribedError(Exception):
    """A row whose options do not say what ran."""


def _published(setting: Mapping[str, Any], shape: Mapping[str, int], recompute: str) -> Forecast:
    profile = _described(shape, vocabulary=1)
    blocks = tuple(block for block in profile.blocks if block.transformer is not None)
    return _planned(_cluster(setting["num_procs"]), replace(profile, blocks=blocks), setting, recompute)


def _described(shape: Mapping[str, int], *, vocabulary: int) -> Profile:
    return describe_transformer(
        hidden=shape["hidden"],
        layers=shape["num_blocks"],
        heads=shape["attn_heads"],
        sequence=shape["seq_size"],
        vocabulary=vocabulary,
        precision="amp-fp16",
    )


def _planned(cluster: Cluster, profile: Profile, setting: Mapping[str, Any], recompute: str) -> Forecast:
    return Oracle(cluster).estimate(
        profile,
        batch=setting["batch_size"],
        degrees=Degrees(tensor=setting["tensor_par"], pipeline=setting["pipeline_par"], data=setting["data_par"]),
        micro=setting["microbatch_size"],
        sequence=setting["tensor_par_comm_type"] == "rs_ag",
        recompute=recompute,
        chunks=setting["pipeline_interleaving"],
        precision="amp-fp16",
    )


def _golden_bytes(row: Mapping[str, str]) -> tuple[float, float]:
    """Return peak and state bytes of the last stage, without the libraries' workspace."""

    def number(option: str, otherwise: int = 0) -> int:
        return int(row[option]) if row[option] else otherwise

    case = row["case"]
    family = case.split("/")[0]
    if family not in {"gpt", "moe", "bert", "mixtral"} or "t5" in case:
        raise _NotDescribedError(f"{family}: not one stack of blocks")
    if not (number("hidden-size") and number("num-layers") and number("seq-length")):
        raise _NotDescribedError(f"{family}: no hidden size, layers or sequence in the options")
    tensor, stages = number("tensor-model-parallel-size", 1), number("pipeline-model-parallel-size", 1)
    context, experts = number("context-parallel-size", 1), number("num-experts")
    expert = number("expert-model-parallel-size", 1) if experts else 1
    micro, batch = number("micro-batch-size", 1), number("global-batch-size", 1)
    data = max(1, 8 // (tensor * stages * context), expert)
    slots = max(1, batch // (micro * data))
    layers = number("num-layers") // stages
    chunks = number("num-virtual-stages-per-pipeline-rank", 1)
    if row["num-layers-per-virtual-pipeline-stage"]:
        chunks = max(1, layers // number("num-layers-per-virtual-pipeline-stage"))
    gated = row["swiglu"] == "true"
    vocabulary = -(-number("vocab-size", 50257) // (128 * tensor)) * 128 * tensor  # padded, as Megatron does
    stage = functools.partial(
        _stage,
        first=stages == 1,
        hidden=number("hidden-size"),
        heads=number("num-attention-heads"),
        sequence=number("seq-length") // context,  # Megatron divides embedding and head too, the oracle's axis blocks
        vocabulary=vocabulary,
        kv_heads=number("num-query-groups") if row["group-query-attention"] == "true" else 0,
        feedforward=number("ffn-hidden-size"),
        gated=gated,
        fused_attention=_keeps_no_scores(row, context),
        tied=stages == 1 and "untie" not in case,  # the last of several stages has its own copy
        positions="rope" not in case and not gated,
        biases="disable_bias" not in case,
        experts=experts,
        top_k=number("moe-router-topk", 1),
    )
    choices: dict[str, Any] = {
        "batch": micro * data * max(2, slots),  # Megatron's gradients stand in a buffer from the start
        "degrees": Degrees(tensor=tensor, expert=expert, data=data // expert),
        "micro": micro,
        "zero": 3 if row["use-megatron-fsdp"] == "true" else int(row["use-distributed-optimizer"] == "true"),
        "sequence": row["sequence-parallel"] == "true",
        "recompute": "none" if row["recompute-modules"] else row["recompute-granularity"] or "none",
        "precision": "amp-bf16",
    }
    oracle = Oracle(_cluster(max(8, tensor * context * data)))
    plan = oracle.estimate(stage(layers=layers), **choices)
    peak = float(plan.peak_bytes)
    if stages > 1 and chunks > 1:
        each = oracle.estimate(stage(layers=layers + 1), **choices).activation_bytes - plan.activation_bytes
        flying = min(slots * chunks, (chunks - 1) * stages + 1)
        peak += (flying / chunks - 1) * layers * each
    return peak, plan.state_bytes


@functools.cache
def _stage(*, first: bool, layers: int, **shape: Any) -> Profile:
    """Return the last stage of a pipeline: its blocks and the head, with the embedding if it is the only stage."""
    profile = describe_transformer(layers=layers, precision="amp-bf16", **shape)
    return profile if first else replace(profile, blocks=profile.blocks[1:])


def _keeps_no_scores(row: Mapping[str, str], context: int) -> bool:
    case = row["case"]
    if row["transformer-impl"] == "local":
        return False
    newer = any(word in case for word in ("resume", "nondeterministic", "release", "weekly", "memory_speed"))
    return context > 1 or (newer and "dracooci" not in row["platform"])


def _platform(name: str) -> str:
    return next((kind for kind in ("a100", "h100", "gb200") if kind in name), "unnamed")


@functools.cache
def _cluster(devices: int) -> Cluster:
    """Return a cluster that is large enough; bytes do not depend on its speeds."""
    nodes = math.ceil(devices / 8)
    tiers = (
        NetworkLevel(name="node", devices=8, alpha=1e-5, bandwidth=300e9),
        NetworkLevel(name="network", devices=8 * max(2, nodes), alpha=1e-5, bandwidth=25e9),
    )
    device = Device(kind="A100", flops={"fp16": 312e12, "fp32": 19.5e12}, memory_bandwidth=2e12)
    return Cluster(nodes, 8, device=device, tiers=tiers[: 2 if nodes > 1 else 1])
