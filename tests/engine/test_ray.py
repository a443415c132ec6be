"""Ray: how a cluster becomes slots, who is let in at the door, a study from end to end, and what is left of it."""

import socket
from contextlib import suppress
from pathlib import Path

import pytest
import trainings

import trainwright as tw
from trainwright.engine.process.listener import LineWorker, WorkerListener
from trainwright.engine.ray.cluster import Node, SlotMap, connect, load_ray
from trainwright.engine.ray.engine import Ray
from trainwright.errors import EngineError, InputError, MissingExtra
from trainwright.plugins import make
from trainwright.train.assignment import Assignment

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.outside("Ray")


def left_over():
    """Return the names of the actors and placement groups that are there."""
    groups = ray.util.placement_group_table().values()
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted([group["name"] for group in groups if group["state"] != "REMOVED"] + [one["name"] for one in actors])


def nodes(*sizes):
    """Return nodes of so many (CPUs, GPUs)."""
    return [Node(id=f"{n:04x}", name=f"n{n}", cpus=cpus, gpus=gpus) for n, (cpus, gpus) in enumerate(sizes)]


def layout(*sizes, workers=None, gpus_per_node=None, cpus_per_device=1):
    return SlotMap.of(nodes(*sizes), workers=workers, gpus_per_node=gpus_per_node, cpus_per_device=cpus_per_device)


class TestLayout:
    @pytest.mark.parametrize(
        ("sizes", "settings", "names", "slots_per_node", "gpu"),
        [
            ([(4, 0)], {}, ["n0"], 4, False),
            ([(4, 0)], {"workers": 3}, ["n0"], 3, False),
            ([(9, 0), (8, 0)], {"cpus_per_device": 4}, ["n0", "n1"], 2, False),
            ([(16, 0), (16, 0), (8, 0)], {}, ["n0", "n1"], 16, False),
            ([(16, 0), (8, 0), (8, 0)], {}, ["n0", "n1", "n2"], 8, False),
            ([(4, 0), (4, 0)], {"workers": 6}, ["n0", "n1"], 3, False),
            ([(64, 0), (64, 4), (64, 4)], {}, ["n1", "n2"], 4, True),
            ([(64, 4), (64, 4)], {"gpus_per_node": 2}, ["n0", "n1"], 2, True),
            ([(64, 4), (64, 2)], {"gpus_per_node": 4}, ["n0"], 4, True),
            ([(8, 4), (8, 4)], {"gpus_per_node": 0}, ["n0", "n1"], 8, False),
            ([(8, 4)], {"cpus_per_device": 4}, ["n0"], 2, True),
        ],
    )
    def test_shares(self, sizes, settings, names, slots_per_node, gpu):
        """Nodes give equally many devices each, so many that most are used."""
        found = layout(*sizes, **settings)
        assert ([node.name for node in found.nodes], found.slots_per_node, found.gpu) == (names, slots_per_node, gpu)

    def test_names(self):
        found = layout((8, 2), (8, 2))
        assert [found.device(slot) for slot in range(found.slots)] == [
            "n0/cuda:0",
            "n0/cuda:1",
            "n1/cuda:0",
            "n1/cuda:1",
        ]
        assert layout((1, 0)).device(0) == "n0/cpu:0"

    @pytest.mark.parametrize(
        ("sizes", "settings", "sentence"),
        [
            (
                [(2, 0), (2, 0)],
                {"workers": 5},
                "Ray.workers: got 5, with cpus_per_device=1; the cluster's nodes have 0+0",
            ),
            ([(2, 0)], {"cpus_per_device": 3}, "Ray.workers: got None, with cpus_per_device=3"),
            (
                [(8, 2)],
                {"gpus_per_node": 4},
                "Ray.gpus_per_node: got 4, with cpus_per_device=1; the cluster's nodes have 2",
            ),
            ([(8, 0)], {"gpus_per_node": 1}, "Ray.gpus_per_node: got 1"),
        ],
    )
    def test_what_the_cluster_does_not_have(self, sizes, settings, sentence):
        with pytest.raises(EngineError) as caught:
            layout(*sizes, **settings)
        assert str(caught.value).startswith(sentence)


