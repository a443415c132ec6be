"""A plan that is carried out: gradients, outputs, buffers and random generators as without, bit by bit."""

import copy

import pytest
import torch
from torch import nn

from memory_operations import backward, delete, forward_all, forward_drop, forward_keep, prefetch
from trainwright.errors import ChainError, UnsupportedModel
from trainwright.plan.memory.operations import Value
from trainwright.train.parallel.recompute.entry import carry_out
from trainwright.train.parallel.recompute.interpreter import PlanInterpreter
from trainwright.train.parallel.recompute.stage_calls import find_stages, stage_calls, stage_sites


class Net(nn.Module):
    """Convolutions, batch normalisation, a skip, dropout, and a second argument that rides along."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x, scale=1.0):
        x = torch.relu(self.norms[0](self.a(x)))
        x = x + torch.relu(self.norms[1](self.b(x)))
        return self.head(self.drop(x).mean((2, 3))) * scale


class Tied(nn.Module):
    """An embedding that is the head too, and a mask that every layer reads."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x, mask):
        x = self.tokens(x)
        for layer in self.layers:
            x = x + layer(x) * mask
        return self.head(x)


class Pair(nn.Module):
    """A module whose forward unpacks a shape, which symbolic tracing cannot."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(self.inner(x) + x)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        rows, width = x.shape
        return self.linear(x).view(rows, width)


class Levels(nn.Module):
    """A U-Net in small: two values skip most of the layers, one of them is read twice."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.down = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(9))
        self.drop, self.mix = nn.Dropout(0.2), nn.Conv2d(8, 4, 1)
        self.up = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(9))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        first = self.enter(x)
        y = nn.functional.max_pool2d(first, 2)
        second = torch.tanh(self.down[0](y))
        for layer in self.down[1:]:
            y = torch.relu(layer(y))
        y = self.drop(y) + second
        y = self.mix(torch.cat([nn.functional.interpolate(y, scale_factor=2), first], 1))
        for layer in self.up:
            y = torch.tanh(layer(y))
        return self.head(y + first * second.mean())


def mlp():
    return nn.Sequential(
        nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.5), nn.Sequential(nn.Linear(9, 9), nn.ReLU(inplace=True)),
        nn.BatchNorm1d(9), nn.Linear(9, 2),
    )  # fmt: skip


CASES = {
    "convolutions": (Net, lambda: (torch.randn(4, 3, 6, 6),)),
    "tied": (Tied, lambda: (torch.randint(11, (4, 5)), torch.ones(4, 5, 1))),
    "sequence": (mlp, lambda: (torch.randn(8, 6),)),
    "skips": (Levels, lambda: (torch.randn(2, 2, 8, 8),)),
    "opaque": (lambda: nn.Sequential(Pair(), Pair()), lambda: (torch.randn(8, 6),)),
}


def keep_all(count):
    stages = range(1, count + 2)
    return [*map(forward_all, stages), *map(backward, reversed(stages))]


def keep_outputs(count):
    plan = [*(forward_keep(stage) for stage in range(1, count + 1)), forward_all(count + 1), backward(count + 1)]
    for stage in range(count, 0, -1):
        plan += [delete(Value.OUTPUT, stage), forward_all(stage), backward(stage)]
    return plan


def keep_nothing(count):
    """Every stage is run again from the input before its backward; its own input goes in between, and comes again."""
    plan = [forward_keep(1), *map(forward_drop, range(2, count + 1)), forward_all(count + 1), backward(count + 1)]
    plan.append(delete(Value.OUTPUT, count))
    for stage in range(count, 0, -1):
        inputs = [forward_keep(1), *map(forward_drop, range(2, stage))] if stage > 1 else []
        plan += [*inputs, forward_all(stage)]
        if stage > 1:
            plan += [delete(Value.OUTPUT, stage - 1), *inputs]
        plan.append(backward(stage))
        if stage > 1:
            plan.append(delete(Value.OUTPUT, stage - 1))
    return plan


PLANS = [keep_all, keep_outputs, keep_nothing]


