"""What a trial leaves: files, checks, atomicity."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import leave
from trainwright.errors import EnsembleError

PROBABILITIES = np.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
LABELS = np.array([0, 1, 1])


def keep(study, predictions=PROBABILITIES, targets=LABELS, **more):
    return leave(study.trial(), predictions={"selection": predictions}, targets={"selection": targets}, **more)


class TestEntry:
    def test_files(self, study):
        folder = keep(study, data="digits")
        assert folder == study.directory / "library/trial-000000/lease-1/epoch-000001"
        assert {path.name for path in folder.iterdir()} == {
            "member.json",
            "selection.f32",
            "selection.true.f32",
            "selection.targets.i32",
        }
        told = json.loads((folder / "member.json").read_text())
        assert told["schema"] == 2
        assert (told["epoch"], told["params"], told["seed"], told["data"]) == (1, {"lr": 0.1}, 0, "digits")

    def test_kept_as_given(self, study):
        keep(study)
        member = study.library().members[0]
        kept = member.predictions("selection")
        assert isinstance(kept, np.memmap)
        np.testing.assert_allclose(kept, PROBABILITIES, rtol=1e-6)
        np.testing.assert_allclose(member.true("selection"), [0.5, 0.75, 0.1], rtol=1e-7)
        np.testing.assert_array_equal(member.targets("selection"), LABELS)

    def test_rows_are_ordered_by_id(self, study):
        """The same rows in another order give the same entry and the same digest."""
        keep(study, rows={"selection": np.array([10, 20, 30])})
        one = study.library().members[0]
        order = [2, 0, 1]
        keep(study, PROBABILITIES[order], LABELS[order], rows={"selection": np.array([30, 10, 20])})
        other = study.library().members[0]
        assert one.splits == other.splits
        np.testing.assert_array_equal(other.true("selection"), np.float32([0.5, 0.75, 0.1]))
        np.testing.assert_allclose(other.predictions("selection"), PROBABILITIES, rtol=1e-6)

    def test_digest_tells_rows_apart(self, study):
        digests = set()
        for more in ({}, {"data": "a"}, {"rows": {"selection": [1, 2, 3]}}, {"rows": {"selection": [1, 2, 4]}}):
            rows = {name: np.array(ids) for name, ids in more.get("rows", {}).items()}
            keep(study, **{**more, "rows": rows})
            digests.add(study.library().members[0].splits["selection"].digest)
        keep(study, targets=np.array([0, 1, 0]))
        digests.add(study.library().members[0].splits["selection"].digest)
        assert len(digests) == 5

    def test_real_values(self, study):
        folder = keep(study, np.array([1.0, 2.5, 3.0]), np.array([1.5, 2.0, 3.0]))
        assert not (folder / "selection.true.f32").exists()
        assert study.library().members[0].predictions("selection").shape == (3, 1)

    def test_nearly_normalised_rows_are_normalised(self, study):
        keep(study, PROBABILITIES * 1.004)
        np.testing.assert_allclose(study.library().members[0].true("selection"), [0.5, 0.75, 0.1], rtol=1e-6)

    def test_tensors(self, study):
        torch = pytest.importorskip("torch")
        logits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]], requires_grad=True)
        probabilities = logits.softmax(dim=1)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            keep(study, probabilities.to(dtype), torch.tensor([0, 1, 1]))
            expected = probabilities[[0, 1, 2], [0, 1, 1]].detach().numpy()
            np.testing.assert_allclose(study.library().members[0].true("selection"), expected, rtol=1e-2)

    def test_without_torch(self):
        code = "import sys, trainwright as tw; tw.ensemble.leave; sys.exit(len({'torch', 'numba'} & set(sys.modules)))"
        paths = os.pathsep.join(sys.path)
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": paths})


class TestRefusals:
    @pytest.mark.parametrize(
        ("predictions", "targets", "sentence"),
        [
            ([[0.5, 0.5]], LABELS, "got list; allowed: a numpy array or a torch tensor"),
            (PROBABILITIES[:2], LABELS, r"got shape \(2, 2\); allowed: \(3, C\)"),
            (PROBABILITIES[:, 0], LABELS, r"got shape \(3,\); allowed: \(3, C\)"),
            (np.ones((3, 2), dtype=int), LABELS, "got dtype int64; allowed: floats"),
            (np.array([[0.5, 0.5], [np.nan, 1.0], [1.0, 0.0]]), LABELS, "row 1 is not finite"),
            (np.array([[0.5, 0.5], [1.0, 0.0], [1.1, -0.1]]), LABELS, "row 2 is negative; .*softmax"),
            (
                np.array([[0.5, 0.5], [3.0, 1.5], [1.0, 0.0]]),
                LABELS,
                "row 1 sums to 4.5; allowed: probabilities .*logits",
            ),
            (PROBABILITIES, np.array([0, 2, 1]), "row 1 has class 2; allowed: 0 to 1"),
            (PROBABILITIES, np.array([0, -1, 1]), "row 1 has class -1; allowed: 0 to 1"),
            (PROBABILITIES, PROBABILITIES.astype(int), r"got shape \(3, 2\); allowed: one class number a row"),
            (PROBABILITIES, np.array(["a", "b", "c"]), "got dtype <U1; allowed: integers"),
            (PROBABILITIES, np.array([], dtype=int), r"got shape \(0,\); allowed: at least one row"),
            (np.ones((3, 4)), np.array([0.0, 1.0, 2.0]), r"targets of shape \(3, 1\); allowed: equal shapes"),
            (np.array([1, 2, 3]), np.array([0.0, 1.0, 2.0]), "got dtype int64; allowed: floats"),
            (np.array([1.0, np.inf, 3.0]), np.array([0.0, 1.0, 2.0]), "row 1 is not finite"),
            (np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, np.nan]), "targets.*row 2 is not finite"),
        ],
    )
    def test_predictions(self, study, predictions, targets, sentence):
        with pytest.raises(EnsembleError, match=sentence):
            keep(study, predictions, targets)
        assert not (study.directory / "library").exists()

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            ({"rows": {"selection": np.array([1, 2])}}, "got int64 of shape .*allowed: 3 integers"),
            ({"rows": {"selection": np.array([1.0, 2.0, 3.0])}}, "got float64 of shape .*allowed: 3 integers"),
            ({"rows": {"selection": np.array([1, 2, 1])}}, "got id 1 twice"),
            ({"rows": {"other": np.array([1, 2, 3])}}, "got split 'other'; allowed: selection"),
            ({"data": 3}, "data: got int"),
            ({"sample": PROBABILITIES}, "sample: got no model"),
            ({"model": "net"}, "got 'net', which cannot be read .*allowed: a model, or the path of an ONNX file"),
        ],
    )
    def test_other_arguments(self, study, more, sentence):
        pytest.importorskip("torch")
        with pytest.raises(EnsembleError, match=sentence):
            keep(study, **more)

    def test_splits(self, study):
        trial = study.trial()
        good = {"selection": PROBABILITIES, "test": PROBABILITIES}
        for predictions, targets, rows, sentence in (
            ({}, {}, None, "predictions of nothing"),
            (good, {"selection": LABELS}, None, "targets of selection; allowed: both for the same splits"),
            ({"a/b": PROBABILITIES}, {"a/b": LABELS}, None, "got split 'a/b'; allowed: letters"),
            (
                {**good, "test": np.full((3, 4), 0.25)},
                dict.fromkeys(good, LABELS),
                None,
                r"2 columns \(classes\) for 'selection' and 4 \(classes\) for 'test'",
            ),
            (
                good,
                dict.fromkeys(good, LABELS),
                {"selection": np.array([1, 2, 3]), "test": np.array([3, 4, 5])},
                r"share 1 row ids \(3\)",
            ),
        ):
            with pytest.raises(EnsembleError, match=sentence):
                leave(trial, predictions=predictions, targets=targets, rows=rows)


class TestAtomicity:
    def test_the_newest_epoch_replaces_the_older(self, study):
        old = study.leave(0, next_epoch=1)
        new = study.leave(0, next_epoch=2)
        assert not old.exists()
        assert [member.epoch for member in study.library().members] == [2]
        assert [path.name for path in new.parent.iterdir()] == ["epoch-000002"]

    def test_one_epoch_twice(self, study):
        """A second entry of one epoch never overwrites the folder that the ledger points to."""
        first, second = study.leave(0), study.leave(0)
        assert first != second
        assert study.library().members[0].folder == second

    def test_offer_comes_before_removal(self, study):
        old = study.leave(0, next_epoch=1)
        trial = study.trial(next_epoch=2)
        seen = []
        trial.offer = lambda path, digests, epoch: seen.append((old.exists(), path.exists(), sorted(digests), epoch))
        new = leave(trial, predictions=study.predictions(0), targets=study.targets)
        assert seen == [(True, True, sorted(path.name for path in new.iterdir()), 2)]

    def test_flushed_before_it_is_seen(self, study, monkeypatch):
        """Every file and the folder are flushed before the folder gets its name, its parent before the offer."""
        events = []
        rename = Path.rename
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: events.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        )
        monkeypatch.setattr(Path, "rename", lambda path, target: (events.append("rename"), rename(path, target)))
        trial = study.trial()
        trial.offer = lambda path, digests, epoch: events.append("offer")
        folder = leave(trial, predictions=study.predictions(0), targets=study.targets)
        named = events.index("rename")
        scratch = events[named - 1]
        assert scratch.parent == folder.parent
        assert {scratch / path.name for path in folder.iterdir()} <= set(events[:named])
        assert events[named + 1 :] == [folder.parent, "offer"]
        made = {study.directory, study.directory / "library", folder.parent.parent}
        assert made <= set(events[:named])

    def test_a_failed_write_leaves_the_entry_before(self, study, monkeypatch):
        """Whichever of the writes fails, nothing new is visible, nothing half written stays, the old entry is whole."""
        old = study.leave(0, next_epoch=1)
        real = os.fsync
        for fatal in range(8):  # seven files and their folder
            calls = iter(range(100))

            def fsync(descriptor, fatal=fatal, calls=calls):
                if next(calls) == fatal:
                    raise OSError(28, "No space left on device")
                real(descriptor)

            monkeypatch.setattr(os, "fsync", fsync)
            with pytest.raises(OSError, match="No space"):
                study.leave(0, next_epoch=2)
            monkeypatch.setattr(os, "fsync", real)
            assert list(old.parent.iterdir()) == [old]
            assert [member.epoch for member in study.library().members] == [1]

    def test_killed_at_any_moment(self, tmp_path):
        """SIGKILL before each effect on the file system: the library opens with the old or the new entry, whole."""
        script = tmp_path / "kill.py"
        script.write_text(textwrap.dedent(_KILL))
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        epochs = json.loads(done.stdout)
        assert len(epochs) > 15
        assert epochs == sorted(epochs)
        assert set(epochs) == {1, 2}


_KILL = """
    import json, os, signal, sys
    from pathlib import Path
    from conftest import FakeStudy

    EFFECTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}

    def killed(study, moment):
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1] != 0
        calls = 0
        def hook(event, arguments):
            nonlocal calls
            if event in EFFECTS:
                calls += 1
                if calls > moment:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        study.leave(0, next_epoch=2)
        os._exit(0)

    epochs, moment, alive = [], 0, True
    while alive:
        study = FakeStudy(Path(sys.argv[1]) / f"study-{moment}")
        study.leave(0, next_epoch=1)
        alive = killed(study, moment)
        member, = study.library().members
        member.predictions("test"), member.true("test"), member.targets("test")
        epochs.append(member.epoch)
        moment += 1
    print(json.dumps(epochs))
"""


def test_of_several_ranks_the_first_leaves(study):
    """The others have the same predictions: they write nothing and tell nothing, and learn the same folder."""
    told, left = (
        leave(study.trial(rank=rank), predictions=study.predictions(0), targets=study.targets) for rank in (1, 0)
    )
    assert told == left
    assert len(study.ledger.read({})[0]) == 1
