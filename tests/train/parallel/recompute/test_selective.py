"""Options inside a block: some results are made again from others, kept; everything else is as without a plan."""

import copy
import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainwright import memory
from trainwright.errors import InfeasibleBudget
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.planning import full_bytes
from trainwright.train.parallel.recompute import selective_options
from trainwright.train.parallel.recompute.measure import measure_chain
from trainwright.train.parallel.recompute.operation_tape import OperationTape, remaking
from trainwright.train.parallel.recompute.sample_step import tracked_peak
from trainwright.train.parallel.recompute.values import SavedTensor

ALL, KEEP, BACKWARD = OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.BACKWARD


class Gated(nn.Module):
    """Root mean square norms written out, a gate, casts, views of one product."""

    def __init__(self):
        super().__init__()
        self.scale, self.both, self.down = nn.Parameter(torch.ones(32)), nn.Linear(32, 128), nn.Linear(64, 32)

    def forward(self, x):
        normed = self.scale * (x.double() * x.double().square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(x.dtype)
        gate, up = self.both(normed).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Written(nn.Module):
    """Results that are written in place: by activation functions, and by an assignment."""

    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        wide = (self.inside(x) * 2).sigmoid_()
        mask = torch.zeros_like(wide)
        mask[..., ::2] = 1
        return nn.functional.dropout(self.out(wide * mask).tanh(), 0.1) + x


class Mixed(nn.Module):
    """Half precision inside."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 32), nn.Dropout(0.2))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x + self.layers(x).float()


class Image(nn.Module):
    """Batch norms with running statistics, and activations in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3, padding=1),
            nn.BatchNorm2d(4), nn.Hardswish(),
        )  # fmt: skip

    def forward(self, x):
        return x + self.layers(x)


