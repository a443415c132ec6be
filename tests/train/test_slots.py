"""Slots: parameters, buffers and losses are equal to the last bit on one, two and four ranks."""

import hashlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rank_processes import on_processes
from trainwright.errors import TrialError
from trainwright.train import Loader, Slots

SLOTS, STEPS = 4, 5


class Images:
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(40, 3, 6, 6, generator=generator)
        self.labels = torch.randint(4, (40,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index] + 0.1 * torch.randn(3, 6, 6), self.labels[index]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(128, 4)
    )


def loss_of(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def train(slots_of=SLOTS, seed=0):
    """Return the losses and a digest of all that five steps of Adam leave; on this rank of its group."""
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    slots = Slots(model, count=slots_of, seed=7)
    loader = Loader(Images(), global_batch=8, seed=7, drop_last=True)
    losses = []
    for batch in loader:
        losses.append(slots.backward(batch, loss_of).item())
        optimizer.step()
    state = [*model.state_dict().values(), *optimizer.state[next(model.parameters())].values()]
    digest = hashlib.blake2b(b"".join(value.numpy().tobytes() for value in state)).hexdigest()
    return {"losses": losses, "digest": digest, "draw": torch.rand(2).tolist()}


def member(rank, world, store):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found = train(seed=rank)  # other models at the start: that of rank 0 counts
    torch.distributed.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield train()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("world", [2, 4])
def test_the_same_to_the_last_bit_on_any_number_of_ranks(alone, tmp_path, world):
    """Batch normalisation, dropout, augmentation and Adam's moments; and what is drawn afterwards."""
    found = on_processes(member, [(rank, world, tmp_path / "store") for rank in range(world)])
    for result in found:
        assert (result["losses"], result["digest"]) == (alone["losses"], alone["digest"])
    assert found[0] == alone


def test_one_slot_is_plain_training_but_for_its_seeds():
    """Without dropout, the gradient of one slot is that of the whole batch."""
    model, plain = network()[:2], network()[:2]
    batch = [Images().images[:8]]
    Slots(model, count=1, seed=0).backward(batch, lambda model, batch: model(batch[0]).square().mean())
    plain(batch[0]).square().mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)


def test_gradients_are_the_mean_over_slots():
    """Up to rounding, and for a loss without batch statistics, as in one batch."""
    model = nn.Linear(3, 2)
    batch = torch.randn(12, 3)
    loss = Slots(model, count=4, seed=0).backward(batch, lambda model, x: model(x).square().mean())
    got = model.weight.grad.clone()
    model.zero_grad()
    whole = model(batch).square().mean()
    whole.backward()
    torch.testing.assert_close(got, model.weight.grad)
    torch.testing.assert_close(loss, whole.detach())


def test_training_draws_on_undisturbed():
    torch.manual_seed(5)
    expected = torch.rand(2)
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    torch.manual_seed(5)
    Slots(model, count=2, seed=0).backward(torch.randn(4, 3), lambda model, x: model(x).sum() + torch.rand(()))
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), expected)


def test_every_step_and_slot_draws_its_own():
    """Dropout differs between slots and steps, and is the same again after a resume."""
    masks = []
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    model[0].register_forward_hook(lambda *_: torch.ones(1, 64))

    def loss(model, batch):
        found = model(batch)
        masks.append(tuple(found.flatten().tolist()))
        return found.sum() * model[0].weight.sum()

    slots = Slots(model, count=2, seed=0)
    slots.backward(torch.ones(2, 64), loss)
    state = slots.state_dict()
    slots.backward(torch.ones(2, 64), loss)
    assert len(set(masks)) == 4
    again = Slots(model, count=2, seed=0)
    again.load_state_dict(state)
    again.backward(torch.ones(2, 64), loss)
    assert masks[4:] == masks[2:4]


def test_batches_of_all_kinds_are_cut():
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    seen = []

    def loss(model, part):
        seen.append(part)
        return model(x).sum()

    for batch in ({"x": x, "more": [x]}, [x, x], (x, (x,))):
        seen.clear()
        Slots(model, count=2, seed=0).backward(batch, loss)
        assert [type(part) for part in seen] == [type(batch)] * 2


def test_bad_input():
    with pytest.raises(TrialError, match="positive multiple of the world size 1, got 0"):
        Slots(nn.Linear(1, 1), count=0, seed=0)
    slots = Slots(nn.Linear(1, 1), count=4, seed=0)
    with pytest.raises(TrialError, match="a batch of 6 cannot be cut into 4 slots of one size; give the loader drop"):
        slots.backward(torch.ones(6, 1), loss_of)
    with pytest.raises(TrialError, match="a batch of str cannot be cut"):
        slots.backward("abcd", loss_of)
    with pytest.raises(TrialError, match="the checkpoint has 8 slots, got count=4"):
        slots.load_state_dict({"steps": 3, "count": 8})
