"""Means and variances in a library, members that left different rows, and what stays on disk."""

import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble import BudgetedGreedy, Library, Member, leave
from trainwright.ensemble.library.member import Split
from trainwright.ensemble.library.retention import LibraryRetention, Standing
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.errors import EnsembleError, MixedSplitsError


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
        assert BudgetedGreedy(cost_weight=1.0, max_additions=3).best(priced, scorer) == (1,)
        assert BudgetedGreedy(cost_weight=1e-6, max_additions=3).best(priced, scorer)[0] == 0

    def test_refusals(self, study):
        truth, pairs = np.zeros(3), np.ones((3, 2))
        pairs[1, 1] = 0.0
        with pytest.raises(EnsembleError, match=r"row 1 has a variance that is not above 0; .*softplus"):
            leave(study.trial(), predictions={"selection": pairs}, targets={"selection": truth})
        with pytest.raises(EnsembleError, match=r"got shape \(3, 3\) for targets of shape \(3, 1\)"):
            leave(study.trial(), predictions={"selection": np.ones((3, 3))}, targets={"selection": truth})
        leave(study.trial(), predictions={"selection": np.ones((3, 2))}, targets={"selection": truth})
        with pytest.raises(EnsembleError, match="predictions that are moments; allowed: squared_error, normal_nll"):
            study.library().select(BudgetedGreedy(), metric="accuracy")

    def test_variance_below_float16(self, study):
        """A variance that float16 would round to 0 is kept in float32."""
        pairs = np.stack([np.zeros(5), np.full(5, 1e-9)], axis=-1)
        leave(study.trial(), predictions={"selection": pairs}, targets={"selection": np.zeros(5)})
        member = study.library().members[0]
        assert member.splits["selection"].storage == "f32"
        assert (member.predictions("selection")[..., 1] > 0).all()


class TestCommonRows:
    def leave_parts(self, study):
        labels, every = study.targets["selection"], np.arange(60)
        predictions = study.predictions(0)["selection"], study.predictions(1)["selection"]
        for number, rows in enumerate((every[:50], every[10:][::-1])):
            leave(
                study.trial(number),
                predictions={"selection": predictions[number][rows]},
                targets={"selection": labels[rows]},
                rows={"selection": rows + 100},
            )
        return labels, predictions

    def test_the_intersection_is_selected_on(self, study):
        labels, predictions = self.leave_parts(study)
        with pytest.raises(MixedSplitsError):
            study.library()
        library = Library.open(study.directory, common_rows=True)
        assert library.dropped_rows == {"selection": 10}
        for member in library.members:
            assert member.targets("selection").tolist() == labels[10:50].tolist()
            assert member.row_ids("selection").tolist() == list(range(110, 150))
            np.testing.assert_allclose(member.predictions("selection"), predictions[member.trial][10:50], atol=1e-3)
        for metric in ("cross_entropy", "accuracy"):
            front = library.select(BudgetedGreedy(), metric=metric)
            direction = METRICS[metric]
            score = front.single_best.score("selection", metric)
            assert float(direction.loss(np.array(score))) == pytest.approx(front.baselines["single best"].loss)

    def test_refusals(self, study):
        self.leave_parts(study)
        labels = study.targets["selection"]
        wrong = np.where(np.arange(60) == 20, (labels + 1) % 4, labels)
        rows = {"selection": np.arange(60) + 100}
        predictions = {"selection": study.predictions(2)["selection"]}
        leave(study.trial(2), predictions=predictions, targets={"selection": wrong}, rows=rows)
        with pytest.raises(MixedSplitsError, match="row 120 has one target in trial 0 and another in trial 2"):
            Library.open(study.directory, common_rows=True)
        leave(study.trial(2, lease=2), predictions=predictions, targets={"selection": labels})
        with pytest.raises(EnsembleError, match="trial 2 left no row ids, so common rows cannot be found"):
            Library.open(study.directory, common_rows=True)
        rows = {"selection": np.arange(60) + 900}
        leave(study.trial(2, lease=3), predictions=predictions, targets={"selection": labels}, rows=rows)
        with pytest.raises(MixedSplitsError, match="got no row id that all members have"):
            Library.open(study.directory, common_rows=True)


