"""Means and variances in a library, and validation rows that are divided."""

import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Library, Member, leave
from trainwright.ensemble.library.member import Split
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.errors import EnsembleError


class TestMoments:
    def leave_all(self, study, far=0.0):
        """Three networks: two good ones whose errors differ, and one that is sure of nonsense."""
        draws = np.random.default_rng(0)
        truth = far + draws.normal(size=80)
        for number, (shift, variance) in enumerate(((0.3, 0.2), (-0.3, 0.2), (2.0, 0.01))):
            pairs = np.stack([truth + shift + 0.2 * draws.normal(size=80), np.full(80, variance)], axis=-1)
            leave(study.trial(number), predictions={"selection": pairs}, targets={"selection": truth})
        return truth

    @pytest.mark.parametrize("far", [0.0, 1e4])
    def test_selection(self, study, far):
        """The mixture of the good ones is picked, and its loss is that of its mean and variance by the formula."""
        truth = self.leave_all(study, far).astype("<f4").astype(float)
        front = study.library().select(BudgetedGreedy())
        assert front.metric == "normal_nll"
        found = front.pick()
        assert [member.trial for member in found.members] == [0, 1]
        pairs = np.stack([member.predictions("selection")[:, 0].astype(float) for member in found.members])
        share = np.array(found.weights)[:, None]
        mean = (share * pairs[..., 0]).sum(axis=0)
        variance = (share * pairs[..., 1]).sum(axis=0) + (share * (pairs[..., 0] - mean) ** 2).sum(axis=0)
        nll = 0.5 * (np.log(2 * np.pi * variance) + (truth - mean) ** 2 / variance)
        assert front.points[0].loss == pytest.approx(nll.mean(), abs=1e-9)
        assert found.score("selection", "normal_nll") == pytest.approx(nll.mean(), abs=1e-9)
        assert found.score("selection", "squared_error") == pytest.approx(((truth - mean) ** 2).mean(), abs=1e-9)

    def test_a_price_with_a_negative_loss(self, study):
        """Losses below 0 are scaled by their distance from the prior's, so a price still prefers cheap members."""
        draws = np.random.default_rng(1)
        truth = draws.normal(size=200)
        for number, error in enumerate((0.01, 0.011)):
            pairs = np.stack([truth + error * draws.normal(size=200), np.full(200, error**2)], axis=-1)
            leave(study.trial(number), predictions={"selection": pairs}, targets={"selection": truth})
        candidates, _ = study.library().candidates(METRICS["normal_nll"], "selection")
        from dataclasses import replace

        priced = replace(candidates, seconds=np.array([8.0, 1.0]))
        scorer = make_scorer(priced, METRICS["normal_nll"])
        assert scorer.loss((0,)) < scorer.loss((1,)) < 0
        assert BudgetedGreedy(cost_weight=1.0, max_additions=3).run(priced, scorer).picks == (1,)
        assert BudgetedGreedy(cost_weight=1e-6, max_additions=3).run(priced, scorer).picks[0] == 0

    def test_refusals(self, study):
        truth, pairs = np.zeros(3), np.ones((3, 2))
        pairs[1, 1] = 0.0
        with pytest.raises(EnsembleError, match=r"row 1 has a variance that is not above 0; .*softplus"):
            leave(study.trial(), predictions={"selection": pairs}, targets={"selection": truth})
        with pytest.raises(EnsembleError, match=r"got shape \(3, 3\) for targets of shape \(3, 1\)"):
            leave(study.trial(), predictions={"selection": np.ones((3, 3))}, targets={"selection": truth})
        leave(study.trial(), predictions={"selection": np.ones((3, 2))}, targets={"selection": truth})
        with pytest.raises(EnsembleError, match=r"that are moments; allowed: squared_error, rmse, .*normal_nll"):
            study.library().select(BudgetedGreedy(), metric="accuracy")

    def test_a_very_small_variance(self, study):
        """It is kept as it is, above 0."""
        pairs = np.stack([np.zeros(5), np.full(5, 1e-9)], axis=-1)
        leave(study.trial(), predictions={"selection": pairs}, targets={"selection": np.zeros(5)})
        member = study.library().members[0]
        assert (member.predictions("selection")[..., 1] > 0).all()


