"""What one device comes to, and how far the ranks of a plan are from it."""

import torch
from torch import nn

from trainwright.train import parallelise

STEPS = 3


def loss_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def batches(shape, target, dtype, samples=8):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(samples, *shape, generator=generator, dtype=torch.float64).to(dtype),
            torch.randn(samples, *target, generator=generator, dtype=torch.float64).to(dtype),
        )
        for _ in range(STEPS)
    ]


def seeded(make, dtype, **settings):
    torch.manual_seed(7)
    return make(**settings).to(dtype)


def distance(make, plan, shape, target, *, dtype=torch.float64, sync_bn=False, parts=1, **settings):
    """Train and evaluate serially and by the plan; return the largest relative difference.

    That is of losses, gradients and parameters, and of what comes out where no gradients are wanted.
    """
    data = batches(shape, target, dtype)
    alone = seeded(make, dtype, **settings)
    ours = parallelise(seeded(make, dtype, **settings), plan, sync_bn=sync_bn)
    assert plan.degrees.pipeline > 1 or len(list(ours.parameters())) == len(list(alone.parameters()))
    one, other = (torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4) for model in (alone, ours))
    worst = 0.0
    for batch in data:
        one.zero_grad()
        other.zero_grad()
        expected = loss_of(alone, batch)
        expected.backward()
        mine = [each.chunk(ours.data_ranks)[ours.data_rank] for each in batch]
        micro = [(1 / parts, cut) for cut in zip(*(each.chunk(parts) for each in mine), strict=True)]
        loss = ours.backward(loss_of, micro)
        worst = max(worst, apart(loss, expected.detach()))
        worst = max(worst, far(gradients(ours.module), gradients(alone)))
        one.step()
        other.step()
    mine = data[0][0].chunk(ours.data_ranks)[ours.data_rank]
    with torch.no_grad():
        worst = max(worst, apart(ours.eval()(mine), alone.eval()(mine)))
    return max(worst, far(dict(ours.module.named_parameters()), dict(alone.named_parameters())))


def gradients(model: nn.Module):
    return {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


def far(found, expected):
    """Compare what this rank holds; in a pipeline that is the parameters of its stages."""
    assert found.keys() <= expected.keys()
    return max((apart(found[name], expected[name]) for name in found), default=0.0)


def apart(found, expected):
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    if found.ndim > expected.ndim:  # of queries, keys and values in one: (outputs, 3, inputs)
        found = found.transpose(0, 1).flatten(0, 1)
        found = found if found.shape == expected.shape else found.T
    found = found.detach().reshape(expected.shape)
    return ((found - expected.detach()).abs().max() / expected.detach().abs().max().clamp_min(1e-3)).item()
