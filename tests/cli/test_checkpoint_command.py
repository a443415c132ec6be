"""`trainwright checkpoint ...`: what its commands print, their JSON, and their exit status."""

import json
import sys

import pytest

from trainwright.checkpoint.interval import Costs, exact, plan_saves
from trainwright.cli._words import seconds, size
from trainwright.errors import InputError


@pytest.fixture
def checkpoint(trainwright):
    """Return a function that runs `trainwright checkpoint ARGUMENTS`."""
    return lambda *arguments: trainwright("checkpoint", *arguments)


def last_line(said):
    return json.loads(said.out.splitlines()[-1])


class TestWords:
    @pytest.mark.parametrize(
        ("text", "meant"), [("90", 90), ("1.5h", 5400), ("2 d", 172_800), ("250ms", 0.25), (".5 s", 0.5), ("15M", 900)]
    )
    def test_times(self, text, meant):
        assert seconds("--cost", text) == meant

    @pytest.mark.parametrize("text", ["", "h", "-3", "3x", "nan", "inf", "1h30m"])
    def test_no_times(self, text):
        with pytest.raises(InputError, match=f"^--cost: got '{text}'; allowed: a time such as 90"):
            seconds("--cost", text)

    def test_sizes(self):
        assert [size(count) for count in (0, 999, 1000, 210_700_000, 999_960_000, 2.5e12)] == [
            "0 B",
            "999 B",
            "1.0 kB",
            "210.7 MB",
            "1.0 GB",
            "2.5 TB",
        ]


class TestInterval:
    def test_the_table_and_the_plan(self, checkpoint):
        """All estimators in one table, the default first; the plan for what is left."""
        said = checkpoint("interval", "--mtbf", "1d", "--cost", "10", "--recovery", "5m", "--remaining", "4h", "--json")
        content, costs = last_line(said), Costs(mtbf_seconds=86_400, cost_seconds=10, recovery_seconds=300)
        assert said.status == 0
        assert [row["name"] for row in content["estimates"]] == ["exact", "daly", "young", "availability"]
        assert content["estimates"][0]["interval_seconds"] == exact(costs)
        assert content["plan"]["interval_seconds"] == plan_saves(costs, remaining_seconds=4 * 3600).interval_seconds
        assert "a loss every 1 d 0 h on average, back after 5 min 0 s; a save costs 10 s" in said.out
        assert "exact         21 min 48 s    +1.89 %  98.15 %" in said.out
        assert "in the 4 h 0 min left: 11 more saves, every 21 min 39 s of training" in said.out

    def test_from_losses(self, checkpoint):
        """A rate seen in place of a mean typed; without --remaining there is no plan."""
        said = checkpoint("interval", "--losses", 30, "--node-time", "30000h", "--nodes", 10, "--cost", "3s", "--json")
        assert last_line(said)["mtbf_seconds"] == pytest.approx(360_000, rel=0.05)
        assert last_line(said)["plan"] is None

    def test_too_late(self, checkpoint):
        said = checkpoint("interval", "--mtbf", "1h", "--cost", "100", "--remaining", "50")
        assert (said.status, said.out.splitlines()[-1].split(":")[0]) == (
            0,
            "50.0 s are left before the end of the allocation and a save takes 100.0 s",
        )

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--cost", 3], "interval: got neither --mtbf nor --losses; allowed: one, such as --mtbf 1d"),
            (["--cost", 3, "--mtbf", 1, "--losses", 1], "interval: got both --mtbf and --losses"),
            (["--cost", "3x", "--mtbf", 1], "--cost: got '3x'; allowed: a time such as 90, 90s, 15m"),
            (["--cost", 3, "--mtbf", 0], "mtbf_seconds: got 0.0; allowed: a finite number of seconds > 0"),
            (["--cost", 3, "--losses", -1], "got -1 losses in 0.0 node-seconds; allowed"),
        ],
    )
    def test_refusals(self, checkpoint, options, sentence):
        said = checkpoint("interval", *options)
        assert (said.status, said.out) == (2, "")
        assert sentence in said.err
        assert len(said.err.splitlines()) == 1


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module of factories into the current folder, and returns its name."""
    monkeypatch.chdir(tmp_path)
    written = []

    def write(*lines):
        name = f"factories_{tmp_path.name}_{len(written)}"
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


class TestBench:
    def test_the_table(self, checkpoint, module, tmp_path):
        """A row for each way, on a factory of the user's; the current folder is left as it was."""
        name = module(
            "import torch",
            "def build():",
            "    model = torch.nn.Linear(30, 30)",
            "    return model, torch.optim.SGD(model.parameters(), momentum=0.9)",
        )
        options = ["--format", "safetensors", "--writer", "thread", "--repeats", 1, "--step", "10ms", "--json"]
        said = checkpoint("bench", f"{name}:build", *options)
        content = last_line(said)
        assert said.status == 0
        assert [row["name"] for row in content["rows"]] == ["torch", "safetensors", "Manager thread"]
        assert content["recommendation"] in said.out
        assert "4 tensors, 7.4 kB; medians of 1 rounds" in said.out
        assert [line.split()[-1] for line in said.out.splitlines() if line.startswith(("torch", "Manager"))] == [
            "yes"
        ] * 2
        assert {path.name for path in tmp_path.iterdir()} <= {f"{name}.py", "__pycache__"}

    @pytest.mark.parametrize(
        ("lines", "factory", "sentence"),
        [
            ([], "{}", "factory: got '{}'; allowed: MODULE:FUNCTION"),
            ([], ".x:build", "factory: got '.x:build'; allowed: MODULE:FUNCTION"),
            ([], "no_such_module:build", "importing no_such_module fails: ModuleNotFoundError: No module named"),
            (["import no_such_dependency"], "{}:build", "importing {} fails: ModuleNotFoundError"),
            (["def build():"], "{}:build", "importing {} fails: "),
            (["def build(): return 3"], "{}:biuld", "{} has no function 'biuld' (did you mean 'build'?)"),
            (["def build(): return 3"], "{}:build", "factory: got int; allowed: a torch.nn.Module"),
            (["def build(): return 1 / 0"], "{}:build", "{}:build() fails: ZeroDivisionError: division by zero"),
            (["def build(size): pass"], "{}:build", "{}:build() fails: TypeError: build() missing 1 required"),
        ],
    )
    def test_factories_that_make_nothing(self, checkpoint, module, lines, factory, sentence):
        """A sentence and exit status 2, never a traceback."""
        name = module(*lines)
        said = checkpoint("bench", factory.format(name))
        assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert sentence.format(name) in said.err

    def test_a_disk_that_is_not_there(self, checkpoint, module):
        name = module("import torch", "def build(): return torch.nn.Linear(1, 1)")
        said = checkpoint("bench", f"{name}:build", "--directory", "nowhere")
        assert (said.status, "got nowhere: no such file or directory" in said.err) == (2, True)
