"""A pipeline plan trained on two ranks of gloo: gradients and buffers of one process, bit by bit."""

import multiprocessing
import traceback
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainwright import memory
from trainwright.errors import PipelineError
from trainwright.memory.chain_files import load_chain
from trainwright.plan.memory.operations import OperationKind
from trainwright.train.parallel.recompute.pipelined import part_operations

pytestmark = [pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")]
MICROBATCHES, SIZE = 4, 32
OWN = ("auto", "interleaved", "zero-bubble", "1f1b-star")
"""Plans that are run by their own schedule."""


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


def model_of():
    torch.manual_seed(0)
    return Residual()


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(MICROBATCHES * SIZE, 8, generator=generator), torch.arange(MICROBATCHES * SIZE) % 3


def plan_of(model, least=1.0, schedule="1f1b"):
    sample = data()[0][:SIZE]
    settings = {"stages": 2, "microbatches": MICROBATCHES, "schedule": schedule}
    plenty = memory.pipeline(model, sample, memory="1 GiB", **settings)
    return memory.pipeline(model, sample, memory=int(least * max(plenty.plain_bytes)), **settings)


@pytest.fixture(scope="module")
def tight():
    """Return a plan in which both devices have less memory than they would like."""
    return plan_of(model_of(), 0.7)


def placed_plan(model):
    """Return a plan in which the first device has the ends of the model: the second layer takes half of all time."""
    chain = load_chain(model, data()[0][:SIZE], skips=False)
    stages = tuple(
        replace(stage, forward_seconds=seconds / 3, backward_seconds=2 * seconds / 3, no_grad_forward_seconds=None)
        for stage, seconds in zip(chain.stages, (3, 8, 1, 1, 1, 1, 1, 0), strict=True)
    )
    plan = memory.pipeline(
        replace(chain, stages=stages), stages=2, microbatches=MICROBATCHES, memory="1 GiB", schedule="madpipe"
    )
    assert plan.devices == (0, 1, 0)
    assert plan.partition.load_seconds == pytest.approx(8, rel=1e-5)
    return plan


def train(rank, plan, schedule, folder, results):
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(folder / schedule), 2), rank=rank, world_size=2)
        model = model_of()
        x, y = data()
        named = {} if schedule in OWN else {"schedule": schedule}  # by default the plan's own
        made = memory.scheduled(model, plan, x[:SIZE], loss=nn.functional.cross_entropy, **named)
        last = plan.devices[-1]
        made.step(*([x] if rank == 0 else []), **({"target": y} if rank == last else {}))
        found = {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
        found |= {name: b.tolist() for name, b in model.named_buffers()}
        results.put((rank, found))
    except BaseException:
        results.put((rank, traceback.format_exc()))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize(
    "schedule", ["1f1b", "madpipe", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpipe", *OWN))]
)
def test_two_ranks_train_as_one_process(tight, tmp_path, schedule):
    """The mean of the micro-batches' gradients, and what batch normalisation counts."""
    made = {"madpipe": placed_plan, "gpipe": partial(plan_of, least=4.0)}
    made |= {each: partial(plan_of, least=4.0, schedule=each) for each in OWN}
    plan = made[schedule](model_of()) if schedule in made else tight
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=train, args=(rank, plan, schedule, tmp_path, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=240) for _ in ranks)
    for process in ranks:
        process.join()
    assert not [each for each in found.values() if isinstance(each, str)], found
    model = model_of()
    x, y = data()
    for inputs, targets in zip(x.split(SIZE), y.split(SIZE), strict=True):
        nn.functional.cross_entropy(model(inputs), targets).backward()
    names = {name for name, _ in model.named_parameters()}
    assert {name for each in found.values() for name in each if name in names} == names
    for name, parameter in model.named_parameters():
        (owner,) = [each for each in found.values() if name in each]
        assert torch.equal(torch.tensor(owner[name]), parameter.grad / MICROBATCHES), name
        for buffer, value in model.named_buffers():
            if buffer.startswith(name.rpartition(".")[0] + ".running"):
                assert torch.equal(torch.tensor(owner[buffer]), value)


def test_stages_are_the_model(tight):
    """One after the other they return what the model does, and some recompute."""
    model = model_of()
    first, second = memory.staged(model, tight)
    x = data()[0][:SIZE]
    assert torch.equal(second(first(x)), model_of()(x))
    kinds = {op.kind for number in (0, 1) for op in part_operations(tight.chain, tight, number)}
    assert kinds & {OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}
    shared = {id(p) for each in (first, second) for p in each.parameters()}
    assert shared == {id(p) for p in model.parameters()}


def test_what_is_refused(tight):
    with pytest.raises(PipelineError, match="others; allowed"):
        memory.staged(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), tight)
    with pytest.raises(PipelineError, match="got 'zero-bubble'; allowed to run"):
        memory.scheduled(model_of(), tight, data()[0], loss=None, schedule="zero-bubble")
