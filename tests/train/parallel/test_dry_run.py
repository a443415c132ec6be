"""A dry run tells, without ranks, what a set-up on real ranks would refuse or fail at."""

import pytest
import small_models
import torch
from rank_group import plan_of
from torch import nn

from trainwright.cluster import Cluster
from trainwright.plan import Oracle
from trainwright.profile import Profile
from trainwright.train.parallel.dry_run import check_ranking, refusal_on

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def sample():
    return torch.zeros(8, 6, 6)


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"context": 2}, {"pipeline": 2}, {"tensor": 2, "data": 2}])
def test_what_is_set_up_has_no_refusal(degrees):
    schedule = {"schedule": "1f1b", "microbatches": 2} if "pipeline" in degrees else {}
    layout = plan_of(**degrees, **schedule)
    assert refusal_on(small_models.Transformer("separate"), sample(), layout) == ""


def test_what_fails_says_why():
    """Convolutions have no blocks to divide; tensors of two kinds do not meet; experts are told by the layout alone."""
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2))
    assert "no list of transformer blocks" in refusal_on(images, torch.zeros(2, 3, 8, 8), plan_of(tensor=2))
    assert "there is no module for expert" in refusal_on(images, torch.zeros(2, 3, 8, 8), plan_of(expert=2))


def test_a_ranking_is_checked_until_enough_plans_run():
    model, batch = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2)), torch.zeros(8, 3, 8, 8)
    ranking = Oracle(Cluster.preset("dgx-a100")).rank(Profile.trace(model, batch), batch=8, devices=2)
    checked = check_ranking(ranking, model, batch, runnable=2)
    assert [plan.layout for plan in checked] == [plan.layout for plan in ranking]
    assert sum(not plan.refusal for plan in checked[:3]) >= 2
