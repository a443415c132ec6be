"""`trainwright checkpoint ...`: what its commands print, their JSON, and their exit status."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trainwright.checkpoint import Manager
from trainwright.checkpoint.policy.save_policy import Costs, exact_interval, plan_saves
from trainwright.checkpoint.tools.proof import Proof
from trainwright.cli.command import seconds, size
from trainwright.cli.inputs import call_function
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
    def test_the_optimum_and_the_plan(self, checkpoint):
        """The optimum and what it costs; the plan for what is left."""
        said = checkpoint("interval", "--mtbf", "1d", "--cost", "10", "--recovery", "5m", "--remaining", "4h", "--json")
        content, costs = last_line(said), Costs(mtbf_seconds=86_400, cost_seconds=10, recovery_seconds=300)
        assert said.status == 0
        assert content["plan"]["optimum_seconds"] == exact_interval(costs)
        assert content["wall_per_useful"] == costs.wall_per_useful(exact_interval(costs))
        assert content["plan"]["interval_seconds"] == plan_saves(costs, remaining_seconds=4 * 3600).interval_seconds
        assert "a loss every 1 d 0 h on average, back after 5 min 0 s; a save costs 10 s" in said.out
        assert "save every 21 min 48 s: 1.89 % more wall time" in said.out
        assert "in the 4 h 0 min left: 11 more saves, every 21 min 39 s of training" in said.out

    def test_too_late(self, checkpoint):
        said = checkpoint("interval", "--mtbf", "1h", "--cost", "100", "--remaining", "50")
        assert (said.status, said.out.splitlines()[-1].split(":")[0]) == (
            0,
            "50.0 s are left before the end of the allocation and a save takes 100.0 s",
        )

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--cost", "3x", "--mtbf", 1], "--cost: got '3x'; allowed: a time such as 90, 90s, 15m"),
            (["--cost", 3, "--mtbf", 0], "mtbf_seconds: got 0.0; allowed: a number of seconds > 0"),
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


class TestFactories:
    @pytest.mark.parametrize(
        ("lines", "factory", "sentence"),
        [
            ([], "{}", "factory: got '{}'; allowed: 'module:function'"),
            ([], ".x:build", "factory: '.x' is no module's name; allowed: 'module:function'"),
            ([], "no_such_module:build", "factory: there is no module 'no_such_module' on the path"),
            (["import no_such_dependency"], "{}:build", "ModuleNotFoundError: No module named 'no_such_dependency'"),
            (["def build():"], "{}:build", "factory: "),
            (["def build(): return 3"], "{}:biuld", "factory: {} has no 'biuld'; functions there: build (did"),
            (["def build(): return 1 / 0"], "{}:build", "factory: {}:build failed with ZeroDivisionError: "),
            (["def build(size): pass"], "{}:build", "factory: {}:build failed with TypeError: build() missing"),
        ],
    )
    def test_factories_that_make_nothing(self, module, lines, factory, sentence):
        """A sentence, never a traceback."""
        name = module(*lines)
        with pytest.raises(InputError) as refusal:
            call_function("factory", factory.format(name))
        assert sentence.format(name) in str(refusal.value)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return the folder of two steps of a small training, below the current folder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Manager(tmp_path / "run", model=model, optimizer=optimizer) as manager:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            manager.step()
            manager.save(wait=True)
    return Path("run")


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Return two files of the same weights but for one value."""
    monkeypatch.chdir(tmp_path)
    state = {"fc.weight": torch.zeros(2, 3), "fc.bias": torch.ones(2)}
    torch.save(state, "a.pt")
    state["fc.weight"][1, 2] = 0.5
    torch.save(state, "b.pt")
    return Path("a.pt"), Path("b.pt")


