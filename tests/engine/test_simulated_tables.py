"""Tables: trials are rows of learning curves, drawn or looked up; what is missing is refused or counted."""

import io
import zipfile

import numpy as np
import pytest

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import tables
from trainwright.errors import EngineError, InputError
from trainwright.schedule import ASHA, FixedEpochs, Scheduler


def wide(rows=5, epochs=4):
    """Return arrays as TaskSet has them: row r begins at r and falls by 0.1 an epoch."""
    losses = np.arange(rows)[:, None] - 0.1 * np.arange(epochs)[None, :]
    rates = np.geomspace(1e-4, 1.0, rows)
    return {
        "valid_loss": losses,
        "hp": np.stack([rates, np.arange(rows)], axis=1).astype(np.float32),
        "hp_names": np.array(["learning_rate", "layers"]),
    }


def simulated(task, trials, *, rule=None, **more):
    setting = Simulated(cluster=Cluster(2, 2), task=task)
    return simulate(Scheduler(rule or FixedEpochs(4)), setting, trials=trials, seed=1, **more)


def told(task, trials, **more):
    heard = {}

    def hear(trial, epoch, losses, rests):
        heard[trial, epoch] = losses, rests

    run = simulated(task, trials, on_result=hear, **more)
    return run, heard


def test_rows_are_drawn_once_each():
    """All trials of a table's size are all its rows, in an order of the seed's."""
    run, heard = told(tables(wide()), 5)
    assert sorted(losses[0] for losses, _ in heard.values()) == pytest.approx([-0.3, 0.7, 1.7, 2.7, 3.7])
    assert run.substitutions == 0
    assert run.best_loss == pytest.approx(-0.3)


def test_more_trials_than_rows():
    """They are refused, or rows come again and are counted."""
    with pytest.raises(EngineError, match=r"trial 5 is one more than the table's 5 rows.*missing='nearest'"):
        simulated(tables(wide()), 6)
    assert simulated(tables(wide(), missing="nearest"), 7).substitutions == 2


def test_later_epochs_than_the_table_has():
    """They are refused, or the last loss stays and the time goes on."""
    with pytest.raises(EngineError, match=r"comes to epoch 5, row \d has 4; allowed: rules up to max_epochs=4"):
        simulated(tables(wide()), 2, rule=FixedEpochs(9))
    task = tables(wide(rows=1), missing="nearest", epoch_seconds=2.0, speed_jitter=0.0)
    run, heard = told(task, 1, rule=FixedEpochs(9))
    assert heard[0, 9][0] == pytest.approx((-0.3,))
    assert run.makespan_seconds == 18.0
    assert run.substitutions == 1


def test_configurations_are_looked_up():
    """A configuration's own row if it is there, in float32 or not; else the nearest, on logarithms if they span far."""
    asked = [{"learning_rate": 0.1, "layers": 3}, {"learning_rate": 0.02, "layers": 2.0}]
    run, heard = told(tables(wide(), missing="nearest"), 2, configure=lambda number, _: asked[number])
    assert [heard[trial, 4][0][0] for trial in (0, 1)] == pytest.approx([2.7, 1.7])
    assert run.substitutions == 1
    with pytest.raises(EngineError, match=r"no configuration learning_rate=0.02, layers=2.0; allowed: a space"):
        simulated(tables(wide()), 2, configure=lambda number, _: asked[number])


def test_long_tables_with_seconds_and_maximised():
    """Runs of different lengths, in the order in which they come first; time never runs back."""
    columns = {
        "run": ["b", "b", "a", "a", "a"],
        "accuracy": [0.5, 0.7, 0.2, 0.4, 0.6],
        "time": [10.0, 20.0, 5.0, 4.0, 30.0],
        "settings": ['{"width": 8}', '{"width": 8}', '{"width": 16}', "{}", "{}"],
    }
    task = tables(columns, run="run", loss="accuracy", seconds="time", params="settings", direction="max")
    assert [row[:, 0].tolist() for row in task.losses] == [[-0.5, -0.7], [-0.2, -0.4, -0.6]]
    assert [row.tolist() for row in task.seconds] == [[10.0, 20.0], [5.0, 5.0, 30.0]]
    assert list(task.params) == [{"width": 8}, {"width": 16}]
    assert simulated(task, 2, rule=FixedEpochs(2)).makespan_seconds == 20.0