class Stabilised(nn.Module):
    """What the maximum's node saves goes in the forward: no backward comes by."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        made = self.enter(x) * 2
        shifted = made - (made * 3).amax(-1, keepdim=True).detach()
        return self.leave((shifted.exp() + 1e-3).tanh())


def encoder():
    return nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")


class Program(nn.Module):
    """A row of operations drawn by a seed: each makes a value, or writes parts of one that it has made, also twice."""

    def __init__(self, seed):
        super().__init__()
        self.ends = nn.ModuleList((nn.Linear(16, 16), nn.Linear(16, 16)))
        draw = random.Random(seed)
        kinds = ("write", *MADE)
        self.lines = [
            (draw.choice(kinds), draw.random(), draw.random(), draw.choices(range(6), k=4), draw.random() < 0.5)
            for _ in range(draw.randint(3, 8))
        ]

    def forward(self, x):
        values = [layer(x) for layer in self.ends]
        for kind, first, second, parts, fresh in self.lines:
            one, other = (values[int(share * len(values))] for share in (first, second))
            if kind != "write":
                values.append(MADE[kind](one, other))
                continue
            made = torch.zeros_like(one) if fresh else one * 2
            for part in parts:
                to, given = PARTS[part](made), PARTS[part](other)
                to.copy_(
                    (given.sin, (to * 2).cos, lambda to=to, given=given: torch.where(given > 0, 0.3, to))[part % 3]()
                )
            values.append(made.sin())
        return x + sum(values[:-1]) + nn.functional.rrelu(values[-1], training=True)


MADE = {
    "product": lambda one, other: (one * other).tanh(),
    "halves": lambda one, other: torch.cat([one.chunk(2, -1)[0], other[..., 8:].tanh()], -1),
    "cast": lambda one, other: (one.double() * other.double()).sin().float(),
    "noise": lambda one, _: nn.functional.rrelu(one, training=True) * 2,
    "shuffle": lambda one, other: other * one[:, torch.randperm(8)],
    "dropout": lambda one, _: nn.functional.dropout(one, 0.3),
    "activation": lambda one, _: nn.functional.relu(one * 3, inplace=True).sigmoid(),
    "attention": lambda one, other: torch.bmm(one, other.transpose(1, 2)).softmax(-1) @ one,
    "norm": lambda one, other: nn.functional.layer_norm(one + other, (16,)),
}
PARTS = [
    lambda value: value[..., ::2],
    lambda value: value[:, 1:],
    lambda value: value[:, :, 3:11],
    lambda value: value.transpose(0, 1),
    lambda value: value[:2],
    lambda value: value.diagonal(0, 1, 2),
]


BLOCKS = {
    "encoder": encoder,
    "gated": Gated,
    "written": Written,
    "mixed": Mixed,
    "image": Image,
    "stabilised": Stabilised,
}


def subject(name, count=3):
    torch.manual_seed(0)
    if isinstance(name, int):
        return nn.Sequential(*(Program(name) for _ in range(2))), torch.randn(4, 8, 16)
    sample = torch.randn(4, 4, 24, 24) if name == "image" else torch.randn(16, 24, 32)
    return nn.Sequential(*(BLOCKS[name]() for _ in range(count))), sample


@pytest.fixture(autouse=True)
def _free_operations(monkeypatch):
    """Whatever can be made again costs nothing, on any machine."""
    monkeypatch.setattr(selective_options, "_REMADE_SECONDS", 0.0)
    monkeypatch.setattr(selective_options.Stopwatch, "read", lambda _: 0.0)


def trained(model, sample):
    """Gradients, buffers and the next random number after a step."""
    torch.manual_seed(1)
    model.zero_grad()
    model(sample).square().sum().backward()
    found = [each.grad.clone() for each in model.parameters()]
    return [*found, *(each.clone() for each in model.buffers()), torch.rand(1)]


def plan_by(chain, option, *, again):
    """Run every stage by an option, where it has so many; with `again` all but the last in the backward."""
    last = len(chain.stages)
    options = [min(option, len(stage.options)) for stage in chain.stages]
    listed = [
        Operation(KEEP, stage) if again and stage < last else Operation(ALL, stage, None, options[stage - 1])
        for stage in range(1, last + 1)
    ]
    listed += [Operation(ALL, last + 1), Operation(BACKWARD, last + 1), Operation(BACKWARD, last)]
    for stage in range(last - 1, 0, -1):
        listed += [Operation(OperationKind.DELETE, stage, Value.OUTPUT)] if again and stage < last - 1 else []
        listed += [Operation(ALL, stage, None, options[stage - 1])] if again else []
        listed.append(Operation(BACKWARD, stage))
    return memory.Plan.of(chain, tuple(listed), budget_bytes=1 << 40, solver="hand")


@pytest.mark.parametrize("again", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", [*BLOCKS, *range(8)])
def test_by_every_option_a_step_is_that_of_the_model_and_no_larger_than_foreseen(name, again):
    model, sample = subject(name)
    chain = measure_chain(model, sample)
    assert chain.stages[-1].options or isinstance(name, int)
    expected, peaks = trained(copy.deepcopy(model), sample), []
    for option in range(max(len(stage.options) for stage in chain.stages) + 1):
        twin = copy.deepcopy(model)
        plan = plan_by(chain, option, again=again)
        planned = memory.apply(twin, plan)
        assert all(map(torch.equal, expected, trained(planned, sample))), option
        assert tracked_peak(planned, sample) <= plan.peak_bytes
        peaks.append(plan.peak_bytes)
    assert again or min(peaks) < full_bytes(chain)


def test_a_plan_chooses_options_where_they_are_cheaper_than_to_run_blocks_again(tmp_path):
    model, sample = subject("gated")
    chain = measure_chain(model, sample)
    # Seconds as they are on a quiet machine.
    stages = [
        replace(
            stage, forward_seconds=1.0, no_grad_forward_seconds=1.0, backward_seconds=2.0,
            options=tuple(replace(each, forward_seconds=1.0, backward_seconds=2.1) for each in stage.options),
        )
        for stage in chain.stages
    ]  # fmt: skip
    plan = memory.plan(replace(chain, stages=tuple(stages)), budget=0.8)
    assert any(operation.option for operation in plan.operations)
    assert not any(operation.kind is KEEP for operation in plan.operations)
    # What is made again comes with the plan's file.
    plan.save(tmp_path / "plan.json")
    planned = memory.apply(model, memory.Plan.load(tmp_path / "plan.json"))
    expected = trained(copy.deepcopy(model), sample)
    assert tracked_peak(planned, sample) <= plan.budget_bytes
    assert all(map(torch.equal, expected, trained(planned, sample)))


def test_a_forward_that_does_something_else_keeps_more_and_is_right():
    """Numbers of operations are those of the sample; another forward has others."""

    class Changing(Gated):
        wider = False

        def forward(self, x):
            if self.wider:
                x = nn.functional.dropout((x * 3).sin_(), 0.5) * x.exp()
            return super().forward(x)

    torch.manual_seed(0)
    model, sample = nn.Sequential(*(Changing() for _ in range(2))), torch.randn(16, 24, 32)
    chain = measure_chain(model, sample)
    planned = memory.apply(model, plan_by(chain, 9, again=False))
    for block in model:
        block.wider = True
    assert all(map(torch.equal, trained(copy.deepcopy(model), sample), trained(planned, sample)))


def test_a_long_row_of_operations_is_made_again_without_recursion():
    def hold(slot, tensor):
        slot.hold(tensor)

    start = torch.randn(3)
    with OperationTape(range(5000), hold) as tape:
        value = start
        for _ in range(5000):
            value = value * 1.0001
        slot = SavedTensor()
        tape.pack(slot, value)
    with remaking():
        assert torch.equal(slot.held.tensor(lambda source: source.held), value)


def test_what_is_read_before_a_write_is_made_before_it():
    def hold(slot, tensor):
        slot.hold(tensor)

    source = torch.arange(4.0)
    with OperationTape({0}, hold) as tape:
        made = source + 1
        slot = SavedTensor()
        tape.pack(slot, made)
        source.mul_(10)
    with remaking():
        assert torch.equal(slot.held.tensor(lambda given: given.held), torch.arange(4.0) + 1)


class Attending(nn.Module):
    """Attention that says what it attends to, or does not: no parameter shows it."""

    def __init__(self, weights):
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True), weights

    def forward(self, x):
        made, weights = self.attention(x, x, x, need_weights=self.weights)
        return x + made.tanh() + (weights.mean() if self.weights else 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_named_as_the_least_is_enough_whatever_the_clock_says(seed, monkeypatch):
    sample, draw = torch.randn(16, 24, 32), random.Random(seed)
    monkeypatch.setattr(selective_options.Stopwatch, "read", lambda _: draw.random() ** 4)
    model = nn.Sequential(Gated(), Attending(weights=True), Attending(weights=True), Written())
    with pytest.raises(InfeasibleBudget) as caught:
        memory.fit(copy.deepcopy(model), sample, budget=0.2)
    least = caught.value.minimal_bytes
    assert memory.fit(copy.deepcopy(model), sample, budget=least).plan.peak_bytes <= least


def test_blocks_that_differ_in_a_flag_are_measured_apart():
    model = nn.Sequential(*(Attending(weights=each) for each in (True, True, False, False, True, True)))
    stages = measure_chain(model, torch.randn(16, 24, 32)).stages
    assert stages[1].saved_bytes == stages[4].saved_bytes != stages[3].saved_bytes


class Counts(TorchDispatchMode):
    """Counts batch norms, forward."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.native_batch_norm.default
        return func(*args, **(kwargs or {}))


