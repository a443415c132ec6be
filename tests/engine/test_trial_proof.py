"""The proof that trials resume exactly: whole ones pass, and what is not kept is named."""

import textwrap
from pathlib import Path

import pytest

from trainwright.checkpoint.tools.comparing import JournalLine, ProofRun
from trainwright.checkpoint.tools.proof import _compare_to_end, choose_interruption
from trainwright.engine.process.proof import verify_trial
from trainwright.errors import CheckpointConfigError, CheckpointError, EngineError

TRAININGS = """
    import torch
    from torch import nn
    import trainwright as tw

    DATA = torch.utils.data.TensorDataset(torch.linspace(-3, 3, 64)[:, None], torch.linspace(-3, 3, 64)[:, None].sin())

    def parts(params):
        model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=params["lr"])
        return model, optimizer, tw.train.Loader(DATA, global_batch=16, seed=1)

    def prepared(trial, gain=None):
        model, optimizer, loader = parts(trial.params)
        if gain is not None:
            optimizer.add_param_group({"params": [gain]})
        gain = torch.ones(1) if gain is None else gain
        run = trial.prepare(model, optimizer, loader, loss=lambda m, b: nn.functional.mse_loss(gain * m(b[0]), b[1]))
        for _ in trial.epochs():
            for batch in run.loader:
                loss = run.step(batch)
            trial.report(val_loss=float(loss))

    def forgets(trial):
        prepared(trial, nn.Parameter(torch.ones(1)))  # trained, but no part of the model that is kept

    def own_loop(trial):
        model, optimizer, loader = parts(trial.params)
        manager = tw.checkpoint.Manager(trial, model=model, optimizer=optimizer, loader=loader)
        manager.restore()
        for _ in trial.epochs():
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                manager.step()
            trial.report(val_loss=float(loss))

    def judges_at_random(trial):
        model, optimizer, loader = parts(trial.params)
        run = trial.prepare(model, optimizer, loader, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]))
        draws = torch.Generator().manual_seed(0)  # nobody keeps it
        rest = torch.utils.data.DataLoader(DATA, batch_size=32)
        for _ in trial.epochs():
            for batch in run.loader:
                run.step(batch)
            held = sum(float(nn.functional.mse_loss(run.model(x), y)) for x, y in rest)
            trial.report(val_loss=held, noise=float(torch.rand((), generator=draws)))

    def keeps_nothing(trial):
        for _ in trial.epochs():
            trial.report(val_loss=1.0)
"""


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    (tmp_path / "trainings_of_a_stranger.py").write_text(textwrap.dedent(TRAININGS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "trainings_of_a_stranger"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "seed"), [("prepared", 0), ("own_loop", 1), ("own_loop", 2)])
def test_a_whole_trial_passes(trainings, name, seed):
    """What prepare made goes on from an epoch's end, a loop of one's own in the middle of an epoch; all is equal."""
    proof = verify_trial(f"{trainings}:{name}", {"lr": 0.02}, epochs=3, seed=seed)
    assert (proof.repeatable, proof.equal, proof.item, proof.max_difference) == (True, True, "", 0.0)
    assert 0 < proof.resumed_from < proof.steps <= 12
    assert proof.compared > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_is_not_kept_is_named(trainings):
    """A parameter outside of the model shows in the first loss after the resume; a dropped item at the restore."""
    proof = verify_trial(f"{trainings}:forgets", {"lr": 0.02}, epochs=3, steps=6)
    assert (proof.repeatable, proof.equal, proof.resumed_from, proof.step, proof.item) == (True, False, 4, 5, "losses")
    assert proof.max_difference > 0
    proof = verify_trial(f"{trainings}:prepared", {"lr": 0.02}, epochs=3, steps=7, drop=["rng"])
    assert (proof.equal, proof.step, proof.item) == (False, 4, "rng.torch")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_evaluation_that_is_not_kept_is_named(trainings):
    """Its batches count by themselves; what differs is the report that comes after the resume."""
    proof = verify_trial(f"{trainings}:judges_at_random", {"lr": 0.02}, epochs=3, steps=6)
    assert (proof.repeatable, proof.equal, proof.resumed_from, proof.step, proof.item) == (True, False, 4, 8, "report")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_trial_of_two_ranks(trainings):
    proof = verify_trial(f"{trainings}:prepared", {"lr": 0.02}, epochs=3, steps=6, ranks=2)
    assert (proof.repeatable, proof.equal, proof.item, proof.resumed_from) == (True, True, "", 4)


@pytest.mark.slow
def test_a_trial_that_keeps_nothing(trainings):
    with pytest.raises(CheckpointError, match=r"keeps_nothing keeps no checkpoint; call trial\.prepare"):
        verify_trial(f"{trainings}:keeps_nothing", {}, epochs=2)


def test_bad_input():
    with pytest.raises(EngineError, match="there is no module 'no_such_module'"):
        verify_trial("no_such_module:train", {})
    with pytest.raises(CheckpointConfigError, match="epochs: got 0; allowed: a whole number >= 1"):
        verify_trial("a:b", {}, epochs=0)


def lines(*events, state="x"):
    return [JournalLine(rank=0, step=step, event=event, batches=[], losses=[], state={"model": state})
            for step, event in events]  # fmt: skip


def run(*events, **settings):
    return ProofRun(lines=lines(*events, **settings), end=Path())


STEPS = [(step, "counted") for step in range(1, 7)]


def test_where_it_is_interrupted():
    """After the first checkpoint that comes by itself; in a loop with manager.step() anywhere, after a save."""
    prepared = run(*STEPS, (3, "saved"), (6, "saved"))
    places = {choose_interruption("t", prepared, None, seed).kill_at for seed in range(40)}
    assert places == {4, 5, 6}
    own = run(*((step, "step") for step in range(1, 7)))
    for seed in range(40):
        place = choose_interruption("t", own, None, seed)
        assert 1 <= place.save_at < place.kill_at <= 6
    with pytest.raises(CheckpointError, match=r"steps: got 3; t has its first checkpoint .* allowed: 4 to 6"):
        choose_interruption("t", prepared, 3, 0)
    with pytest.raises(CheckpointError, match=r"first checkpoint after step 6 of 6.*give more epochs"):
        choose_interruption("t", run(*STEPS, (6, "saved")), None, 0)


def test_runs_are_compared_to_their_ends():
    """A run that ends early, one that goes on too long, and one with another state differ."""
    whole, nothing = run(*STEPS), frozenset()
    assert _compare_to_end(whole, run(*STEPS[2:]), nothing) is None
    short = _compare_to_end(whole, run(*STEPS[2:5]), nothing)
    assert (short.step, short.items) == (5, ["steps"])
    long = _compare_to_end(whole, run(*STEPS[2:], (7, "counted")), nothing)
    assert (long.step, long.items) == (7, ["steps"])
    state = _compare_to_end(whole, run(*STEPS[2:], state="y"), nothing)
    assert (state.step, state.items) == (3, ["model"])
