"""The examination of a machine, on machines made up for it."""

import dataclasses
import os
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from trainwright.engine.doctor.examination import examine, examine_engines
from trainwright.engine.doctor.folder import examine_folder, file_system
from trainwright.engine.doctor.machine import Machine, examine_devices
from trainwright.engine.doctor.packages import GIVES, examine_extras, examine_packages, imported
from trainwright.errors import InputError

GIB = 1 << 30
REQUIREMENTS = (
    "numpy>=2.0",
    'torch>=2.11; extra == "torch"',
    "safetensors>=0.5; extra == 'torch'",
    "ray[default]<3,>=2.55; extra == 'ray'",
    "uvloop>=0.21; (platform_system != 'Windows') and extra == 'serve'",
    "ray[default]<3,>=2.55; extra == 'all'",
    *(f"x-{extra}; extra == '{extra}'" for extra in GIVES if extra not in {"torch", "ray", "serve"}),
)
VERSIONS = {"numpy": "2.4.6", "torch": "2.13.0+cpu", "safetensors": "0.8.0"}
TORCH = {"cuda": None, "gpus": []}


def host(root, *, versions=VERSIONS, programs=(), files=None, **changes):
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    settings = {
        "root": root,
        "environment": {},
        "python": (3, 12, 1),
        "version": versions.get,
        "requirements": lambda: REQUIREMENTS,
        "which": lambda name: f"/usr/bin/{name}" if name in programs else None,
        "run": lambda command, _seconds: (0, f"{command[0]} v=7.0\n"),
        "room": lambda _path: (100 * GIB, 50 * GIB),
        "processors": lambda: (8, 8),
        "open_files": lambda: 4096,
    }
    return Machine(**{**settings, **changes})


class Row(NamedTuple):
    name: str
    state: str
    says: str
    mend: str = ""


def named(findings):
    return {row[0]: Row(*row) for row in findings}


class TestPackages:
    def test_core_and_extras(self, tmp_path):
        """What is there has its version; what is not says what it would give, and its pip line."""
        found = named(examine_packages(host(tmp_path), {"torch": TORCH}))
        assert found["numpy"].says == "2.4.6"
        found |= named(examine_extras(host(tmp_path)))
        assert found["ray"].state == "absent"
        assert "several nodes" in found["ray"].says
        assert found["ray"].mend == 'pip install ".[ray]"'
        assert all(finding.mend for finding in found.values() if finding.state != "fine")

    @pytest.mark.parametrize(
        ("versions", "probed", "name", "says"),
        [
            ({}, {}, "numpy", "is not installed"),
            (VERSIONS, {"numpy": {"error": "ImportError: ABI"}}, "numpy", "ImportError: ABI"),
        ],
    )
    def test_broken(self, tmp_path, versions, probed, name, says):
        found = named(examine_packages(host(tmp_path, versions=versions), probed))[name]
        assert found.state == "broken"
        assert says in found.says
        assert found.mend

    def test_old_python(self, tmp_path):
        assert named(examine_packages(host(tmp_path, python=(3, 10, 4)), {}))["python"].state == "broken"

    def test_an_extra_in_part(self, tmp_path):
        torch_alone = named(examine_extras(host(tmp_path, versions={**VERSIONS, "safetensors": None})))["torch"]
        assert torch_alone.state == "absent"
        assert "safetensors missing" in torch_alone.says

    def test_an_extra_that_needs_nothing_is_not_told(self, tmp_path):
        without = tuple(line for line in REQUIREMENTS if "yaml" not in line)
        found = named(examine_extras(host(tmp_path, requirements=lambda: without)))
        assert "yaml" not in found

    def test_import_that_ends_the_interpreter(self, tmp_path):
        """A crash or a hang is told of the package that was being imported."""

        def run(command, _seconds):
            return (-11 if "torch" in command[-1] else None), "noise\n"

        found = imported(host(tmp_path, run=run))
        assert "status -11" in found["torch"]["error"]
        assert "in time" in found["numpy"]["error"]

    def test_import_for_real(self):
        """A package that is there imports, one that is not fails with its name."""
        found = imported(Machine(requirements=lambda: ("json", "no_such_package"), version={}.get))
        assert found["json"] == {}
        assert "ModuleNotFoundError" in found["no_such_package"]["error"]

    def test_each_extra_says_what_it_gives(self):
        """The table has the extras of pyproject.toml."""
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        assert set(GIVES) == set(project["optional-dependencies"]) - {"all"}