def test_the_best_and_the_cheapest_stay(study):
    """`top` keeps the best members; without costs none is kept for being cheap."""
    for number in range(6):
        study.leave(number, skill=number / 2)
    assert [member.trial for member in study.library().top(2).members] == [4, 5]
    assert len(study.library().top(1).members) == 1


def test_the_undominated_stay(filled):
    """A member that is cheaper than all better ones is kept whatever its loss."""
    assert 0 in [member.trial for member in filled.library().top(1).members]


class TestLargeLibrary:
    def test_never_read_whole_nor_held_open(self, study):
        """More members than files may be open, of which selection by whole rows holds one at a time."""
        folder = study.leave(0)
        told = study.library().members[0]
        split = Split(rows=60, columns=4, digest="x")
        members = [
            Member(
                trial=number,
                epoch=1,
                output="classes",
                splits={"selection": split},
                folder=folder,
                digests=told.digests,
            )
            for number in range(200)
        ]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 30, limits[1]))
        try:
            candidates, _ = Library(members).candidates(METRICS["accuracy"], "selection")
            scorer = make_scorer(candidates, METRICS["accuracy"])
            tracemalloc.start()
            losses = scorer.losses((), np.arange(200))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(set(losses.tolist())) == 1
        assert peak < 200 * 60 * 8 + 40 * 60 * 4 * 8  # one number a row and member, and few rows of one member


class TestDivided:
    def leave_validation(self, study, number, *, ids=True, order=None):
        predictions, targets = study.predictions(number)["test"], study.targets["test"]
        rows = {"validation": np.arange(len(targets)) + 100} if ids else None
        leave(
            study.trial(number),
            predictions={"validation": predictions},
            targets={"validation": targets},
            rows=rows,
        )

    @pytest.mark.parametrize("ids", [False, True])
    def test_parts(self, study, ids):
        """60, 20 and 20 % of the rows, no row twice, each class in its share in all parts, the same for all members."""
        for number in range(3):
            self.leave_validation(study, number, ids=ids)
        library = study.library()
        assert library.rows_seen_by_search
        assert library.top(3).rows_seen_by_search
        whole = study.targets["test"]
        for member in library.members:
            parts = {name: member.targets(name) for name in ("selection", "calibration", "test")}
            assert [len(each) for each in parts.values()] == [36, 12, 12]
            for label in range(4):
                counts = [(each == label).sum() for each in parts.values()]
                shares = np.array([0.6, 0.2, 0.2]) * (whole == label).sum()
                assert (np.abs(counts - shares) < 2).all()
            taken = np.concatenate([member.splits[name].places for name in parts])
            assert sorted(taken.tolist()) == list(range(60))
            for name, targets in parts.items():
                rows = member.splits[name].places
                np.testing.assert_array_equal(targets, whole[rows])
                kept = study.predictions(member.trial)["test"][rows]
                np.testing.assert_allclose(member.predictions(name), kept, atol=1e-3)
                np.testing.assert_allclose(member.true(name), kept[np.arange(len(rows)), whole[rows]], rtol=1e-6)
                assert not ids or member.row_ids(name).tolist() == (rows + 100).tolist()
        digests = {name: {member.splits[name].digest for member in library.members} for name in parts}
        assert all(len(each) == 1 for each in digests.values())
        assert len(set.union(*digests.values())) == 3

    def test_report_says_so(self, study):
        for number in range(4):
            self.leave_validation(study, number)
        chosen = study.library().select(BudgetedGreedy()).pick().calibrated()
        report = chosen.report()
        assert report.rows_seen_by_search
        assert report.before["rows"] == 12
        mean = np.average([study.predictions(m.trial)["test"] for m in chosen.members], axis=0, weights=chosen.weights)
        rows = chosen.members[0].splits["test"].places
        true = mean[rows, study.targets["test"][rows]]
        assert report.before["nll"] == pytest.approx(-np.log(true).mean(), abs=1e-3)
        assert report.losses["test"] == pytest.approx(report.after["nll"])

    def test_only_where_nothing_else_was_left(self, study):
        study.leave(0)
        assert not study.library().rows_seen_by_search
