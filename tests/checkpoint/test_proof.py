"""The proof of exact resume: it finds every state that is left out, and names it; what is whole, it passes."""

import os
import random
import textwrap
from pathlib import Path

import pytest
import torch
from benchmarks.checkpoint.resume import CASES, QUICK, Case, launch, resize, resume, train
from torch import nn

from trainwright.checkpoint.tools.comparing import read_lines
from trainwright.checkpoint.tools.proof import launch_ranks, prove, verify_resume
from trainwright.checkpoint.tools.step_digests import ProofPlan, take_part
from trainwright.errors import CheckpointConfigError, CheckpointError, CheckpointNotFoundError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def launched(training):
    """Return a launch of a small training in a forked process: torch is loaded there already."""

    def start(plan):
        fields = {name: getattr(plan, name) for name in ("folder", "journal", "steps", "save_at", "kill_at", "drop")}
        launch(Case(), fields, training)

    return start


def regression(manager_of, _case, *, left_out=(), restores=True, seeds=True, batches=100):
    """Train a regression with dropout, Adam, a schedule, and batches drawn from a generator of its own."""
    torch.manual_seed(0 if seeds else int.from_bytes(os.urandom(4), "little"))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    order = torch.Generator().manual_seed(1)
    items = {"model": model, "optimizer": optimizer, "schedule": schedule, "order": order}
    manager = manager_of("none", **{name: item for name, item in items.items() if name not in left_out})
    if restores:
        manager.restore()
    for _ in range(batches):
        batch = torch.randn(6, 4, generator=order)
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        schedule.step()
        manager.step()


def of(**settings):
    return launched(lambda manager_of, case: regression(manager_of, case, **settings))


@pytest.mark.parametrize("kill", [False, True])
def test_a_whole_training_passes(tmp_path, kill):
    """Stopped cleanly, or killed three steps after its save: those steps leave no trace."""
    proof = prove(of(), tmp_path, steps=5, kill=kill)
    assert (proof.repeatable, proof.equal, proof.step, proof.max_difference) == (True, True, None, 0.0)
    assert proof.compared > 6 * 10


@pytest.mark.parametrize(
    ("left_out", "first", "suspect"),
    [
        ("optimizer", "schedule", "the update after an equal loss: an optimizer, schedule"),
        ("schedule", "optimizer", "the update after an equal loss: an optimizer, schedule"),
        ("order", "losses", "the forward pass on equal samples: random draws, buffers or other state"),
    ],
)
def test_what_the_manager_was_not_given_is_found(tmp_path, left_out, first, suspect):
    proof = prove(of(left_out=(left_out,)), tmp_path, steps=4)
    assert (proof.repeatable, proof.equal, proof.step) == (True, False, 5)
    assert proof.item == first
    assert proof.suspect.startswith(suspect)
    assert proof.max_difference > 0


def test_what_is_dropped_is_named(tmp_path):
    """It differs right after the restore, at the step of the checkpoint."""
    for name, item in (("rng", "rng."), ("order", "order"), ("optimizer", "optimizer")):
        proof = prove(of(), tmp_path / name, steps=3, drop=(name,))
        assert (proof.equal, proof.step) == (False, 3)
        assert proof.item.startswith(item)
        assert proof.suspect == f"{proof.item} is not restored as it was saved"


def test_a_training_that_does_not_repeat_itself(tmp_path):
    """Then nothing is said of the resume. Generators that nobody seeded and nobody draws from do no harm."""
    proof = prove(of(seeds=False), tmp_path, steps=2)
    assert (proof.repeatable, proof.equal, proof.step) == (False, False, 1)
    assert "two uninterrupted runs differ already" in proof.suspect


def test_trainings_that_cannot_be_proved(tmp_path, capfd):
    with pytest.raises(CheckpointError, match=r"ended after 5 calls of manager.step\(\), 6 are needed; give fewer"):
        prove(of(batches=5), tmp_path / "short", steps=3)
    with pytest.raises(CheckpointError, match=r"did not restore its checkpoint; call manager.restore\(\)"):
        prove(of(restores=False), tmp_path / "fresh", steps=3)
    with pytest.raises(CheckpointConfigError, match="steps: got 0; allowed: a whole number >= 1"):
        prove(of(), tmp_path, steps=0)
    with pytest.raises(RuntimeError):
        prove(of(), tmp_path / "unknown", steps=1, drop=("scaler",))
    assert (
        "--drop: the script keeps no scaler; allowed: rng, model, optimizer, order, schedule" in capfd.readouterr().err
    )


SCRIPT = """
    import sys
    import torch
    import trainwright as tw

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())
    manager = tw.checkpoint.Manager(sys.argv[1], model=model, optimizer=optimizer)
    manager.restore()
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        manager.step()
"""


