"""The benchmark of the oracle runs over any folder in the shared format and names what it skips."""

import csv
import json

import numpy as np
import pytest
from benchmarks.plan import abci, accuracy
from benchmarks.plan import run as plan
from benchmarks.plan.fit_iteration import iteration_terms
from benchmarks.plan.fit_transformer import (
    COLUMNS,
    NETWORK_CONSTANTS,
    SERVER_CONSTANTS,
    TransformerSteps,
    transformer_seconds,
)

LAYERS = """index,layer,x,w,y,x_elements,w_elements,y_elements,\
seconds_per_sample_given,flops_rule,split_filter,split_spatial
0,CONV1,3x32x32,3x64x3x3,64x32x32,3072,1728,65536,0.0005,1000000,1,1
1,RELU,64x32x32,64x64x0x0,64x32x32,65536,0,65536,0,100000,0,0
2,CONV2,64x32x32,64x64x3x3,64x16x16,65536,36864,16384,0,4000000,1,1
3,FC3,64x16x16,64x1000x16x16,1000x1x1,16384,16384000,1000,0,3000000,0,0
"""
EPOCHS = (
    "model", "strategy", "gpus", "p1", "p2", "batch_per_gpu", "global_batch", "epoch", "iterations", "seconds",
    "with_validation", "source_path",
)  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """Write logs of a small network that run exactly as a known machine says, on 1 to 128 devices."""
    folder = tmp_path / "abci"
    folder.mkdir()
    rows = LAYERS.replace("split_filter,split_spatial", "split_filter,split_channel,split_spatial").splitlines()
    rows[1:] = [",".join([*row.split(",")[:-1], "", row.split(",")[-1]]) for row in rows[1:]]
    (folder / "layers_resnet50.csv").write_text("\n".join(rows) + "\n")
    network = abci.networks(folder)["resnet50"]
    values = {constant.name: constant.start for constant in accuracy.CONSTANTS}
    lines = []
    for strategy, counts in (("data", (1, 2, 4, 8, 16, 32, 64, 128)), ("data+spatial", (8, 16, 64, 128))):
        for devices in counts:
            groups = devices if strategy == "data" else devices // 4
            run = abci.Run(
                model="resnet50",
                strategy=strategy,
                devices=devices,
                groups=groups,
                batch=64 * groups,
                iterations=100,
                seconds=1.0,
                epochs=(1.0,),
                path="",
            )
            iteration = accuracy.describe(network, run, network.seconds_per_sample)
            step = float(iteration_terms(accuracy.machine(values, 32), [iteration]).total[0])
            common = ("resnet50", strategy, devices, groups, devices // groups, 64 * groups / devices, 64 * groups)
            for epoch, factor in ((1, 3.0), (2, 1.0), (3, 1.0)):
                lines.append((*common, epoch, 100, 100 * step * factor, 0, f"{strategy}/{devices}"))
    with (folder / "epochs.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(EPOCHS)
        writer.writerows(lines)
    return tmp_path


def summary(capsys, *arguments):
    """Run the benchmark and return its last line."""
    plan.main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
def test_logs_of_a_known_machine(data, capsys):
    """Constants fitted on at most 64 devices predict 128; the first epoch does not count."""
    result = summary(capsys, "--data", str(data), "--parts", "abci")
    scores = result["summary"]
    assert set(scores["abci_accuracy"]) == {"resnet50 data", "resnet50 data up to 64", "resnet50 data+spatial"}
    assert min(scores["abci_accuracy"].values()) > 0.98
    assert min(scores["abci_accuracy_held_out"].values()) > 0.97
    assert scores["abci_noise"]["resnet50 data"] == pytest.approx(1.0)
    assert scores["abci_accuracy_paradl"]["resnet50 data"] < 1
    rows = {row[0]: row[-1] for row in result["table"]["rows"]}
    assert rows["resnet50 data"] == "7 + 1"
    assert rows["resnet50 data+spatial"] == "3 + 1"


def test_repeated_runs_predict_each_other():
    """A run of one second is missed wholly by one of two, which misses the other by half; a run alone has no part."""
    alone, short, long = (
        abci.Run(
            model="resnet50", strategy="data", devices=devices, groups=devices, batch=64, iterations=1.0,
            seconds=seconds, epochs=(seconds,), path=f"{devices}/{seconds}",
        )
        for devices, seconds in ((1, 5.0), (2, 1.0), (2, 2.0))
    )  # fmt: skip
    found = accuracy.repeats([alone, short, long], np.array([0.1, 0.6, 0.8]))
    assert found == {"one_run_by_another": pytest.approx(0.25), "ours": pytest.approx(0.7), "runs": 2}
    assert accuracy.repeats([alone, short], np.array([0.1, 0.6])) == {}


def test_missing_tables_are_named(tmp_path, capsys):
    """An empty folder skips what needs tables and runs the rest."""
    result = summary(capsys, "--data", str(tmp_path), "--parts", "abci,vtrain,sia,calculon,megatron")
    assert set(result["skipped"]) == {"abci", "vtrain", "sia", "calculon", "megatron"}
    assert "epochs.csv" in result["skipped"]["abci"]
    assert result["summary"] == {}


@pytest.mark.slow
def test_steps_of_a_known_server(tmp_path, capsys):
    """Rows that follow the model are predicted by folds that have not seen them, and ranked rightly."""
    folder = tmp_path / "parallel" / "vtrain"
    folder.mkdir(parents=True)
    table = [
        (t * d * p, 8 * d * m, m, h, 16, layers, 1024, t, d, p)
        for h in (1024, 2048)
        for layers in (12, 24)
        for t, d, p in ((1, 2, 1), (2, 1, 1), (1, 1, 2), (4, 1, 1), (8, 1, 1), (2, 2, 2))
        for m in (1, 2, 8)
    ]
    runs = TransformerSteps(**dict(zip(COLUMNS, np.array(table, dtype=float).T, strict=True)))
    values = {constant.name: constant.start for constant in (*SERVER_CONSTANTS, *NETWORK_CONSTANTS)}
    header = (
        "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
        "tensor parallelism", "data parallelism", "pipeline parallelism", "iteration time (ms)",
    )  # fmt: skip
    with (folder / "ground_truth_single.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([*row, 1e3 * ms] for row, ms in zip(table, transformer_seconds(values, runs), strict=True))
    numbers = summary(capsys, "--data", str(tmp_path), "--parts", "vtrain")["summary"]
    assert numbers["vtrain_single_mape"] < 2
    assert "vtrain_multi_mape" not in numbers
    assert numbers["kendall_tau"] > 0.9


def test_published_activations(tmp_path, capsys):
    """Blocks whose activations arXiv 2205.05198 gives as s b h L (10 + 24 / t + 5 a s / (h t))."""
    folder = tmp_path / "parallel" / "calculon"
    (folder / "models").mkdir(parents=True)
    shape = {"hidden": 1024, "seq_size": 512, "attn_heads": 16, "num_blocks": 8}
    (folder / "models" / "small.json").write_text(json.dumps(shape))
    setting = {
        "num_procs": 8, "tensor_par": 8, "pipeline_par": 1, "data_par": 1, "batch_size": 4, "microbatch_size": 4,
        "activation_recompute": "none", "pipeline_interleaving": 1, "tensor_par_comm_type": "ar",
    }  # fmt: skip
    (folder / "small.json").write_text(json.dumps(setting))
    size = 512 * 4 * 1024 * 8 * (10 + 24 / 8 + 5 * 16 * 512 / (1024 * 8)) / 2**30
    figures = (
        f"file,figure,model,recompute,quantity,value,unit\nsmall.json,fig1,small,none,activation_memory,{size},GiB\n"
    )
    (folder / "figures.csv").write_text(figures + "small.json,tab5,small,none,iteration_time,1000,s\n")
    numbers = summary(capsys, "--data", str(tmp_path), "--parts", "calculon")["summary"]
    assert numbers["calculon_error_worst"] < 1e-3
    assert 99 < numbers["calculon_seconds_mape_uncalibrated"] < 100  # a small step is nowhere near 1,000 s


def test_golden_bytes(tmp_path, capsys):
    """Golden values are predicted within their workspace, which other cases give; what has no shape is left out."""
    folder = tmp_path / "parallel" / "megatron_golden"
    folder.mkdir(parents=True)
    options = (
        "case", "platform", "mem-allocated-bytes_max", "mem-max-allocated-bytes_max", "tensor-model-parallel-size",
        "pipeline-model-parallel-size", "context-parallel-size", "expert-model-parallel-size", "num-experts",
        "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "num-layers", "hidden-size",
        "ffn-hidden-size", "num-attention-heads", "group-query-attention", "num-query-groups", "seq-length",
        "micro-batch-size", "global-batch-size", "moe-router-topk", "sequence-parallel", "use-distributed-optimizer",
        "recompute-granularity", "recompute-modules", "use-megatron-fsdp", "transformer-impl", "vocab-size", "swiglu",
    )  # fmt: skip
    common = {
        "platform": "dev_dgx_a100", "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024,
        "micro-batch-size": 4, "global-batch-size": 32, "transformer-impl": "local",
    }  # fmt: skip
    # Two published values of each (NVIDIA/Megatron-LM d98e8a6): allocated and peak bytes of the rank that logs.
    rows = [
        common | {"case": "gpt/gpt3_mcore_tp1_pp4", "pipeline-model-parallel-size": 4,
                  "mem-allocated-bytes_max": 782094336, "mem-max-allocated-bytes_max": 2748673024},
        common | {"case": "gpt/gpt3_mcore_tp4_pp1_resume_torch", "tensor-model-parallel-size": 4,
                  "mem-allocated-bytes_max": 416513536, "mem-max-allocated-bytes_max": 1597092352},
        {"case": "t5/t5_mcore", "platform": "dev", "mem-max-allocated-bytes_max": 1},
    ]  # fmt: skip
    with (folder / "golden.csv").open("w") as file:
        writer = csv.DictWriter(file, options, restval="")
        writer.writeheader()
        writer.writerows(rows)
    result = summary(capsys, "--data", str(tmp_path), "--parts", "megatron")
    assert result["summary"]["megatron_memory_median"] < 0.1
    assert sum(result["details"]["megatron"]["left_out"].values()) == 1


@pytest.mark.parametrize(("arguments", "words"), [(["--parts", "nothing"], "allowed: abci"), ([], "allowed: a folder")])
def test_bad_arguments(tmp_path, capsys, arguments, words):
    """A part or a folder that is not there is refused with what is allowed."""
    folder = tmp_path if arguments else tmp_path / "none"
    with pytest.raises(SystemExit) as refusal:
        plan.main(["--data", str(folder), *arguments])
    assert refusal.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_traces_of_a_known_machine(tmp_path, capsys):
    """Steps that follow the model are predicted on numbers of devices held out; a row in both files counts once."""
    folder = tmp_path / "parallel" / "sia_traces" / "imagenet"
    folder.mkdir(parents=True)
    rows = [
        (devices, samples, 0.01 + 0.002 * samples + max(0.0, 0.04 * (devices - 1) / devices - 0.001 * samples))
        for devices in (1, 2, 3, 4)
        for samples in (8, 16, 24, 32, 48, 64)
    ]
    placements = "".join(f"{devices},{samples},{seconds!r}\n" for devices, samples, seconds in rows)
    (folder / "placements-quad.csv").write_text(f"placement,local_bsz,step_time\n{placements}")
    (folder / "scalability-quad.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time\n"
        + "".join(f"1,{devices},{samples},{seconds!r}\n" for devices, samples, seconds in rows)
    )
    result = summary(capsys, "--data", str(tmp_path), "--parts", "sia")
    assert result["table"]["rows"][0][-1] == "24 in turn"
    assert result["summary"]["sia_mape"] < 8
    assert result["summary"]["interval_coverage_sia, held out"] > 0.5
