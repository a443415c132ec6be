"""A pipeline plan trained on two ranks: gradients and buffers of one process, bit by bit, within a memory budget."""

from dataclasses import replace

import pytest
import torch
from rank_group import on_ranks
from torch import nn

from trainwright import memory
from trainwright.errors import PipelineError
from trainwright.memory import load_chain
from trainwright.plan.memory.operations import OperationKind
from trainwright.train import parallelise
from trainwright.train.parallel.pipeline.stage_plans import choose_operations, ways_to_run

MICROBATCHES, SIZE = 4, 256
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "1f1b-star")


class Residual(nn.Module):
    """Residual blocks with batch normalisation, and a head; no sequence."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.BatchNorm1d(48), nn.GELU()) for _ in range(6))
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Tied(Residual):
    """Its first and last block, which are in different stages, have one weight."""

    def __init__(self):
        super().__init__()
        self.blocks[5][0].weight = self.blocks[0][0].weight


def model_of(make=Residual):
    torch.manual_seed(0)
    return make()


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MICROBATCHES * SIZE, 8, generator=generator), torch.arange(MICROBATCHES * SIZE) % 3


def loss_of(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def timed_chain(seconds):
    """Return the chain of the model with times that are the same on every machine."""
    chain = load_chain(model_of(), data()[0][:SIZE])
    stages = tuple(
        replace(
            stage, forward_seconds=each / 3, backward_seconds=2 * each / 3, no_grad_forward_seconds=None, options=()
        )
        for stage, each in zip(chain.stages, seconds, strict=True)
    )
    return replace(chain, stages=stages, loss=replace(chain.loss, forward_seconds=0.0, backward_seconds=0.0))


def layout_of(schedule, seconds=(1, 1, 1, 1, 1, 1)):
    settings = {"stages": 2, "microbatches": MICROBATCHES, "schedule": schedule}
    return memory.pipeline(timed_chain(seconds), memory="1 GiB", **settings).layout(MICROBATCHES * SIZE)


def placed_layout():
    """Return a layout in which the first device has the ends of the model: the second layer takes half of all time."""
    layout = layout_of("madpipe", (3, 8, 1, 1, 1, 2))
    assert layout.placement == (0, 1, 0)
    return layout


def trained(layout, make=Residual):
    """Return a check that trains one step and evaluates."""

    def check(rank, world):
        ours = parallelise(model_of(make), layout)
        loss = ours.backward(loss_of, [(1.0, data())])
        found = {name: p.grad.tolist() for name, p in ours.module.named_parameters()}
        found |= {name: b.tolist() for name, b in ours.module.named_buffers()}
        with torch.no_grad():
            evaluated = ours.eval()(data()[0][:SIZE]).tolist()
        return loss.item(), found, evaluated

    return check


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    layouts = {schedule: layout_of(schedule) for schedule in SCHEDULES}
    layouts["madpipe"] = placed_layout()
    budgets = {"1f1b": 0.9, "gpipe": 0.9, "madpipe": "1 GiB"}
    tight = {f"{name}, tight": replace(layouts[name], memory=budget) for name, budget in budgets.items()}
    checks = {name: trained(layout) for name, layout in (layouts | tight).items()}
    checks["tied"] = trained(tight["1f1b, tight"], Tied)
    checks["too tight"] = trained(replace(layouts["1f1b"], memory="20 kB"))
    return on_ranks(2, checks, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*SCHEDULES, "madpipe", *(f"{name}, tight" for name in ("1f1b", "gpipe", "madpipe"))])
def test_two_ranks_train_as_one_process(found, name):
    """The mean of the micro-batches' gradients, and what batch normalisation counts."""
    assert not [each for each in found[name] if isinstance(each, str)], found[name]
    model = model_of()
    x, y = data()
    losses = []
    for batch in zip(x.split(SIZE), y.split(SIZE), strict=True):
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.detach())
    ranks = [state for _, state, _ in found[name]]
    assert {key for state in ranks for key in state} == {
        key for named in (model.named_parameters(), model.named_buffers()) for key, _ in named
    }
    for key, parameter in model.named_parameters():
        (owner,) = [state for state in ranks if key in state]
        assert torch.equal(torch.tensor(owner[key]), parameter.grad / MICROBATCHES), key
    for key, buffer in model.named_buffers():
        (owner,) = [state for state in ranks if key in state]
        assert torch.equal(torch.tensor(owner[key]), buffer), key
    with torch.no_grad():
        expected = model.eval()(x[:SIZE])
    for loss, _, evaluated in found[name]:
        assert loss == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
        torch.testing.assert_close(torch.tensor(evaluated), expected)


def test_weights_that_stages_share_within_a_budget(found):
    """What measuring the stages has found for a lent weight is in no gradient."""
    assert not [each for each in found["tied"] if isinstance(each, str)], found["tied"]
    model = model_of(Tied)
    x, y = data()
    for batch in zip(x.split(SIZE), y.split(SIZE), strict=True):
        (loss_of(model, batch) / MICROBATCHES).backward()
    (owner,) = [state for _, state, _ in found["tied"] if "blocks.0.0.weight" in state]
    torch.testing.assert_close(torch.tensor(owner["blocks.0.0.weight"]), model.blocks[0][0].weight.grad)


def test_a_budget_that_nothing_keeps_to(found):
    assert any(
        "PipelineError: memory: got a budget that the pipeline stages" in str(each) for each in found["too tight"]
    )


def test_stages_of_a_device_share_its_memory():
    """With less room stages run more again, until their least ways do not fit either."""
    chain = load_chain(model_of(), data()[0][:SIZE])
    ways = {0: ways_to_run(chain, 3), 2: ways_to_run(chain, 1)}
    full = sum(found[0].peak_bytes for found in ways.values())
    least = sum(min(way.peak_bytes for way in found) for found in ways.values())
    reruns = []
    for room in (full, (2 * full + least) // 3, least):
        chosen = choose_operations(ways, room)
        used = {
            index: next(way for way in ways[index] if way.operations == operations)
            for index, operations in chosen.items()
        }
        assert sum(way.peak_bytes for way in used.values()) <= room
        # A stage runs again, or keeps less of what it saves and makes that again.
        again = {OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}
        reruns.append(sum(each.kind in again or each.option > 0 for row in chosen.values() for each in row))
    assert reruns[0] == 0 < reruns[1] <= reruns[2]
    with pytest.raises(PipelineError, match="miss by"):
        choose_operations(ways, least - 1)