standings = st.lists(
    st.builds(
        Standing,
        trial=st.integers(0, 10**6),
        epoch=st.sampled_from([1, 3, 9]),
        loss=st.sampled_from([0.1, 0.2, 0.4, 0.8]),
        seconds=st.sampled_from([1.0, 2.0, 3.0]),
        bytes=st.sampled_from([1.0, 2.0]),
    ),
    unique_by=lambda one: one.trial,
    max_size=30,
)


class TestRetention:
    @settings(max_examples=60)
    @given(members=standings, top=st.integers(1, 10), share=st.sampled_from([0.0, 0.2, 1.0]), data=st.data())
    def test_rule(self, members, top, share, data):
        """Pinned and undominated members stay; of the others at most `top`, fully trained or the best of their rung."""
        pinned = data.draw(st.sets(st.sampled_from([one.trial for one in members])) if members else st.just(set()))
        kept = LibraryRetention(library_top=top, rung_share=share).keep(members, pinned)
        undominated = {
            one.trial
            for one in members
            if not any(
                (two.loss <= one.loss and two.seconds <= one.seconds and two.bytes <= one.bytes)
                and (two.loss, two.seconds, two.bytes) != (one.loss, one.seconds, one.bytes)
                for two in members
            )
        }
        assert pinned | undominated <= kept
        others = [one for one in members if one.trial in kept - pinned - undominated]
        assert len(others) <= top
        full = max((one.epoch for one in members), default=0)
        for one in others:
            rung = sorted(two.loss for two in members if two.epoch == one.epoch)
            assert one.epoch == full or one.loss <= rung[int(np.ceil(share * len(rung))) - 1]

    def test_on_disk(self, study):
        """What is not kept goes from disk, is told as taken away and not as damaged, and the front stays."""
        for number in range(6):
            study.leave(number, skill=number / 2)
        library = study.library()
        gone = library.retain(LibraryRetention(library_top=2), pinned=(0,))
        assert set(gone) == {1, 2, 3}
        again = study.library()
        assert [member.trial for member in again.members] == [member.trial for member in library.members] == [0, 4, 5]
        assert "trial 1: was taken away by a retention rule" in again.excluded[1]
        assert len(study.library().top(1).members) == 1

    def test_settings(self):
        with pytest.raises(EnsembleError, match="library_top: got 0"):
            LibraryRetention(library_top=0)
        with pytest.raises(EnsembleError, match=r"rung_share: got 1\.5"):
            LibraryRetention(rung_share=1.5)


class TestLargeLibrary:
    def test_never_read_whole_nor_held_open(self, study):
        """More members than files may be open, of which selection by whole rows holds one at a time."""
        folder = study.leave(0)
        told = study.library().members[0]
        split = Split(rows=60, columns=4, storage="f16", digest="x")
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
            taken = np.concatenate([member.takes[name] for name in parts])
            assert sorted(taken.tolist()) == list(range(60))
            for name, rows in member.takes.items():
                np.testing.assert_array_equal(parts[name], whole[rows])
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
        rows = chosen.members[0].takes["test"]
        true = mean[rows, study.targets["test"][rows]]
        assert report.before["nll"] == pytest.approx(-np.log(true).mean(), abs=1e-3)
        assert report.losses["test"] == pytest.approx(report.after["nll"])

    def test_only_where_nothing_else_was_left(self, study):
        study.leave(0)
        assert not study.library().rows_seen_by_search

    def test_of_common_rows(self, study):
        """Cut to the rows in common first, then divided."""
        labels = study.targets["test"]
        for number, rows in enumerate((np.arange(60), np.arange(10, 60))):
            predictions = {"validation": study.predictions(number)["test"][rows]}
            leave(
                study.trial(number),
                predictions=predictions,
                targets={"validation": labels[rows]},
                rows={"validation": rows},
            )
        library = Library.open(study.directory, common_rows=True)
        for member in library.members:
            assert [member.splits[name].rows for name in ("selection", "calibration", "test")] == [30, 10, 10]
            for name in ("selection", "calibration", "test"):
                ids = member.row_ids(name)
                assert ids.min() >= 10
                np.testing.assert_array_equal(member.targets(name), labels[ids])
                kept = study.predictions(member.trial)["test"][ids]
                np.testing.assert_allclose(member.predictions(name), kept, atol=1e-3)