class TestDoor:
    def test_only_who_is_expected_comes_in(self):
        """A wrong token, half a token or none: the door serves the worker that it expects all the same."""
        door = WorkerListener("127.0.0.1")
        worker = LineWorker(door)
        door.expect(worker)
        with (
            socket.create_connection(door.address) as silent,
            socket.create_connection(door.address) as wrong,
            socket.create_connection(door.address) as right,
        ):
            wrong.sendall(bytes(32))
            silent.sendall(worker.token[:5])
            right.sendall(worker.token[:20])
            right.sendall(worker.token[20:])
            while not worker.connected:
                assert door.wait(5) == []
            with suppress(ConnectionResetError):
                assert wrong.recv(1) == b""
            again = socket.create_connection(door.address)
            again.sendall(worker.token)  # a token opens the door once
            right.close()
            while not (ready := door.wait(5)):
                pass
            assert ready == [worker]
            again.close()
        worker.connection.close()
        door.close()


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"workers": 0}, "Ray.workers: got 0; allowed: a whole number >= 1, or None for all that the cluster has"),
            (
                {"gpus_per_node": -1},
                "Ray.gpus_per_node: got -1; allowed: a whole number >= 0, or None for all that a node has",
            ),
            ({"cpus_per_device": None}, "Ray.cpus_per_device: got None; allowed: a whole number >= 1"),
            ({"timeout_seconds": 0}, "Ray.timeout_seconds: got 0; allowed: a number > 0, or None for no limit"),
            ({"memory_bytes": "1G"}, "Ray.memory_bytes: got '1G'; allowed: a number > 0, or None for no limit"),
            ({"grace_seconds": -1}, "Ray.grace_seconds: got -1; allowed: a number >= 0"),
            ({"start_seconds": 0}, "Ray.start_seconds: got 0; allowed: a number > 0"),
            ({"address": ""}, "Ray.address: got ''; allowed: 'HOST:PORT', 'auto', 'local', or None"),
        ],
    )
    def test_bad_settings(self, settings, sentence):
        with pytest.raises(EngineError) as caught:
            Ray(**settings)
        assert str(caught.value) == sentence

    def test_a_study_file_can_name_it(self):
        engine = make("engine", {"name": "Ray", "workers": 3, "timeout_seconds": 5})
        assert isinstance(engine, Ray)
        assert (engine.workers, engine.timeout_seconds) == (3, 5)
        with pytest.raises(InputError, match=r"\[engine\] Ray: 'gpu' is unknown; allowed: workers, .*gpus_per_node"):
            make("engine", {"name": "Ray", "gpu": 3})

    def test_without_ray(self, monkeypatch):
        """The sentence says how to get it."""
        monkeypatch.setattr("importlib.import_module", _absent)
        with pytest.raises(MissingExtra, match=r'tw.Ray needs ray: pip install "\.\[ray\]"'):
            _ = Ray().slots

    def test_another_ray(self, monkeypatch):
        monkeypatch.setattr(ray, "__version__", "2.9.3")
        with pytest.raises(EngineError, match=r"ray 2.9.3 is installed; tw.Ray needs 2.55 or later, below 3"):
            _ = Ray().slots

    @pytest.mark.parametrize(
        ("address", "sentence"),
        [
            ("127.0.0.1:9", "Ray.address: no cluster can be joined at '127.0.0.1:9' ("),
            ("ray://127.0.0.1:10001", "Ray.address: got 'ray://127.0.0.1:10001'; allowed: HOST:PORT of a cluster"),
        ],
    )
    def test_where_no_cluster_is(self, address, sentence, monkeypatch):
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(EngineError) as caught:
            connect(load_ray(), address, 1)
        assert str(caught.value).startswith(sentence)

    def test_a_function_that_cannot_be_shipped(self):
        """It is named, before anything is joined or started."""
        with pytest.raises(EngineError, match=r"train: .*<lambda> is defined inside another function or is a lambda"):
            Ray().open(lambda trial: None, None)


def _absent(name):
    raise ImportError(name)


def test_a_study_from_end_to_end(cluster, tmp_path):
    """Two devices share twelve trials, each with its log; nothing stays."""
    engine = Ray(workers=2)
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min val_loss", directory=tmp_path / "study")
    study.run(trainings.plain, trials=12, engine=engine, searcher=tw.RandomSearcher(), progress=False)
    assert study.state.results == 12
    pids = {trial.values["pid"] for trial in study.trials}
    assert len(pids) <= 2
    devices = {device for trial in study.trials for lease in trial.leases.values() for device in lease.devices}
    assert {name.rpartition("/")[2] for name in devices} <= {"cpu:0", "cpu:1"}
    assert (tmp_path / "study/logs/trial-000000/lease-1.log").exists()
    assert left_over() == []
    assert not any(Path(f"/proc/{int(pid)}").exists() for pid in pids)


def _assignment(params, **more):
    return Assignment(trial=0, lease=1, params=params, seed=0, **more)
