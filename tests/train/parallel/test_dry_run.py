"""A dry run tells, without ranks, what a set-up on real ranks would refuse or fail at."""

import pytest
import small_models
import torch
from rank_group import plan_of
from torch import nn

from trainwright.cluster import Cluster
from trainwright.plan import Oracle
from trainwright.profile import Profile
from trainwright.train.parallel.dry_run import DryRun, refusal_on

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Doubled(nn.Conv2d):
    """A convolution with a forward pass of its own, whose filters nobody can divide."""

    def forward(self, x):
        """Return twice what its weight makes of the positive part."""
        return 2 * nn.functional.conv2d(x.relu(), self.weight, self.bias)


def sample():
    return torch.zeros(8, 6, 6)


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"context": 2}, {"pipeline": 2}, {"tensor": 2, "data": 2}])
def test_what_is_set_up_has_no_refusal(degrees):
    schedule = {"schedule": "1f1b", "microbatches": 2} if "pipeline" in degrees else {}
    layout = plan_of(**degrees, **schedule)
    assert refusal_on(small_models.Transformer("separate"), sample(), layout) == ""


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("axis", ["filter", "channel", "spatial"])
def test_images_are_divided(axis, device):
    """A U-Net of volumes, and a chain of convolutions: what ranks run is not refused, and what they cannot is."""
    with torch.device(device):
        images = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(288, 2)
        )
        unet = small_models.UNet()
        grouped = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, padding=1), nn.Conv2d(8, 8, 3, groups=2, padding=1))
    layout = plan_of(**{axis: 2})
    assert refusal_on(images, torch.zeros(2, 3, 8, 8), layout) == ""
    assert refusal_on(unet, torch.zeros(2, 3, 16, 12), layout) == ""
    assert bool(refusal_on(grouped, torch.zeros(2, 4, 8, 8), layout)) == (axis != "spatial")


def test_what_fails_says_why():
    """Convolutions have no blocks and no experts to divide; three experts are not for two ranks."""
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2))
    assert "no list of transformer blocks" in refusal_on(images, torch.zeros(2, 3, 8, 8), plan_of(tensor=2))
    assert "has no experts that are called as" in refusal_on(images, torch.zeros(2, 3, 8, 8), plan_of(expert=2))
    assert "the 4 experts of blocks.0.experts cannot be divided by 3" in refusal_on(
        small_models.Mixture(), torch.zeros(6, 8, 6), plan_of(expert=3)
    )
    assert refusal_on(small_models.Mixture(), torch.zeros(8, 8, 6), plan_of(expert=2)) == ""


def test_a_ranking_says_of_each_plan_why_the_model_is_not_set_up():
    model, batch = nn.Sequential(Doubled(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2)), torch.zeros(8, 3, 8, 8)
    oracle, profile = Oracle(Cluster.preset("dgx-a100")), Profile.trace(model, batch)
    plain = oracle.rank(profile, batch=8, devices=2)
    marked = oracle.rank(profile, batch=8, devices=2, dry_run=DryRun(model, batch))
    assert [plan.layout for plan in marked] == [plan.layout for plan in plain]
    for plan in marked:
        assert plan.refusal == refusal_on(model, batch, plan)
    assert any(plan.refusal for plan in marked) > any(plan.refusal for plan in plain)


def test_after_enough_plans_that_run_nothing_is_said():
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2))
    dry_run = DryRun(images, torch.zeros(2, 3, 8, 8), enough=1)
    assert dry_run(plan_of(tensor=2))  # none has run yet
    assert not dry_run(plan_of(data=2))
    assert not dry_run(plan_of(context=2))
    assert dry_run(plan_of(tensor=2))  # known


def test_an_operation_that_fake_tensors_do_not_know_is_no_refusal():
    """Grouped products of experts in float32, which only their kernel on real tensors computes."""
    model = Experts()
    model(torch.randn(6, 8)).square().sum().backward()
    layout = plan_of(pipeline=2, schedule="1f1b", microbatches=2)
    assert refusal_on(nn.Sequential(model, model.another()), torch.zeros(6, 8), layout) == ""


class Experts(nn.Module):
    """Two experts, of which each sees half of the rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 8))

    def another(self):
        return type(self)()

    def forward(self, x):
        ends = torch.tensor([len(x) // 2, len(x)], dtype=torch.int32)
        return nn.functional.grouped_mm(x, self.weight, offs=ends)
