"""Models as people write them: fitted they do the same to the last bit, or are refused with what stands in the way."""

import copy
import pickle
import random
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from trainwright import memory
from trainwright.errors import InfeasibleBudget, UnsupportedModel
from trainwright.train.parallel.recompute.sample_step import tracked_peak

ROWS, WIDTH = 384, 16
BATCH = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)
TOKENS = torch.arange(ROWS * 4).view(ROWS, 4) % 7


class Blocks(nn.Module):
    """Blocks in a row, a head, and a forward that is given."""

    def __init__(self, block, forward=None, count=5, **held):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(block() for _ in range(count)), nn.Linear(WIDTH, 3)
        for name, value in held.items():
            setattr(self, name, value)
        self.own = forward or (lambda self, x: x)

    def forward(self, x):
        x = self.own(self, x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    """A layer, and what is done to its result."""

    def __init__(self, act, **held):
        super().__init__()
        self.act = act
        self.layer = nn.Linear(WIDTH, WIDTH)
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value.clone())
            else:
                setattr(self, name, value)

    def forward(self, x):
        return self.act(self, torch.tanh(self.layer(x)))


def blocks(act, **held):
    return lambda: Blocks(lambda: Block(act, **held))


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Output(OrderedDict):
    """A mapping whose items are attributes."""

    def __getattr__(self, name):
        return self[name]


class Answers(nn.Module):
    """Labels, a mask and flags as arguments; results of a class of its own."""

    def __init__(self, kind):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, WIDTH), nn.Linear(WIDTH, 7)
        self.blocks, self.kind = nn.ModuleList(Block(lambda _, x: x) for _ in range(4)), kind

    def forward(self, ids, *, mask=None, labels=None, return_dict=True):
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + (block(x) if mask is None else block(x) * mask[..., None])
        logits = self.head(x)
        if not return_dict:
            return logits
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(loss=loss, logits=logits) if self.kind is Output else Answer(logits, x)


def shared():
    act, norm = nn.GELU(), nn.BatchNorm1d(WIDTH)
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), norm, act)))


def written(self, y):
    self.count += 1
    self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y - self.mean


def assigned(self, y):
    self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
    return y - self.mean


def unscaled(_, y):
    with torch.no_grad():
        scale = y.abs().mean()
    return y / scale