ON_RANKS = """
    import sys
    import torch
    import torch.distributed as dist
    import trainwright as tw

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    together = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.linspace(0, 1, 32)[:, None])
    loader = tw.train.Loader(data, global_batch=8, seed=0)
    manager = tw.checkpoint.Manager(sys.argv[1], model=model, optimizer=optimizer, loader=loader)
    manager.restore()
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            together(x).square().mean().backward()
            optimizer.step()
            manager.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_script_on_ranks(tmp_path):
    """Two ranks are compared with two that were killed."""
    script = tmp_path / "together.py"
    script.write_text(textwrap.dedent(ON_RANKS))
    arguments = [str(tmp_path / "checkpoints")]
    proof = verify_resume(script, steps=3, arguments=arguments, ranks=2, kill=True)
    assert (proof.repeatable, proof.equal, proof.item) == (True, True, "")


def test_no_ranks(tmp_path):
    with pytest.raises(CheckpointConfigError, match="ranks: got 0; allowed: a whole number >= 1"):
        prove(of(), tmp_path, steps=1, ranks=0)


@pytest.mark.slow
def test_a_script(tmp_path):
    """As it is, with its arguments; its own folder stays as it was."""
    script = tmp_path / "training.py"
    script.write_text(textwrap.dedent(SCRIPT))
    proof = verify_resume(script, steps=3, arguments=[str(tmp_path / "own")], kill=True)
    assert proof.equal
    assert not (tmp_path / "own").exists()
    script.write_text("raise ValueError('no data')")
    with pytest.raises(CheckpointError, match=r"training.py ended with status 1: ValueError: no data"):
        verify_resume(script, steps=3)


def test_no_script(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="there is no such file; allowed: a Python script with a Manager"):
        verify_resume(tmp_path / "none.py", steps=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "items"),
    [
        (Case(extra="average", precision="scaled"), ("optimizer", "schedule", "rng", "loader", "scaler", "average")),
        (Case(extra="accumulation"), ("accumulation",)),
    ],
)
def test_every_state_is_needed(tmp_path, case, items):
    """Without any one of them the result is another; with all of them it is the same."""

    def start(plan):
        fields = {name: getattr(plan, name) for name in ("folder", "journal", "steps", "save_at", "kill_at", "drop")}
        launch(case, fields, train)

    assert prove(start, tmp_path / "none", steps=5).equal
    assert [item for item in items if prove(start, tmp_path / item, steps=5, drop=[item]).equal] == []


def test_resumed_in_a_few_ways():
    count, mismatches = resume(QUICK[:2])
    assert (count, mismatches) == (2, [])


@pytest.mark.slow
def test_resumed_in_many_ways():
    """Workers, ranks, precisions, accumulated and averaged, at the edge and in the middle of an epoch."""
    drawn = random.Random(0).sample(CASES, 24)
    count, mismatches = resume((*QUICK, *drawn))
    assert (count, mismatches) == (27, [])


@pytest.mark.slow
def test_resized():
    """On 1, 2, 4 and 1 ranks: with slots all is equal to the last bit, with DDP the samples are."""
    assert resize("slots") == ([], 0.0)
    mismatches, apart = resize("ddp")
    assert mismatches == []
    assert 0 < apart < 0.2


def test_a_run_that_takes_too_long(tmp_path):
    plan = ProofPlan(folder=str(tmp_path), journal=str(tmp_path / "journal"))
    with pytest.raises(CheckpointError, match=r"a nap took longer than 0.1 s; give it more"):
        launch_ranks(
            plan, name="a nap", command=["-c", "import time; time.sleep(9)"], arguments=[], timeout_seconds=0.1
        )


def test_a_run_that_fails(tmp_path):
    """It is told with its last words; one that ends well is none."""
    plan = ProofPlan(folder=str(tmp_path), journal=str(tmp_path / "journal"))
    launch_ranks(plan, name="a run", command=["-c", "pass"], arguments=[], timeout_seconds=60)
    with pytest.raises(CheckpointError, match="verify-resume: a run ended with status 1: no such file"):
        launch_ranks(plan, name="a run", command=["-c", "exit('no such file')"], arguments=[], timeout_seconds=60)


def test_steps_of_a_trial_are_counted_and_told(tmp_path):
    """A trial counts its steps, and saves at its reports."""
    plan = ProofPlan(folder=str(tmp_path / "run"), journal=str(tmp_path / "journal"))
    with take_part(plan) as manager_of, manager_of("run", held={"x": 1}) as manager:
        manager.count()
        manager.count()
    assert [(line.step, line.event) for line in read_lines(Path(plan.journal), 1)] == [(1, "counted"), (2, "counted")]
