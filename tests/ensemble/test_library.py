"""The library: which entries count, which are left out and why, what is refused."""

import json

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Library, Member, leave
from trainwright.errors import CostError, EnsembleError, MixedSplitsError, StudyError


class TestOpen:
    def test_highest_lease_then_latest_epoch(self, study):
        study.leave(3, lease=1, next_epoch=9)
        study.leave(3, lease=2, next_epoch=4)
        study.leave(3, lease=2, next_epoch=5)
        study.leave(1, lease=1, next_epoch=2)
        members = study.library().members
        assert [(member.trial, member.epoch, member.folder.parent.name) for member in members] == [
            (1, 2, "lease-1"),
            (3, 5, "lease-2"),
        ]

    def test_no_record_no_member(self, study):
        study.leave(0)
        trial = study.trial(1)
        trial.offer = lambda path, digests, epoch: None
        leave(trial, predictions=study.predictions(1), targets=study.targets)
        assert [member.trial for member in study.library().members] == [0]

    def test_empty(self, study):
        with pytest.raises(EnsembleError, match=r"got no member; .*tw\.ensemble\.leave"):
            study.library()

    def test_no_study(self, tmp_path):
        with pytest.raises(StudyError):
            Library.open(tmp_path)


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda folder: (folder / "member.json").unlink(), "member.json: cannot be read"),
            (lambda folder: (folder / "member.json").write_text("{}"), "member.json: its content differs"),
            (lambda folder: (folder / "selection.f32").unlink(), "selection.f32: is missing"),
            (lambda folder: (folder / "test.f32").write_bytes(b"12"), "test.f32: has 2 bytes instead of 960"),
        ],
    )
    def test_seen_at_open(self, study, damage, reason):
        good, bad = study.leave(0), study.leave(1)
        damage(bad)
        library = study.library()
        assert [member.folder for member in library.members] == [good]
        assert set(library.excluded) == {1}
        assert reason in library.excluded[1]

    @pytest.mark.parametrize(
        ("metric", "name"), [("cross_entropy", "selection.true.f32"), ("accuracy", "selection.f32")]
    )
    def test_seen_when_read(self, study, metric, name):
        """A file of the right size with other content is left out by the selection that would read it."""
        bad = study.leave(0, skill=9)
        study.leave(1)
        content = bytearray((bad / name).read_bytes())
        content[5] ^= 1
        (bad / name).write_bytes(content)
        front = study.library().select(BudgetedGreedy(), metric=metric)
        assert [point.members for point in front.points] == [(1,)]
        assert "its content differs" in front.excluded[0]

    @pytest.mark.parametrize(
        ("metric", "value", "why"),
        [
            ("cross_entropy", np.nan, "is not finite"),
            ("cross_entropy", 1.2, "sums to 1.2"),
            ("accuracy", np.inf, "is not finite"),
            ("accuracy", -0.1, "is negative"),
            ("accuracy", 0.3, "sums to 1.17787"),
        ],
    )
    def test_predictions_that_are_none(self, study, metric, value, why):
        """An entry that other code wrote, whole and with right digests, is left out with the row and the reason."""
        bad = study.leave(0)
        study.leave(1)
        name, kind = ("selection.true.f32", "<f4") if metric == "cross_entropy" else ("selection.f32", "<f4")
        values = np.fromfile(bad / name, dtype=kind)
        values[(0 if metric == "cross_entropy" else 4) + 3] = value
        values.tofile(bad / name)
        digests = {path.name: Member.digest_of(path.read_bytes()) for path in bad.iterdir()}
        study.trial(0, lease=2).offer(bad, digests, epoch=1)
        front = study.library().select(BudgetedGreedy(), metric=metric)
        assert [point.members for point in front.points] == [(1,)]
        assert front.excluded[0] == f"row {3 if metric == 'cross_entropy' else 1} {why}"

    def test_only_damaged(self, study):
        (study.leave(0) / "member.json").unlink()
        with pytest.raises(EnsembleError, match=r"left out: 1, trial 0: .*member\.json: cannot be read"):
            study.library()

    def test_newer_schema(self, study):
        trial = study.trial(1)
        folder = study.leave(1)
        told = json.loads((folder / "member.json").read_text())
        content = json.dumps({**told, "schema": 99}).encode()
        (folder / "member.json").write_bytes(content)
        import hashlib

        trial.offer(folder, {"member.json": hashlib.blake2b(content, digest_size=16).hexdigest()}, epoch=1)
        study.leave(0)
        assert "got schema 99; allowed: up to 2" in study.library().excluded[1]


