"""The front of ensembles, picks from it, baselines and scores."""

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Front, leave
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.ensemble.selection.front import FrontPoint
from trainwright.errors import EnsembleError


@pytest.fixture(scope="module")
def front(filled) -> Front:
    return filled.library().select(BudgetedGreedy(max_members=4))


class TestFront:
    def test_points(self, front):
        """No point dominates another, and neither a single nor a top-k dominates a point."""
        points = front.points
        assert len(points) > 5
        assert [point.loss for point in points] == sorted(point.loss for point in points)
        rivals = [*points, *front.baselines.values()]
        for point in points:
            assert len(point.members) <= 4
            assert sum(point.weights) == pytest.approx(1.0)
            assert not any(dominates(rival, point) for rival in rivals)

    def test_loss_and_cost_of_a_point(self, front):
        for point in front.points:
            ensemble = front.ensemble(point)
            assert ensemble.score("selection", "cross_entropy") == pytest.approx(point.loss, abs=1e-12)
            assert ensemble.cost_seconds == point.seconds_per_row
            assert ensemble.nbytes == point.bytes
            assert point.seconds_per_row == pytest.approx(sum(0.001 * (trial + 1) for trial in point.members))

    def test_pick(self, front):
        assert front.pick() == front.ensemble(front.points[0])
        cheap = front.pick(max_seconds=0.004)
        assert cheap.cost_seconds <= 0.004
        within = [point.loss for point in front.points if point.seconds_per_row <= 0.004]
        assert cheap.score("selection", "cross_entropy") == pytest.approx(min(within))
        assert front.pick(max_bytes=12).nbytes <= 12

    @pytest.mark.parametrize(
        ("how", "limits", "sentence"),
        [
            ("knee", {}, r"got 'knee'; allowed: best, fallback"),
            ("best", {"max_seconds": 1e-6}, "max_seconds: got 1e-06; allowed: at least 0.001"),
            ("best", {"max_bytes": 3}, "max_bytes: got 3; allowed: at least 4"),
        ],
    )
    def test_refusals(self, front, how, limits, sentence):
        with pytest.raises(EnsembleError, match=sentence):
            front.pick(how, **limits)

    def test_limits_that_no_point_keeps_together(self):
        points = (
            FrontPoint(loss=0.1, seconds_per_row=2.0, bytes=1, members=(0,), weights=(1.0,)),
            FrontPoint(loss=0.2, seconds_per_row=1.0, bytes=2, members=(1,), weights=(1.0,)),
        )
        front = Front(
            points=points, baselines={}, scored_by=METRICS["accuracy"], split="selection", excluded={},
            strategy=BudgetedGreedy(), candidates=None,
        )  # fmt: skip
        with pytest.raises(
            EnsembleError,
            match="max_bytes: got 1; allowed: at least 2, the cheapest point's of those within max_seconds",
        ):
            front.pick(max_seconds=1.0, max_bytes=1)

    def test_costs_unknown(self, study):
        for number in range(4):
            study.leave(number)
        front = study.library().select(BudgetedGreedy())
        assert len(front.points) == 1
        assert (front.points[0].seconds_per_row, front.points[0].bytes) == (None, None)
        assert front.pick().cost_seconds is None
        with pytest.raises(EnsembleError, match=r"max_seconds: got 1\.0, but the members' seconds are not known"):
            front.pick(max_seconds=1.0)

    def test_baselines(self, front):
        assert list(front.baselines) == ["single best", "top-2", "top-3", "top-4", "caruana"]
        losses = [front.ensemble(FrontPoint(**alone(trial))).score("selection", "cross_entropy") for trial in range(8)]
        order = np.argsort(losses)
        for count, point in enumerate(list(front.baselines.values())[:4], start=1):
            assert point.members == tuple(sorted(order[:count]))
            assert point.weights == (1 / count,) * count

    def test_baselines_without_limits_and_without_choice(self, filled, front):
        """Caruana's run knows no limit."""
        library = filled.library()
        candidates, _ = library.candidates(METRICS["cross_entropy"], "selection")
        scorer = make_scorer(candidates, METRICS["cross_entropy"])
        free = BudgetedGreedy(max_members=8).run(candidates, scorer)
        caruana = front.baselines["caruana"]
        assert caruana.loss == pytest.approx(scorer.loss(free.picks), abs=1e-12)
        assert caruana.loss <= front.points[0].loss
        assert library.select(BudgetedGreedy(max_members=4)).baselines == front.baselines


class TestEnsemble:
    def test_score_on_test_rows(self, filled, front):
        ensemble = front.pick()
        labels = filled.targets["test"]
        mean = sum(
            weight * filled.predictions(member.trial, skill=1 + member.trial / 8)["test"]
            for member, weight in zip(ensemble.members, ensemble.weights, strict=True)
        )
        true = mean[np.arange(len(labels)), labels]
        assert ensemble.score() == np.mean(mean.argmax(axis=1) == labels)
        assert ensemble.score("test", "cross_entropy") == pytest.approx(-np.log(true).mean(), abs=1e-6)
        squared = ((mean - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
        assert ensemble.score("test", "squared_error") == pytest.approx(squared, abs=1e-3)
        np.testing.assert_allclose(ensemble.predictions("test"), mean, atol=1e-3)

    def test_a_true_class_of_probability_zero(self, study):
        """The score clips as the selection does, member by member, so both give one number."""
        labels = {"selection": np.array([0, 1])}
        for number, rows in enumerate(([[0.0, 1.0], [0.1, 0.9]], [[1.0, 0.0], [0.9, 0.1]])):
            leave(study.trial(number), predictions={"selection": np.array(rows)}, targets=labels)
        front = study.library().select(BudgetedGreedy())
        assert front.points[0].members == (0, 1)
        assert front.pick().score("selection", "cross_entropy") == pytest.approx(front.points[0].loss, abs=1e-12)

    def test_table(self, front):
        rows = front.pick().table()
        assert [row["weight"] for row in rows] == sorted((row["weight"] for row in rows), reverse=True)
        assert all(row["params"] == {"width": row["trial"]} and row["bytes"] == 4 * row["trial"] + 4 for row in rows)

    def test_other_metrics_select_too(self, filled):
        library = filled.library()
        fitting = {name: metric for name, metric in METRICS.items() if "classes" in metric.outputs}
        for name, metric in fitting.items():
            front = library.select(BudgetedGreedy(max_members=3), metric=name)
            score = front.pick().score("selection", name)
            assert float(metric.loss(np.array(score))) == pytest.approx(front.points[0].loss)
            assert front.points[0].loss <= front.baselines["single best"].loss


def alone(trial):
    return {"loss": 0.0, "seconds_per_row": 0.0, "bytes": 0, "members": (trial,), "weights": (1.0,), "places": (trial,)}


def dominates(one, other):
    left, right = ((point.loss, point.seconds_per_row, point.bytes) for point in (one, other))
    return all(a <= b for a, b in zip(left, right, strict=True)) and round(left[0], 12) < round(right[0], 12)