class TestInspect:
    def test_a_manager_s_folder(self, checkpoint, run):
        """The newest step: head and names, optimizer by parameter; JSON has every tensor."""
        said = checkpoint("inspect", run, "--json")
        content = last_line(said)
        lines = said.out.splitlines()
        assert (said.status, content["step"], content["steps"]) == (0, 2, [1, 2])
        assert lines[0] == "run/step-000000000002"
        assert lines[2:4] == ["  step 2", "  other steps there: 1"]
        kinds = {"float32", "int64", "uint8"}
        rows = [line.split() for line in lines if kinds & set(line.split())]
        assert [row[0] for row in rows] == [tensor["name"] for tensor in content["tensors"]]
        assert any(row[0].endswith("weight") and row[1:] == ["float32", "8", "x", "4", "128", "B"] for row in rows)

    def test_levels(self, checkpoint, run):
        """Names are summed up by their first parts."""
        said = checkpoint("inspect", run, "--depth", 1)
        assert {line.split()[0] for line in said.out.splitlines()[-3:]} == {"model", "optimizer", "rng"}

    def test_ten_thousand_tensors(self, checkpoint, tmp_path):
        save_file({f"layer.{n}.w": torch.zeros(1) for n in range(10_000)}, tmp_path / "many.safetensors")
        said = checkpoint("inspect", tmp_path / "many.safetensors")
        assert len(said.out.splitlines()) < 120
        assert said.out.splitlines()[-1] == "9,900 more names: --depth 2 sums them up"
        said = checkpoint("inspect", tmp_path / "many.safetensors", "--depth", 1)
        assert said.out.splitlines()[-1].split() == ["layer", "10,000", "tensors", "40.0", "kB"]

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [("nowhere", "got nowhere, which is not there"), ("text", "got text, whose beginning is of no known format")],
    )
    def test_refusals(self, checkpoint, tmp_path, monkeypatch, name, sentence):
        monkeypatch.chdir(tmp_path)
        Path("text").write_text("hello")
        for command in (
            ["inspect", name],
            ["verify", name],
            ["diff", name, name],
            ["convert", name, "x", "--to", "safetensors"],
        ):
            said = checkpoint(*command)
            assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
            assert sentence in said.err


class TestVerify:
    def test_good(self, checkpoint, run):
        said = checkpoint("verify", run, "--json")
        assert (said.status, last_line(said)["good"], said.out.count("good  run/step-")) == (0, True, 2)

    def test_one_bit(self, checkpoint, run):
        """Exit 1; file, chunk and tensor are named; the other step is told to be good."""
        path = run / "step-000000000002" / "rank-00000.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        said = checkpoint("verify", run, "--json")
        assert (said.status, last_line(said)["good"]) == (1, False)
        assert "BAD   run/step-000000000002" in said.out
        assert "rank-00000.safetensors is damaged in chunk" in said.out
        assert "good  run/step-000000000001" in said.out

    def test_a_format_without_checksums(self, checkpoint, tmp_path):
        save_file({"w": torch.zeros(3)}, tmp_path / "w.safetensors")
        said = checkpoint("verify", tmp_path / "w.safetensors")
        assert (said.status, "keeps no checksums" in said.err) == (2, True)


class TestDiff:
    def test_equal(self, checkpoint, weights):
        said = checkpoint("diff", weights[0], weights[0])
        assert (said.status, said.out) == (0, "no difference: 2 tensors and all plain values are equal\n")

    def test_one_value(self, checkpoint, weights):
        """Exit 1; which tensor, how many values, how far apart."""
        said = checkpoint("diff", *weights, "--json")
        assert (said.status, last_line(said)["first"]) == (1, "fc.weight")
        assert said.out.splitlines()[1].split() == ["fc.weight", "1", "of", "6", "0.5", "1"]
        assert said.out.splitlines()[2] == "1 tensor equal, 1 with other values"

    def test_a_tolerance(self, checkpoint, weights):
        assert checkpoint("diff", *weights, "--tolerance", 0.6).status == 0
        assert checkpoint("diff", *weights, "--tolerance", -1).status == 2

    def test_of_another_model(self, checkpoint, weights, run):
        said = checkpoint("diff", weights[0], run)
        assert said.status == 1
        assert "only in a.pt: fc." in said.out
        assert "only in run/step-000000000002: " in said.out


class TestConvert:
    def test_there_and_back(self, checkpoint, weights):
        assert checkpoint("convert", weights[0], "a.safetensors", "--to", "safetensors").status == 0
        said = checkpoint("convert", "a.safetensors", "back.pt", "--to", "torch", "--json")
        assert (said.status, last_line(said)["tensors"]) == (0, 2)
        assert checkpoint("diff", weights[0], "back.pt").status == 0

    def test_what_would_be_lost(self, checkpoint, tmp_path, monkeypatch):
        """Exit 1, nothing written; with --allow-lossy what is left out is named."""
        monkeypatch.chdir(tmp_path)
        torch.save({"w": torch.zeros(2), "f": torch.zeros(2, dtype=torch.complex128)}, "a.pt")
        said = checkpoint("convert", "a.pt", "a.safetensors", "--to", "safetensors")
        assert (said.status, said.out, Path("a.safetensors").exists()) == (1, "", False)
        assert "cannot hold 'f' (complex128); leave it out with allow_lossy (--allow-lossy)" in said.err
        said = checkpoint("convert", "a.pt", "a.safetensors", "--to", "safetensors", "--allow-lossy")
        assert (said.status, said.out.splitlines()[-1]) == (0, "left out: f")

    @pytest.mark.parametrize(
        ("source", "to", "sentence"),
        [
            ("code.pt", "safetensors", "whose pickle asks for code to be executed"),
            ("a.pt", "torhc", "got 'torhc'; allowed: torch, safetensors (did you mean 'torch'?)"),
            ("b.pt", "safetensors", "got b.pt, which exists"),
        ],
    )
    def test_refusals(self, checkpoint, weights, source, to, sentence):
        torch.save({"f": print}, "code.pt")
        said = checkpoint("convert", source, "b.pt" if source == "b.pt" else "new", "--to", to)
        assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
        assert sentence in said.err
        assert not Path("new").exists()


