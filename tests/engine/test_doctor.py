"""The examination of a machine: each check, where the machine differs."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from trainwright.engine.doctor import packages
from trainwright.engine.doctor.examination import (
    check_devices,
    check_engines,
    check_folder,
    examine,
    find_file_system,
)
from trainwright.engine.doctor.packages import GIVES, check_extras, check_packages, import_torch
from trainwright.errors import InputError

GIB = 1 << 30
REQUIREMENTS = [
    "numpy>=2.0",
    'torch>=2.11; extra == "torch"',
    "safetensors>=0.5; extra == 'torch'",
    "ray[default]<3,>=2.55; extra == 'ray'",
    "uvloop>=0.21; (platform_system != 'Windows') and extra == 'serve'",
    "ray[default]<3,>=2.55; extra == 'all'",
]
TORCH = {"cuda": None, "gpus": []}


class Row(NamedTuple):
    name: str
    state: str
    says: str
    mend: str = ""


def named(findings):
    return {row[0]: Row(*row) for row in findings}


@pytest.fixture
def installed(monkeypatch):
    """Let these packages be installed, by version; return them."""
    versions = {"numpy": "2.4.6", "torch": "2.13.0+cpu", "safetensors": "0.8.0"}
    monkeypatch.setattr("importlib.metadata.requires", lambda _name: REQUIREMENTS)
    for module in ("packages", "examination"):
        monkeypatch.setattr(f"trainwright.engine.doctor.{module}.version_of", versions.get)
    return versions


class TestPackages:
    def test_core_and_extras(self, installed):
        """What is there has its version; what is not says what it would give, and its pip line."""
        found = named(check_packages(TORCH)) | named(check_extras())
        assert found["numpy"].says == "2.4.6"
        assert found["ray"].state == "absent"
        assert "several nodes" in found["ray"].says
        assert found["ray"].mend == 'pip install ".[ray]"'
        assert all(finding.mend for finding in found.values() if finding.state != "fine")
        del installed["numpy"]
        broken = named(check_packages(TORCH))["numpy"]
        assert (broken.state, broken.mend) == ("broken", 'pip install "numpy>=2.0"')

    def test_an_extra_in_part(self, installed):
        del installed["safetensors"]
        found = named(check_extras())["torch"]
        assert found.state == "absent"
        assert "safetensors missing" in found.says

    @pytest.mark.parametrize(
        ("script", "says"),
        [
            ("import os; os.abort()", "status -6"),
            ("raise ImportError('ABI')", "ImportError: ABI"),
            ("import time; time.sleep(60)", "in time"),
        ],
    )
    def test_a_torch_that_crashes_or_hangs(self, installed, monkeypatch, script, says):
        monkeypatch.setattr(packages, "_TORCH", script)
        monkeypatch.setattr(packages, "_SECONDS", 2.0)
        found = named(check_packages(import_torch()))["torch"]
        assert (found.state, says in found.says) == ("broken", True)

    def test_each_extra_says_what_it_gives(self):
        """The table has the extras of pyproject.toml."""
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        assert set(GIVES) == set(project["optional-dependencies"]) - {"all"}


class TestDevices:
    def test_few_cores(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        found = named(check_devices(TORCH))["cores"]
        assert (found.state, found.says[:7]) == ("poor", "1 of 64")
        assert "--cpus-per-task" in found.mend

    def test_gpus(self, monkeypatch):
        """GPUs that PyTorch sees are counted; those that it does not are told."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert named(check_devices(TORCH))["gpus"].state == "absent"
        seen = {"cuda": "12.8", "gpus": [{"name": "H100", "bytes": 80 * GIB}] * 4}
        assert named(check_devices(seen))["gpus"].says == "4 x H100 with 80.00 GiB"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert named(check_devices(TORCH))["gpus"].says == "2 are there, but PyTorch does not reach them"

    def test_small_shared_memory(self, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=64 << 20, free=0))
        assert "--shm-size" in named(check_devices(TORCH))["shared memory"].mend


class TestEngines:
    def test_launchers(self, installed, monkeypatch):
        for variable in ("SLURM_JOB_ID", "PBS_JOBID", "OMPI_COMM_WORLD_RANK", "COMPSS_HOME", "RAY_ADDRESS"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(shutil, "which", lambda _program: None)
        assert {each.state for each in named(check_engines()).values()} == {"absent"}
        installed["ray"] = "2.60"
        monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
        monkeypatch.setenv("RAY_ADDRESS", "node1:6379")
        monkeypatch.setenv("SLURM_JOB_ID", "42")
        found = named(check_engines())
        assert {each.state for each in found.values()} == {"fine"}
        assert "node1:6379" in found["Ray"].says
        assert "SLURM_JOB_ID=42" in found["Slurm"].says


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
        (tmp_path / "mountinfo").write_text(self.MOUNTS)
        assert find_file_system(Path(folder), tmp_path / "mountinfo")[0] == kind

    @pytest.mark.parametrize(
        ("kind", "state", "says"), [("nfs4", "fine", "hosts"), ("tmpfs", "poor", "gone"), ("ext4", "fine", "alone")]
    )
    def test_whose_disk(self, tmp_path, monkeypatch, kind, state, says):
        monkeypatch.setattr("trainwright.engine.doctor.examination.find_file_system", lambda *_: (kind, "/"))
        found = named(check_folder(tmp_path))["file system"]
        assert (found.state, says in found.says) == (state, True)

    def test_a_good_folder_stays_as_it_was(self, tmp_path):
        (tmp_path / "mine").write_text("")
        assert named(check_folder(tmp_path))["claims"].state == "fine"
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_room(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=GIB, free=1000))
        assert named(check_folder(tmp_path))["room"].state == "poor"

    def test_no_links(self, tmp_path, monkeypatch):
        """Some file systems have no hard links; on others a lost answer lets a name be linked twice."""

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        assert named(check_folder(tmp_path))["claims"].state == "broken"
        monkeypatch.setattr(os, "link", lambda *_: None)
        assert "linked twice" in named(check_folder(tmp_path))["claims"].says

    def test_slow_syncs(self, tmp_path, monkeypatch):
        clock = iter(range(1000))
        monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
        assert named(check_folder(tmp_path))["syncs"].state == "poor"

    def test_full_disk(self, tmp_path, monkeypatch):
        def refuse(*_args, **_keywords):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
        found = named(check_folder(tmp_path))["writing"]
        assert (found.state, "no space left" in found.says) == ("broken", True)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        examine(tmp_path / "nowhere")


def test_this_machine(monkeypatch):
    """The tests' own Python is told, nothing is broken, and each sentence fits on a line or two."""
    done = subprocess.CompletedProcess([], 0, '{"cuda": null, "gpus": []}\n', "")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_keywords: done)
    found = examine()
    assert sys.executable in next(each.says for each in found if each.name == "python")
    assert all(0 < len(each.says) < 200 for each in found)
    assert not [each for each in found if each.state == "broken"]