class TestMixedSplits:
    def test_other_rows(self, study):
        study.leave(0)
        study.leave(1)
        labels = {name: labels[:50] for name, labels in study.targets.items()}
        predictions = {name: values[:50] for name, values in study.predictions(2).items()}
        leave(study.trial(2), predictions=predictions, targets=labels)
        with pytest.raises(
            MixedSplitsError, match=r"'selection': got 2 .*60 rows, 4 classes\): trials 0, 1; .*50 .*: trial 2"
        ):
            study.library()

    def test_other_targets_in_the_test_split(self, study):
        study.leave(0)
        study.targets["test"] = study.targets["test"][::-1].copy()
        study.leave(1)
        with pytest.raises(MixedSplitsError, match="split 'test': got 2 different"):
            study.library()

    def test_a_split_not_left(self, study):
        study.leave(0)
        del study.targets["test"]
        study.leave(1)
        with pytest.raises(MixedSplitsError, match="not left: trial 1"):
            study.library()


class TestSelect:
    def test_unknown_metric_and_split(self, study):
        study.leave(0)
        library = study.library()
        with pytest.raises(EnsembleError, match=r"got 'acuracy'; allowed: .*did you mean 'accuracy'"):
            library.select(BudgetedGreedy(), metric="acuracy")
        with pytest.raises(EnsembleError, match="split: got 'validation'; allowed: selection, test"):
            library.select(BudgetedGreedy(), split="validation")

    def test_real_values(self, study):
        truth = np.linspace(-1, 1, 40)
        for number, shift in enumerate((0.2, -0.2, 0.9)):
            trial = study.trial(number)
            leave(trial, predictions={"selection": truth + shift}, targets={"selection": truth})
        library = study.library()
        with pytest.raises(EnsembleError, match="predictions that are values; allowed: squared_error"):
            library.select(BudgetedGreedy(), metric="cross_entropy")
        best = library.select(BudgetedGreedy(), metric="squared_error").pick()
        assert [member.trial for member in best.members] == [0, 1]
        assert best.score("selection", "squared_error") < 1e-6

    def test_selection_does_not_read_test_rows(self, study):
        """Test rows could be anything: selection gives the same and only the score sees them."""
        folders = [study.leave(number) for number in range(4)]
        library = study.library()
        before = library.select(BudgetedGreedy())
        for folder in folders:
            for path in folder.glob("test.*"):
                path.write_bytes(bytes(path.stat().st_size))
        front = study.library().select(BudgetedGreedy())
        assert front.points == before.points
        with pytest.raises(EnsembleError, match="content differs"):
            front.pick().score("test")

    def test_costs_of_different_devices(self, study):
        pytest.importorskip("torch")
        from trainwright.ensemble.library.cost import MemberCost

        for number, device in enumerate(("cpu", "NVIDIA H100")):
            cost = MemberCost(parameter_count=1, weight_bytes=4, device=device, seconds=0.1)
            trial = study.trial(number, scratch={"ensemble.cost": cost})
            leave(trial, object(), predictions=study.predictions(number), targets=study.targets)
        front = study.library().select(BudgetedGreedy())
        assert all(point.seconds_per_row is None for point in front.points)
        with pytest.raises(CostError, match="or measured on different devices"):
            study.library().select(BudgetedGreedy(budget_seconds=1.0))

    def test_a_member_without_cost_among_others(self, study):
        from trainwright.ensemble.library.cost import MemberCost

        cost = MemberCost(parameter_count=1, weight_bytes=4, device="cpu", seconds=0.1)
        trial = study.trial(0, scratch={"ensemble.cost": cost})
        leave(trial, object(), predictions=study.predictions(0), targets=study.targets)
        study.leave(1)
        front = study.library().select(BudgetedGreedy())
        assert "its cost is unknown" in front.excluded[1]
        # The best of them are told why others are left out, as all are.
        assert study.library().top(5).excluded == front.excluded
        assert front.pick().cost_seconds == pytest.approx(0.1 / 128)