def half(_, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (y @ y.T @ y).float()


def remembered(self, y):
    self.last = y.detach().mean()
    return y


def constant(_, y):
    out = torch.zeros(ROWS, WIDTH)
    out.index_add_(0, torch.arange(ROWS), y)
    return out


def hooked():
    model = Blocks(lambda: Block(lambda _, y: y))
    model.blocks[1].register_forward_hook(lambda _module, _given, out: out * 1.5)
    model.blocks[2].register_full_backward_hook(lambda _module, gradients, _out: (gradients[0] * 0.5,))
    return model


def sparse():
    act = nn.GELU()
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), act)]
    return nn.Sequential(nn.Embedding(7, WIDTH, sparse=True), *layers)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5))
        self.filter = nn.Parameter(torch.ones(WIDTH // 2 + 1, dtype=torch.cfloat))

    def forward(self, batch):
        x = batch["x"] + batch["more"][0]
        for block in self.blocks:
            x = block(x)
        return torch.fft.rfft(x) * self.filter


class Gated(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.norm = layer, nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return x + self.norm(self.layer(x)).sigmoid() * x


class SharedLayers(nn.Module):
    """Blocks that share layers, which the model lists beside them too, as those of TabNet do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.blocks = nn.ModuleList(Gated(self.layers[place % 2]) for place in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


MODELS = {
    "one activation for all layers": (shared, BATCH),
    "labels": (lambda: Answers(Output), {"ids": TOKENS, "labels": TOKENS}),
    "a mask": (lambda: Answers(Answer), {"ids": TOKENS, "mask": torch.ones(ROWS, 4)}),
    "a flag": (lambda: Answers(Answer), {"ids": TOKENS, "return_dict": False}),
    "nested arguments, a complex result": (Spectrum, ({"x": BATCH, "more": [BATCH]},)),
    "buffers written": (blocks(written, mean=torch.zeros(WIDTH), count=torch.tensor(0)), BATCH),
    "buffers assigned": (blocks(assigned, mean=torch.zeros(WIDTH)), BATCH),
    "a part without gradients": (blocks(unscaled), BATCH),
    "a part in half precision": (blocks(half), BATCH),
    "an attribute set": (blocks(remembered), BATCH),
    "a constant written": (blocks(constant), BATCH),
    "Python's numbers": (blocks(lambda _, y: y * (1 + random.random())), BATCH),
    "numpy's numbers": (blocks(lambda _, y: y + np.random.rand()), BATCH),  # noqa: NPY002
    "torch's numbers": (blocks(lambda _, y: y + torch.randn(WIDTH)), BATCH),
    "what a tensor is": (blocks(lambda _, y: y * 2 if isinstance(y, torch.Tensor) else y), BATCH),
    "what a tensor holds": (blocks(lambda _, y: y * 2 if y.sum() > 0 else y), BATCH),
    "hooks": (hooked, BATCH),
    "layers that blocks share": (SharedLayers, BATCH),
    "sparse gradients": (sparse, TOKENS),
}


def built(name):
    torch.manual_seed(0)
    make, sample = MODELS[name]
    return make(), sample


def tensors(out):
    if isinstance(out, torch.Tensor):
        return [torch.view_as_real(out) if out.is_complex() else out]
    values = out.values() if isinstance(out, dict) else vars(out).values()
    return [each for each in values if each is not None]


def trained(model, sample, *, steps=2, between=lambda _: None):
    """Results, gradients, buffers and random numbers of a few steps."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(**sample) if isinstance(sample, dict) else model(*sample if isinstance(sample, tuple) else [sample])
        sum(each.pow(2).sum() for each in tensors(out)).backward()
        found += [type(out), *(each.detach().clone() for each in (*tensors(out), *model.buffers()))]
        found += [each.grad.to_dense().clone() for each in model.parameters() if each.grad is not None]
        optimizer.step()
        between(model)
    return [*found, torch.get_rng_state(), random.random(), np.random.rand()]  # noqa: NPY002


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def fitted(make):
    """Return the model in the least budget that its refusal names."""
    model, sample = make()
    try:
        return memory.fit(model, sample, budget=40 * 1024)
    except InfeasibleBudget as error:
        return memory.fit(model, sample, budget=error.minimal_bytes)


@pytest.mark.parametrize("name", MODELS)
def test_steps(name):
    """Fitted to little memory, a model trains as it does by itself, and fitting leaves nothing behind."""
    model, sample = built(name)
    before = [*map(set, map(vars, model.modules()))], torch.get_rng_state(), random.getstate()
    module = fitted(lambda: (model, sample))
    assert before[0] == [*map(set, map(vars, model.modules()))]
    assert torch.equal(before[1], torch.get_rng_state())
    assert before[2] == random.getstate()
    assert module.plan.solver != "none"
    assert same(trained(*built(name)), trained(module, sample))


def doubled(_, y):
    return y * 2


class Overwrites(Block):
    """A block that changes what it is given, as an activation in place at its beginning does."""

    def forward(self, x):
        return super().forward(x * 1 if self.first else x.relu_())


class Counts(Block):
    """A block that does something else each time it is called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def overwriting():
    model = Blocks(lambda: Overwrites(doubled, first=False))
    model.blocks[0].first = True
    return model


def prehooked():
    model = Blocks(lambda: Block(doubled))
    model.blocks[1].register_forward_pre_hook(lambda _module, given: (given[0] * 2,))
    return model


def sharing():
    """Blocks that add to the same buffer."""
    model = blocks(written, mean=torch.zeros(WIDTH), count=torch.tensor(0))()
    for block in model.blocks:
        block.mean, block.count = model.blocks[0].mean, model.blocks[0].count
    return model


ODD = {
    "what it is given is overwritten": overwriting,
    "something else each time": lambda: Blocks(lambda: Counts(doubled)),
    "a hook changes the input": prehooked,
    "blocks share their state": sharing,
    "a view of the input": lambda: nn.Sequential(*(each for _ in range(4) for each in (
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), nn.Sequential(nn.Flatten(), nn.Identity())))),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_blocks_that_cannot_run_again_are_kept(name):
    """Whatever a block does to others, a step is that of the model."""
    torch.manual_seed(0)
    model = ODD[name]()
    plain = copy.deepcopy(model)
    assert same(trained(plain, BATCH), trained(fitted(lambda: (model, BATCH)), BATCH))


class Cooled(nn.Module):
    """A mask that may be None, a temperature that goes down, dropout by hand."""

    def __init__(self):
        super().__init__()
        self.layer, self.temperature = nn.Linear(WIDTH, WIDTH), 1.0

    def forward(self, x, mask=None):
        x = self.layer(x) * self.temperature
        x = x.relu() if mask is None else x * mask
        return nn.functional.dropout(x, 0.1, self.training)


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Cooled() for _ in range(6))

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x) if mask is None else block(x, mask=mask)
        return x


def test_what_a_forward_reads_may_change():
    """Attributes, modes of parts, arguments and modules are those of each call."""

    def cool(model):
        for block in model.blocks:
            block.temperature *= 0.5

    def cut(model):
        model.blocks[2] = nn.Sequential(nn.Tanh(), nn.Dropout(0.5))

    torch.manual_seed(0)
    module = fitted(lambda: (Called(), (BATCH, BATCH.square())))
    torch.manual_seed(0)
    plain = Called()
    assert module.plan.solver != "none"
    for sample in ((BATCH, BATCH.square()), (BATCH[:50], BATCH[:50].square()), BATCH):
        assert same(trained(plain, sample, between=cool), trained(module, sample, between=cool))
    assert same(trained(plain, BATCH, between=cut), trained(module, BATCH, between=cut))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@pytest.mark.parametrize("least", [True, False])
def test_copies_train_by_themselves(copied, least):
    """A copy of a fitted module keeps to the plan with parameters of its own, in training and evaluation."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    model = copy.deepcopy(plain)
    module = fitted(lambda: (model, BATCH)) if least else memory.fit(model, BATCH, budget=1.0)
    twin = copied(module)
    trained(module, BATCH)
    assert same(trained(plain, BATCH), trained(twin, BATCH))
    assert torch.equal(plain.eval()(BATCH), twin.eval()(BATCH))
    twin.train()
    assert tracked_peak(twin, BATCH) <= twin.plan.budget_bytes


def test_compiling_around_it_leaves_it_as_it_is():
    """What `torch.compile` makes of a fitted module trains by the plan."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    module = fitted(lambda: (copy.deepcopy(plain), BATCH))
    assert module.plan.solver != "none"
    around = torch.compile(module, backend="eager")
    assert same(trained(plain, BATCH), trained(around, BATCH))
    assert tracked_peak(around, BATCH) <= module.plan.budget_bytes


class Shifted(nn.Linear):
    """A layer with a parameter that all of its kind share."""

    def __init__(self, offset):
        super().__init__(WIDTH, WIDTH)
        self.offset = offset

    def forward(self, x):
        return torch.tanh(super().forward(x) + self.offset)


class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        offset = nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.ModuleList(Shifted(offset) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_parameters_are_those_of_the_forward():
    """Others for one call are there when parts of it run again; written since they are refused, as is torch.func."""
    module = fitted(lambda: (Offset(), BATCH))
    assert module.plan.solver != "none"
    found = []
    for model in (module, Offset()):
        own = {name: torch.full_like(each, 0.05).requires_grad_() for name, each in module.named_parameters()}
        torch.func.functional_call(model, own, (BATCH,)).pow(2).sum().backward()
        found.append([each.grad for each in own.values()])
    assert same(*found)
    loss = module(BATCH).sum()
    with torch.no_grad():
        module.layers[0].bias += 1  # which a linear layer's own backward does not read
    with pytest.raises(UnsupportedModel, match="step after it"):
        loss.backward()
    with pytest.raises(UnsupportedModel, match=r"torch\.func"):
        torch.func.vmap(module)(BATCH)


def test_a_forward_of_the_object_is_refused():
    """Where it would be passed by."""
    model = Offset()
    model.forward = lambda x: x
    with pytest.raises(UnsupportedModel, match="that of its class, Offset"):
        memory.fit(model, BATCH, budget=0.5)