class TestDevices:
    def look(self, root, torch=TORCH, **changes):
        return named(examine_devices(host(root, **changes), torch))

    def test_cores(self, tmp_path):
        assert self.look(tmp_path)["cores"].state == "fine"
        bound = self.look(tmp_path, processors=lambda: (1, 64))["cores"]
        assert bound.state == "poor"
        assert "--cpus-per-task" in bound.mend
        group = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
        assert "the time of 2" in self.look(tmp_path, files=group)["cores"].says

    def test_memory(self, tmp_path):
        files = {"proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\nHugePages_Total: 0\n"}
        assert self.look(tmp_path, files=files)["memory"].says == "4.0 GiB, of which 1.0 GiB are free"
        files |= {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": str(GIB)}
        assert self.look(tmp_path, files=files)["memory"].says.endswith("more than 1.0 GiB")

    def test_gpus(self, tmp_path):
        """GPUs that PyTorch sees are counted; those that it does not are told with the reason."""
        assert self.look(tmp_path)["gpus"].state == "absent"
        seen = {"cuda": "12.8", "gpus": [{"name": "H100", "bytes": 80 * GIB}] * 4}
        assert self.look(tmp_path, seen)["gpus"].says == "4 x H100 with 80.0 GiB"
        files = {f"proc/driver/nvidia/gpus/{i}/information": "" for i in range(2)}
        assert "built for processors alone" in self.look(tmp_path, files=files)["gpus"].says
        assert "cannot reach them" in self.look(tmp_path, {"cuda": "12.8", "gpus": []})["gpus"].says
        assert "not installed" in self.look(tmp_path, {})["gpus"].says
        hidden = self.look(tmp_path, environment={"CUDA_VISIBLE_DEVICES": "-1"})["gpus"]
        assert "CUDA_VISIBLE_DEVICES" in hidden.says
        assert all(self.look(tmp_path, torch)["gpus"].state == "poor" for torch in ({}, TORCH))

    def test_limits(self, tmp_path):
        found = self.look(tmp_path, open_files=lambda: 256, room=lambda _: (64 << 20, 0))
        assert found["ulimit -n"].mend == "ulimit -n 1024 before the run"
        assert "--shm-size" in found["shared memory"].mend
        absent = self.look(tmp_path, open_files=lambda: None, room=lambda _: None)
        assert not {"ulimit -n", "shared memory"} & set(absent)


class TestEngines:
    def test_nothing_is_there(self, tmp_path):
        found = named(examine_engines(host(tmp_path)))
        assert {each.state for each in found.values()} == {"absent"}

    def test_all_are_there(self, tmp_path):
        programs = ("sbatch", "qsub", "mpirun", "redis-server", "runcompss")
        whole = host(tmp_path, programs=programs, versions={"ray": "2.60"}, environment={"RAY_ADDRESS": "node1:6379"})
        found = named(examine_engines(whole))
        assert {each.state for each in found.values()} == {"fine"}
        assert "node1:6379" in found["Ray"].says

    def test_inside_of_a_job(self, tmp_path):
        found = named(examine_engines(host(tmp_path, environment={"SLURM_JOB_ID": "42", "PBS_JOBID": "7.head"})))
        assert "SLURM_JOB_ID=42" in found["Slurm"].says
        assert "7.head" in found["PBS"].says


class TestFolder:
    MOUNTS = (
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "23 22 0:1 / /data rw - lustre mgs@tcp:/data rw\n"
        "24 22 0:2 / /data/my\\040scratch rw - tmpfs tmpfs rw\n"
        "25 22 0:3 / /home rw shared:1 - nfs4 server:/home rw\n"
    )

    @pytest.mark.parametrize(
        ("folder", "kind"),
        [
            ("/", "ext4"),
            ("/data/x", "lustre"),
            ("/database", "ext4"),
            ("/data/my scratch/x", "tmpfs"),
            ("/home", "nfs4"),
        ],
    )
    def test_file_system(self, tmp_path, folder, kind):
        assert file_system(host(tmp_path, files={"proc/self/mountinfo": self.MOUNTS}), Path(folder))[0] == kind

    def look(self, root, **changes):
        return named(examine_folder(host(root, **changes), root))

    def test_a_good_folder_stays_as_it_was(self, tmp_path):
        (tmp_path / "mine").write_text("")
        found = self.look(tmp_path)
        assert {found[name].state for name in ("room", "claims")} == {"fine"}
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    @pytest.mark.parametrize(("kind", "state"), [("nfs4", "fine"), ("tmpfs", "poor"), ("overlay", "poor")])
    def test_whose_disk(self, tmp_path, kind, state):
        found = self.look(tmp_path, files={"proc/self/mountinfo": f"22 1 0:1 / / rw - {kind} x rw\n"})["file system"]
        assert (found.state, kind in found.says) == (state, True)

    def test_room(self, tmp_path):
        assert self.look(tmp_path, room=lambda _: (GIB, 1000))["room"].state == "poor"

    def test_no_links(self, tmp_path, monkeypatch):
        """Some file systems have no hard links; on others a lost answer lets a name be linked twice."""

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        assert self.look(tmp_path)["claims"].state == "broken"
        monkeypatch.setattr(os, "link", lambda *_: None)
        assert "linked twice" in self.look(tmp_path)["claims"].says

    def test_slow_syncs(self, tmp_path, monkeypatch):
        clock = iter(range(1000))
        monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
        assert self.look(tmp_path)["syncs"].state == "poor"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_unwritable(self, tmp_path):
        tmp_path.chmod(0o500)
        assert self.look(tmp_path)["writing"].state == "broken"
        tmp_path.chmod(0o700)

    def test_full_disk(self, tmp_path, monkeypatch):
        def refuse(*_args, **_keywords):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
        found = self.look(tmp_path)["writing"]
        assert (found.state, "no space left" in found.says) == ("broken", True)


def test_what_is_broken_decides(tmp_path):
    """Missing and poor things are no broken ones; a Python that is too old is."""
    good = host(tmp_path, run=lambda _command, _seconds: (0, ""))
    found = examine(tmp_path, host=good)
    states = {finding.state for finding in found}
    assert "absent" in states
    assert "broken" not in states
    old = examine(tmp_path, host=dataclasses.replace(good, python=(3, 8, 0)))
    assert [finding.name for finding in old if finding.state == "broken"] == ["python"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        examine(tmp_path / "nowhere")


def test_this_machine():
    """The tests' own Python is told, and each sentence fits on a line or two."""
    found = examine(host=Machine(run=lambda _command, _seconds: (0, "")))
    assert sys.executable in next(each.says for each in found if each.name == "python")
    assert all(0 < len(each.says) < 200 for each in found)