def test_divergence_is_the_worst_loss():
    """NaN in a table is no missing epoch: the trial diverged."""
    arrays = wide()
    arrays["valid_loss"][2:] = np.nan
    run, heard = told(tables(arrays), 5, rule=ASHA(max_epochs=4, eta=2))
    assert run.substitutions == 0
    assert any(losses == (np.inf,) for losses, _ in heard.values())
    assert run.best_loss == pytest.approx(-0.3)


def test_files(tmp_path):
    """The same from .npz, .parquet and .csv."""
    np.savez(tmp_path / "table.npz", **wide())
    assert np.array_equal(tables(tmp_path / "table.npz").losses, tables(wide()).losses)
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"run": [0, 0, 1, 1], "loss": [1.0, 0.5, 2.0, 1.5], "rate": [0.1, 0.1, 0.2, 0.2]})
    frame.write_parquet(tmp_path / "table.parquet")
    frame.write_csv(tmp_path / "table.csv")
    for name in ("table.parquet", "table.csv"):
        task = tables(tmp_path / name, run="run", loss="loss", params=["rate"])
        assert [row[:, 0].tolist() for row in task.losses] == [[1.0, 0.5], [2.0, 1.5]]
        assert list(task.params) == [{"rate": 0.1}, {"rate": 0.2}]


def _claims_much(path):
    """Write a header of a terabyte, and nothing behind it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**37, 1)})
    with zipfile.ZipFile(path, "w") as entries:
        entries.writestr("valid_loss.npy", header.getvalue())


def _unpacks_to_much(path):
    """Write ten mebibytes of zeros, of which there are said to be 900 times as many."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as entries:
        entries.writestr("valid_loss.npy", bytes(10 * 2**20))
        entries.filelist[0].file_size *= 900


def _holds_code(path):
    np.savez(path, valid_loss=np.array([print], dtype=object))


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("broken.npz", lambda path: path.write_bytes(b"PK" + bytes(50)), "broken.npz is no .npz file of numbers"),
        ("claims.npz", _claims_much, "claims.npz is no .npz file of numbers"),
        ("bomb.npz", _unpacks_to_much, "bomb.npz unpacks to 9437184000 bytes; allowed: up to 8589934592"),
        ("code.npz", _holds_code, "code.npz is no .npz file of numbers"),
        ("broken.parquet", lambda path: path.write_bytes(b"PAR1" + bytes(50)), "broken.parquet cannot be read"),
    ],
)
def test_hostile_files(tmp_path, name, write, sentence):
    if name.endswith("parquet"):
        pytest.importorskip("polars")
    write(tmp_path / name)
    with pytest.raises(EngineError, match=sentence):
        tables(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: tables("nowhere.npz"), r"there is no file nowhere.npz"),
        (lambda: tables(__file__), r"ends in '.py'; allowed: .npz, .parquet, .csv"),
        (lambda: tables(wide(), loss="val_loss"), r"'val_loss' is not there.*did you mean 'valid_loss'"),
        (lambda: tables(wide(), loss="hp_names"), r"'hp_names' holds something else than numbers"),
        (lambda: tables({"valid_loss": [1.0, 2.0]}), r"has 1 dimensions; allowed: 2 \(rows, epochs\), or give run="),
        (lambda: tables(wide(), direction="up"), r"direction: got 'up'; allowed: 'min', 'max'"),
        (lambda: tables(wide(), missing="guess"), r"missing: got 'guess'; allowed: 'error', 'nearest'"),
        (lambda: tables(wide(), epoch_seconds=0.0), r"epoch_seconds: got 0.0"),
        (lambda: tables({"valid_loss": np.zeros((0, 3))}), r"without rows"),
    ],
)
def test_refusals(make, sentence):
    """Each in one sentence."""
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_searcher_needs_configurations():
    """A table of curves alone cannot answer a searcher."""
    task = tables({"valid_loss": wide()["valid_loss"]})
    with pytest.raises(EngineError, match="of which this table has none"):
        simulated(task, 1, configure=lambda *_: {"rate": 0.1})
