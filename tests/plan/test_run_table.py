"""Tables of measured runs: what their columns mean, and one sentence for each that cannot be."""

import csv

import pytest

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.plan.fit.run_table import read_runs

A100 = Cluster.preset("dgx-a100", nodes=32)
SHAPE = {"model": "gpt", "hidden": 1024, "layers": 12, "heads": 16, "sequence": 1024}
STEP = {"devices": 8, "tensor": 2, "pipeline": 2, "batch": 32, "micro": 4, "seconds": 1.0, "precision": "amp-bf16"}
EXPERTS = {
    "hidden": 2048, "layers": 8, "heads": 32, "kv_heads": 4, "head_size": 128, "feedforward": 768, "experts": 128,
    "top_k": 8, "sequence": 1024, "gated": "true", "fused_attention": "true",
}  # fmt: skip


def write(path, *rows):
    with (path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path / "runs.csv"


def test_degrees_and_defaults(tmp_path):
    """Data ranks are what the other degrees leave of the devices; empty cells have their defaults."""
    table = read_runs(write(tmp_path, {**SHAPE, **STEP, "zero": "", "note": "x"}), A100)
    (run,) = table.runs
    assert run.layout.degrees.data == 2
    assert (run.layout.schedule, run.layout.zero, run.optimizer) == ("1f1b", 0, "adamw")
    assert table.ignored == ("note",)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_tables_of_spreadsheets(tmp_path, separator):
    """Semicolons or tabs in the place of commas, and names in capitals, are read alike."""
    path = write(tmp_path, {**SHAPE, **STEP})
    header, rest = path.read_text().split("\n", 1)
    path.write_text(f"{header.upper()}\n{rest}".replace(",", separator))
    (run,) = read_runs(path, A100).runs
    assert (run.layout.degrees.tensor, run.seconds) == (2, 1.0)


def test_equal_shapes_are_one_profile(tmp_path):
    table = read_runs(write(tmp_path, {**SHAPE, **STEP}, {**SHAPE, **STEP, "batch": 64, "seconds": 2.0}), A100)
    assert table.runs[0].profile is table.runs[1].profile


@pytest.mark.parametrize(
    ("degrees", "devices", "expected"),
    [
        ({"expert": 8, "data": 16}, 16, (8, 2)),
        ({"expert": 8}, 16, (8, 2)),
        # Published for Qwen3-235B: 32 expert ranks over 16 data and 2 tensor ranks of each of 8 stages.
        ({"tensor": 2, "pipeline": 8, "expert": 32}, 256, (16, 1)),
        ({"tensor": 2, "pipeline": 8, "expert": 16, "data": 1}, 256, (16, 1)),
    ],
)
def test_experts_share_the_ranks_of_data_and_tensor(tmp_path, degrees, devices, expected):
    row = {**EXPERTS, **degrees, "devices": devices, "batch": 512, "micro": 1, "sequence_parallel": "true"}
    (run,) = read_runs(write(tmp_path, {**row, "seconds": 60.0}), A100).runs
    assert (run.layout.degrees.expert, run.layout.degrees.data) == expected
    assert run.layout.devices == devices


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**SHAPE, "seconds": 1}], "column 'batch' is missing"),
        ([{"model": "x", "batch": 1, "seconds": 1}], "column 'hidden' is missing.*or profile"),
        ([{**SHAPE, **STEP, "seconds": 380.0 * 1000}], "line 2: seconds: got 380000.*not milliseconds"),
        ([{**SHAPE, **STEP, "seconds": 1e-4}], "line 2: seconds: got 0.0001; allowed: at least"),
        ([{**SHAPE, **STEP, "seconds": "fast"}], "seconds: got 'fast'; allowed: a number > 0"),
        ([{**SHAPE, **STEP, "tensor": 1.5}], "tensor: got 1.5; allowed: a whole number >= 1"),
        ([{**SHAPE, **STEP, "data": 4}], "devices: got 8; allowed: 16"),
        ([{**SHAPE, **STEP, "heads": 7}], "line 2: describe_transformer: heads"),
        ([{**SHAPE, **STEP, "precision": "fp4"}], "line 2: precision: got 'fp4'"),
        ([{**SHAPE, **STEP, "recompute": "some"}], "recompute: got 'some'"),
        ([{**SHAPE, **STEP, "peak_bytes": 95e9}], "peak_bytes: got 9.5e.10; allowed: at most the 8e.10 bytes"),
        ([{**SHAPE, **STEP}, {**SHAPE, **STEP, "seconds": 2.0}], "line 3: seconds: got 2 where the same run took 1 on"),
        ([{**EXPERTS, "expert": 3, "devices": 8, "batch": 8, "seconds": 1}], "expert: got 3 with 8 data ranks"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, rows, words):
    with pytest.raises(InputError, match=words):
        read_runs(write(tmp_path, *rows), A100)


def test_a_table_of_other_runs_needs_no_seconds(tmp_path):
    row = {**SHAPE, **{name: value for name, value in STEP.items() if name != "seconds"}}
    (run,) = read_runs(write(tmp_path, row), A100, measured=False).runs
    assert run.seconds == 0
    with pytest.raises(InputError, match="column 'seconds' is missing"):
        read_runs(write(tmp_path, row), A100)


def test_an_empty_or_absent_file(tmp_path):
    (tmp_path / "none.csv").write_text("hidden,layers,heads,sequence,batch,seconds\n")
    with pytest.raises(InputError, match="got no runs"):
        read_runs(tmp_path / "none.csv", A100)
    with pytest.raises(InputError, match="allowed: a CSV file"):
        read_runs(tmp_path / "absent.csv", A100)