def step(model, arguments, seed, *, bf16=False, passes=1):
    """Return all that a training step leaves behind."""
    torch.manual_seed(seed)
    model.zero_grad()
    for _ in range(passes):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            out = model(*arguments)
        out.float().pow(2).mean().backward()
    gradients = [p.grad for p in model.parameters()]
    return [out.detach(), *gradients, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


def same(one, other):
    return len(one) == len(other) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("case", CASES)
class TestBitwise:
    def test_steps(self, case, plan):
        """Three steps in a row leave outputs, gradients, buffers and generators as the plain model does."""
        plain, planned, arguments, _ = both(case, plan)
        for seed in range(3):
            assert same(step(plain, arguments, seed), step(planned, arguments, seed))

    def test_bf16_and_accumulation(self, case, plan):
        """So do two passes under autocast whose gradients add up."""
        plain, planned, arguments, _ = both(case, plan)
        for seed in range(2):
            ends = [step(model, arguments, seed, bf16=True, passes=2) for model in (plain, planned)]
            assert same(*ends)

    def test_frozen(self, case, plan):
        """Frozen parameters get no gradient, the others the same."""
        plain, planned, arguments, _ = both(case, plan, frozen=True)
        assert same(step(plain, arguments, 0), step(planned, arguments, 0))

    def test_face(self, case, plan):
        """The module is of the model's class, with its keys, and in evaluation runs as the model itself."""
        plain, planned, arguments, _ = both(case, plan)
        assert type(planned) is type(plain)
        assert list(planned.state_dict()) == list(plain.state_dict())
        assert torch.equal(plain.eval()(*arguments), planned.eval()(*arguments))


def both(case, plan, *, frozen=False):
    make, arguments = CASES[case]
    torch.manual_seed(1)
    plain = make()
    if frozen:
        for parameter in list(plain.parameters())[:3]:
            parameter.requires_grad_(False)
    other = copy.deepcopy(plain)
    names = called_stages(other, arguments())
    return plain, carry_out(other, names, plan(len(names))), arguments(), names


def called_stages(model, arguments):
    """Return the names of a model's stages in the order of the calls."""
    names = []

    def call(site, forward, args, kwargs):
        names.append(site.name)
        return forward(*args, **kwargs)

    twin = copy.deepcopy(model)
    with torch.random.fork_rng(), stage_calls(twin, stage_sites(twin, find_stages(twin)), call) as forward:
        forward(*arguments)
    return names


@pytest.mark.parametrize("plan", PLANS)
def test_gradient_of_the_input(plan):
    """An input that wants a gradient gets the same."""
    plain, planned, (x,), _ = both("sequence", plan)
    found = []
    for model in (plain, planned):
        torch.manual_seed(0)
        given = x.clone().requires_grad_()
        model(given).pow(2).sum().backward()
        found.append(given.grad)
    assert torch.equal(*found)


def test_found_stages():
    """Stages are elements of lists, rows of layers from one with weights to the next, and named modules."""
    assert find_stages(Tied()) == ("layers.0", "layers.1", "layers.2")
    assert find_stages(mlp()) == ("0:3", "3", "4:6")
    assert find_stages(nn.Linear(2, 2)) == ("",)
    assert find_stages(Levels(), ["down.?", "mix"]) == (*(f"down.{each}" for each in range(9)), "mix")
    with pytest.raises(UnsupportedModel, match=r"'h\.\*', which no module of Levels matches"):
        find_stages(Levels(), ["h.*"])


def test_dropped_graphs_go():
    """A graph that a plan deletes without a backward gives its bytes back."""
    from trainwright.model.trace.storages import StorageTracker

    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x = torch.randn(64, 64)
    peaks = []
    for reruns in (1, 6):
        plan = [*(forward_keep(stage) for stage in range(1, 5)), forward_all(5), backward(5)]
        plan += [operation for _ in range(reruns) for operation in (forward_all(2), delete(Value.SAVED, 2))]
        plan += [
            each
            for stage in (4, 3, 2, 1)
            for each in (delete(Value.OUTPUT, stage), forward_all(stage), backward(stage))
        ]
        module = carry_out(model, find_stages(model), plan)
        tracker = StorageTracker()
        with tracker:
            module(x).sum().backward()
        peaks.append(tracker.peak_bytes)
        model.zero_grad()
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("plan", [keep_all, keep_outputs])
def test_a_second_backward(plan):
    """A graph that is retained can be walked again, and its gradients add up as the plain model's do."""
    plain, planned, arguments, _ = both("convolutions", plan)
    found = []
    for model in (plain, planned):
        torch.manual_seed(0)
        loss = model(*arguments).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([p.grad for p in model.parameters()])
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert same(*found)


class Counted(nn.Linear):
    """A layer that counts its runs to the end, and those that were begun."""

    def __init__(self):
        super().__init__(4, 4)
        self.begun = self.ended = 0

    def forward(self, x):
        self.begun += 1
        out = super().forward(x).tanh()
        out = torch.cat([out, out], 1)  # saves nothing
        self.ended += 1
        return out[:, :4]


class TestReruns:
    def test_a_run_that_nobody_reads(self):
        """It ends with what is saved last; the others go to their end."""
        model = nn.Sequential(*(Counted() for _ in range(6)))
        listed = [forward_keep(1), forward_drop(2), forward_drop(3), *map(forward_all, (4, 5, 6, 7)), backward(7)]
        listed += [*map(backward, (6, 5, 4)), delete(Value.OUTPUT, 3), *map(forward_all, (1, 2, 3))]
        listed += map(backward, (3, 2, 1))
        carry_out(model, [str(place) for place in range(6)], listed)(torch.randn(3, 4)).sum().backward()
        assert [layer.begun for layer in model] == [2, 2, 2, 1, 1, 1]
        assert [layer.ended for layer in model] == [2, 2, 1, 1, 1, 1]

    def test_runs_that_differ(self):
        """A stage that saves another number of values when it is run again is an error."""

        class Fickle(nn.Linear):
            turns = 0

            def forward(self, x):
                self.turns += 1
                return super().forward(x).tanh() if self.turns == 1 else super().forward(x)

        model = nn.Sequential(Fickle(4, 4), nn.Linear(4, 4))
        loss = carry_out(model, find_stages(model), keep_outputs(2))(torch.randn(3, 4)).sum()
        with pytest.raises(UnsupportedModel, match="another number"):
            loss.backward()


class TestRefusals:
    def test_second_derivatives(self):
        _, planned, (x,), _ = both("sequence", keep_outputs)
        x.requires_grad_()
        with pytest.raises(UnsupportedModel, match="create_graph=True"):
            torch.autograd.grad(planned(x).sum(), x, create_graph=True)

    def test_a_second_backward_of_what_has_gone(self):
        _, planned, arguments, _ = both("sequence", keep_nothing)
        loss = planned(*arguments).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(UnsupportedModel, match="second pass"):
            loss.backward()

    def test_evaluation_mode(self):
        with pytest.raises(UnsupportedModel, match="evaluation mode"):
            carry_out(mlp().eval(), ["0"], keep_all(1))

    def test_lazy_parameters(self):
        with pytest.raises(UnsupportedModel, match="without a shape"):
            carry_out(nn.Sequential(nn.LazyLinear(3)), ["0"], keep_all(1))

    @pytest.mark.parametrize("plan", [[forward_all(1)], [forward_all(1), prefetch(Value.OUTPUT, 1)]])
    def test_other_operations(self, plan):
        with pytest.raises(ChainError, match=r"allowed: "):
            carry_out(nn.Sequential(nn.Linear(2, 2)), ["0"], plan)

    def test_an_input_that_is_written(self):
        """A stage that changes what the stage before has handed on is found, not trained wrongly."""

        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                return y * x.mul_(2.0)

        model = nn.Sequential(nn.Linear(4, 4), Writes())
        for plan, error in ((keep_all, RuntimeError), (keep_outputs, UnsupportedModel)):
            with pytest.raises(error, match=r"in-?place| in place"):
                carry_out(model, find_stages(model), plan(2))(torch.randn(3, 4)).sum().backward()


def test_stages_that_are_only_kept_are_left_to_the_model():
    acts = (
        *(forward_all(1), forward_keep(2), forward_all(3)),
        *(backward(3), delete(Value.OUTPUT, 2), forward_all(2), backward(2), backward(1)),
    )
    assert PlanInterpreter(("a", "b", "c"), acts).active == ("b",)
    # One that has its input dropped meanwhile, or after whose forward something goes, is not only kept.
    acts = (*(forward_keep(1), forward_all(2), delete(Value.OUTPUT, 1)), *(backward(2), forward_all(1), backward(1)))
    assert PlanInterpreter(("a", "b"), acts).active == ("a", "b")
