"""Devices by name, what is found here, and simulated ones."""

import os

import pytest

from trainwright.cluster import Cluster
from trainwright.cluster import Device as Hardware
from trainwright.errors import DeviceError
from trainwright.serve.placement import devices
from trainwright.serve.placement.devices import Device, found_devices, parse_devices, simulated_devices


@pytest.fixture
def eight_cores(monkeypatch):
    """Give the machine eight cores, all of which this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(devices, "cgroup_cores", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("eight_cores")
class TestNames:
    def test_groups_of_cores(self):
        """A group has a thread for each core, and its share of the memory."""
        first, second, third = parse_devices("cpu:0-3, cpu:4,cpu:5-7")
        assert (first.name, first.kind, first.cores, first.threads) == ("cpu:0-3", "cpu", (0, 1, 2, 3), 4)
        assert (second.name, second.cores, second.threads) == ("cpu:4", (4,), 1)
        (whole,) = parse_devices(["cpu"])
        assert whole.cores == tuple(range(8))
        assert whole.name == "cpu:0-7"
        assert whole.capacity_bytes > 0
        assert sum(one.capacity_bytes for one in (first, second, third)) <= whole.capacity_bytes

    def test_found_devices_are_named_as_they_are_asked_for(self):
        found = found_devices()
        assert parse_devices([device.name for device in found]) == found

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("gpu0", "got 'gpu0'"),
            ("", "got ''"),
            ([], "got none"),
            ("cpu:0-8", "core 8 is not here"),
            ("cpu:3-1", "below its first"),
            ("cpu:0,cpu:0", "'cpu:0' twice"),
            ("cpu:0-3,cpu:3-5", "share core 3"),
            ("cpu,cpu:7", "share core 7"),
            ("cuda:99", "there is no 'cuda:99'"),
        ],
    )
    def test_refusals_list_what_was_found(self, given, why):
        with pytest.raises(DeviceError, match=why) as caught:
            parse_devices(given)
        assert "cpu:0-7" in str(caught.value)


def test_a_process_bound_to_some_cores_sees_those(monkeypatch):
    """Cores with gaps are several groups, as a name says only a run of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {2, 3, 6}, raising=False)
    names = [device.name for device in found_devices() if device.kind == "cpu"]
    assert names == ["cpu:2-3", "cpu:6"]


def test_json_round_trip():
    device = Device(name="cpu:0-1", kind="cpu", cores=(0, 1), threads=2, capacity_bytes=5)
    assert Device.from_json(device.to_json()) == device


class TestSimulated:
    def test_every_device_of_every_cluster(self):
        """Two clusters make one set, whose devices say what they are and that they are not here."""
        small = Cluster(1, 2, name="small", device=Hardware(kind="mini", memory_bytes=10**9))
        found = simulated_devices([Cluster.preset("h200"), small])
        assert [device.name for device in found] == ["h200/0", "small/0", "small/1"]
        assert [device.model for device in found] == ["H200-141GB", "mini", "mini"]
        assert all(device.simulated for device in found)
        assert found[0].kind == "cuda"
        assert found[1].capacity_bytes == 10**9

    def test_refusals(self):
        with pytest.raises(DeviceError, match="each with its own name"):
            simulated_devices([Cluster.preset("h200"), Cluster.preset("h200")])
        with pytest.raises(DeviceError, match="each with its own name"):
            simulated_devices([])
        with pytest.raises(DeviceError, match="memory of its device 'unknown' is not known"):
            simulated_devices(Cluster(1, 2))
