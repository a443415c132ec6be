"""What an optimizer keeps is known before its first step."""

import pytest
import torch
from torch import nn, optim

from trainwright.errors import BudgetError
from trainwright.train.parallel.recompute.optimizer_state import state_bytes

MADE = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: optim.Adam(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    "groups": lambda p: optim.SGD([{"params": p[:1], "momentum": 0.9}, {"params": p[1:]}], lr=0.1),
}


@pytest.mark.parametrize("name", MADE)
def test_before_and_after_the_first_step(name):
    """The state that it will have has the bytes of the state that it then has, to the byte."""
    model = nn.Linear(7, 5)
    optimizer = MADE[name](list(model.parameters()))
    before = state_bytes(optimizer, granule=64)
    model(torch.ones(1, 7)).sum().backward()
    optimizer.step()
    copies = {"sgd": 0, "momentum": 1, "adamw": 2, "amsgrad": 3, "rmsprop": 3}.get(name)
    assert before == state_bytes(optimizer, granule=64)
    if copies is not None:
        assert before == copies * (-(-7 * 5 * 4 // 64) * 64 + 64)


def test_one_that_cannot_be_made_anew():
    class Odd(optim.SGD):
        def __init__(self, parameters, *, must):
            super().__init__(parameters, lr=must)

    with pytest.raises(BudgetError, match="Odd whose state is not known"):
        state_bytes(Odd(nn.Linear(2, 2).parameters(), must=0.1))
