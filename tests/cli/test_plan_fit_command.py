"""`trainwright plan fit`: a table of runs becomes a cluster file, whose oracle predicts what the command printed."""

import csv
import json

import pytest
from click.testing import CliRunner

from trainwright.cli import plan
from trainwright.cluster import Cluster
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Degrees, Oracle

SHAPE = {"hidden": 1024, "layers": 8, "heads": 16, "sequence": 512, "vocabulary": 32000}
WAYS = [(1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 4, 1), (2, 2, 2), (1, 1, 4)]


def rows_of(layers, slower):
    """Return runs that take `slower` times what the preset says."""
    shape = {**SHAPE, "layers": layers}
    profile = describe_transformer(**shape)
    oracle = Oracle(Cluster.preset("dgx-a100"))
    rows = []
    for tensor, data, pipeline in WAYS:
        degrees = Degrees(tensor=tensor, data=data, pipeline=pipeline)
        forecast = oracle.estimate(profile, batch=32, degrees=degrees, micro=4, precision="amp-bf16", context_by="ring")
        common = {"tensor": tensor, "data": data, "pipeline": pipeline, "batch": 32, "micro": 4}
        seconds = slower * forecast.seconds_per_iteration
        rows.append({"model": f"gpt-{layers}", **shape, **common, "precision": "amp-bf16", "seconds": seconds})
    return rows


def write(path, rows, columns):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def tables(tmp_path):
    rows, others = rows_of(8, 1.5), rows_of(16, 1.5)
    columns = list(rows[0])
    return write(tmp_path / "runs.csv", rows, columns), write(tmp_path / "others.csv", others, columns[:-1]), others


def run(*arguments):
    return CliRunner().invoke(plan.app, ["fit", *(str(each) for each in arguments)])


def test_other_models_are_predicted(tables, tmp_path):
    """The last line has a prediction a row, in their order; the file alone gives the same, and beats the baselines."""
    runs, others, truth = tables
    out = tmp_path / "fitted.toml"
    said = run(runs, "--cluster", "dgx-a100", "--out", out, "--predict", others, "--json")
    assert said.exit_code == 0, said.output
    content = json.loads(said.output.splitlines()[-1])
    seconds = [each["seconds"] for each in content["predictions"]]
    errors = [abs(found / row["seconds"] - 1) for found, row in zip(seconds, truth, strict=True)]
    assert max(errors) < 0.15
    for name in ("constant_seconds", "constant_mfu"):
        baseline = [
            abs(found / row["seconds"] - 1) for found, row in zip(content["baselines"][name], truth, strict=True)
        ]
        assert sum(errors) < sum(baseline)
    assert all(each["low"] < each["seconds"] < each["high"] for each in content["predictions"])
    again = Oracle(Cluster.load(out)).estimate(
        describe_transformer(**{**SHAPE, "layers": 16}), batch=32, degrees=Degrees(), micro=4, precision="amp-bf16"
    )
    assert again.seconds_per_iteration == pytest.approx(seconds[0], rel=1e-6)
    assert again.interval == pytest.approx(
        (content["predictions"][0]["low"], content["predictions"][0]["high"]), rel=1e-6
    )


def test_what_a_person_reads(tables):
    """Each constant with what the runs say of it, and the errors beside those of the baselines."""
    runs, others, _ = tables
    said = run(runs, "--cluster", "dgx-a100", "--predict", others)
    assert said.exit_code == 0, said.output
    for words in ("efficiency linear", "identified", "constant MFU", "constant seconds", "gpt-16", "low - high"):
        assert words in said.output


def test_runs_that_could_not_have_run(tmp_path):
    """A model that exceeds its device's memory as it is described is pointed out."""
    row = {"model": "large", "hidden": 8192, "layers": 48, "heads": 64, "sequence": 2048, "devices": 8, "batch": 8}
    row |= {"precision": "amp-bf16", "seconds": 60.0}
    said = run(write(tmp_path / "runs.csv", [row], list(row)), "--cluster", "dgx-a100")
    assert said.exit_code == 0, said.output
    assert "1 of 1 runs would need more than a device's 80 GB" in said.output