TRAINING = """
import sys
import torch
import trainwright as tw

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
optimizer = torch.optim.Adam(model.parameters())
manager = tw.checkpoint.Manager(sys.argv[1], model=model, optimizer=optimizer)
manager.restore()
while manager.steps < 20:
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    manager.step()
"""


class TestVerifyResume:
    @pytest.mark.slow
    @pytest.mark.parametrize(("options", "status"), [([], 0), (["--kill"], 0), (["--drop", "optimizer"], 1)])
    def test_a_script(self, checkpoint, tmp_path, monkeypatch, options, status):
        """Equal as it is and when it is killed; not equal without its optimizer. Its own folder is not touched."""
        monkeypatch.chdir(tmp_path)
        Path("training.py").write_text(TRAINING)
        said = checkpoint("verify-resume", "training.py", "--steps", 3, *options, "--json", "--", "runs")
        assert (said.status, last_line(said)["equal"]) == (status, status == 0)
        assert not Path("runs").exists()

    @pytest.mark.parametrize(
        ("found", "lines"),
        [
            (
                {"repeatable": True, "equal": True, "compared": 1234},
                ["t.py: interrupted at step 5 and resumed, it is equal to the last bit", "  1,234 digests of batches"],
            ),
            (
                {"repeatable": True, "equal": False, "step": 6, "item": "model.w", "others": 2, "suspect": "no loader"},
                [
                    "t.py: interrupted at step 5",
                    "  first difference at step 6: model.w and 2 more items",
                    "  suspect: no l",
                ],
            ),
            (
                {"repeatable": False, "equal": False, "step": 1, "item": "losses", "suspect": "seed every generator"},
                [
                    "t.py: two runs without interruption differ",
                    "  first difference at step 1",
                    "  suspect: seed every",
                ],
            ),
        ],
    )
    def test_what_is_told(self, checkpoint, monkeypatch, found, lines):
        """The verdict first, then where it begins and what may be behind it; exit 1 if anything differs."""
        proof = Proof(steps=5, **{"compared": 9, **found})
        monkeypatch.setattr("trainwright.cli.checkpoint.prove", lambda *_, **__: proof)
        said = checkpoint("verify-resume", "t.py", "--steps", 5)
        assert said.status == (0 if found["equal"] else 1)
        assert all(line.startswith(start) for line, start in zip(said.out.splitlines(), lines, strict=True))

    def test_no_script(self, checkpoint):
        said = checkpoint("verify-resume", "nowhere.py", "--steps", 5)
        sentence = "training script 'nowhere.py': there is no such file; allowed: a Python script with a Manager"
        assert (said.status, said.err) == (2, f"trainwright: {sentence}\n")

    def test_a_trial(self, checkpoint, monkeypatch):
        """A function is a trial's; its parameters are JSON, or else text."""
        asked = {}
        proof = Proof(steps=5, repeatable=True, equal=True, compared=9, resumed_from=4)

        def verify_trial(*what, **settings):
            asked.update(settings, what=what)
            return proof

        monkeypatch.setattr("trainwright.cli.checkpoint.verify_trial", verify_trial)
        options = ("--param", "lr=0.5", "--param", "kind=adam", "--epochs", 3)
        said = checkpoint("verify-resume", "mine:train", *options, "--json")
        assert asked["what"] == ("mine:train", {"lr": 0.5, "kind": "adam"})
        assert (asked["epochs"], asked["steps"], said.status) == (3, None, 0)
        assert said.out.startswith("mine:train: killed at step 5 and resumed from step 4, it is equal to the last bit")
        assert last_line(said)["resumed_from"] == 4

    @pytest.mark.parametrize(
        ("command", "sentence"),
        [
            (["t.py"], "--steps is missing; give how many steps"),
            (
                ["t.py", "--steps", 2, "--param", "lr=1"],
                "--param and --epochs are for trials' functions",
            ),
            (["m:f", "--param", "lr"], "--param: got 'lr'; allowed: NAME=VALUE, such as lr=0.01"),
        ],
    )
    def test_options_that_do_not_fit(self, checkpoint, command, sentence):
        said = checkpoint("verify-resume", *command)
        assert said.status == 2
        assert sentence in said.err