def test_an_operation_is_done_again_once_though_its_node_reads_its_small_results_too():
    """A norm whose result is written in place: the mean and the variance that its backward reads have stayed."""
    model, sample = subject("image", 1)
    chain = measure_chain(model, sample)
    planned = memory.apply(model, plan_by(chain, len(chain.stages[0].options), again=False))
    with Counts() as counts:
        planned(sample).square().sum().backward()
    norms = sum(isinstance(each, nn.BatchNorm2d) for each in model.modules())
    assert norms < counts.count <= 2 * norms


def test_recurrent_layers_are_done_again_as_a_whole_alone():
    """Without gradients their one operation returns no workspace, which its backward reads."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 16)

        def forward(self, x):
            return x + self.out(self.layer(x)[0]).tanh()

    model, sample = nn.Sequential(*(Layer() for _ in range(3))), torch.randn(8, 12, 16)
    chain = measure_chain(model, sample)
    expected = trained(copy.deepcopy(model), sample)
    for option in range(1, 1 + max(len(stage.options) for stage in chain.stages)):
        planned = memory.apply(copy.deepcopy(model), plan_by(chain, option, again=False))
        assert all(map(torch.equal, expected, trained(planned, sample)))
    for budget in (0.9, 0.8):
        planned = memory.fit(copy.deepcopy(model), sample, budget=budget)
        assert all(map(torch.equal, expected, trained(planned, sample)))
