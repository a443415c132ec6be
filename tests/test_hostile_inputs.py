"""Files that somebody else may have made: each is refused in one sentence, soon, and nothing in it runs.

The system holds every test to 1 GiB of memory beyond what is loaded, and to 10 s of processor time.
"""

import contextlib
import importlib
import json
import os
import time
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

import trainwright as tw
from resource_limits import GIBIBYTE, limited
from trainwright.checkpoint.tools.inspect import inspect, verify
from trainwright.cli.main import build_app
from trainwright.cli.workflow.study_file import read_job
from trainwright.ensemble import Ensemble
from trainwright.ensemble.ensemble_settings import StoredSettings
from trainwright.errors import TrainwrightError
from trainwright.ledger import DirectoryLedger, state_of
from trainwright.model.chain import Chain
from trainwright.plan.memory.plan_record import Plan
from trainwright.serve.placement.deployment_plan import DeploymentPlan

MARKER = "a-marker"
"""A file that hostile code would make."""

RUN = f"__import__('os').system('touch {MARKER}')"
TEXTS = {
    "nested lists": "[" * 200_000,
    "nested objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "nested tables": "[a" + ".a" * 20_000 + "]\n",
    "a number of a million digits": '{"nodes": ' + "9" * 1_000_000 + "}",
    "a number of a million digits, TOML": "nodes = " + "9" * 1_000_000 + "\n",
    "no number": '{"nodes": NaN, "stages": Infinity, "format": -Infinity, "v": 1e999}',
    "code": json.dumps(RUN),
    "code in every place": json.dumps(dict.fromkeys(("format", "kind", "name", "train", "stages", "device", "v"), RUN)),
    "code as a tag": f'!!python/object/apply:os.system ["touch {MARKER}"]\n',
    "a pickle": f"cos\nsystem\n(S'touch {MARKER}'\ntR.",
    "bytes": "\x00\x01\x02\udcff",
    "a path upwards": json.dumps(
        {"format": 1, "files": ["../../../../etc/passwd"], "members": [{"path": "/etc/passwd"}]}
    ),
    "keys twice": '{"nodes": 1, "nodes": 2, "format": 1, "format": 2}',
    "a list": "[1, 2, 3]",
    "nothing": " \n",
}
READERS = {
    "cluster.toml": tw.Cluster.load,
    "profile.json": tw.Profile.load,
    "chain.json": Chain.load,
    "layout.json": tw.Layout.load,
    "memory-plan.json": Plan.load,
    "deployment.json": DeploymentPlan.load,
    "study.toml": read_job,
    "weights.safetensors": inspect,
    "weights.pt": inspect,
}


@pytest.fixture(autouse=True)
def within_limits():
    # What readers load when they are first called reserves gigabytes of addresses, and is no fault of theirs.
    for name in ("torch", "safetensors", "yaml"):
        importlib.import_module(name)
    with limited():
        yield


def test_the_limits_are_kept():
    with pytest.raises(MemoryError):
        bytearray(2 * GIBIBYTE)
    with pytest.raises(AssertionError, match="processor time"), limited(seconds=0):
        _spin()


def _spin():
    while True:
        pass


@contextlib.contextmanager
def refused(folder, monkeypatch):
    """Expect that what is inside is refused soon, in one sentence, and that nothing runs."""
    monkeypatch.chdir(folder)
    began = time.process_time()
    with pytest.raises(TrainwrightError) as refusal:
        yield
    assert time.process_time() - began < 10
    assert not list(Path(folder).rglob(MARKER))
    assert len(str(refusal.value)) < 5000
    assert "Traceback" not in str(refusal.value)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file(name, text, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_bytes(TEXTS[text].encode(errors="surrogateescape"))
    with refused(tmp_path, monkeypatch):
        READERS[name](path)


@pytest.mark.parametrize("swollen", ["data.pkl", "data/0"])
@pytest.mark.parametrize("read", [inspect, verify])
def test_a_zip_bomb(swollen, read, tmp_path, monkeypatch):
    """As a checkpoint of torch's, which is never compressed."""
    torch.save({"a": torch.zeros(4)}, tmp_path / "honest.pt")
    bomb = zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with zipfile.ZipFile(tmp_path / "honest.pt") as honest, bomb:
        for name in honest.namelist():
            with bomb.open(name, "w", force_zip64=True) as entry:
                entry.write(honest.read(name))
                for _ in range(8 if name.endswith(swollen) else 0):
                    entry.write(bytes(2**20))
    with refused(tmp_path, monkeypatch):
        read(tmp_path / "bomb.pt")


@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_ledger(text, tmp_path, monkeypatch):
    """As the identity of a study."""
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "study.json").write_bytes(TEXTS[text].encode(errors="surrogateescape"))
    with refused(tmp_path, monkeypatch):
        DirectoryLedger(tmp_path / "ledger")


@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_journal(text, tmp_path):
    """As a line with a sound checksum: it is left out, and named."""
    DirectoryLedger(tmp_path, create=True).close()
    line = TEXTS[text].replace("\n", " ").encode(errors="surrogateescape")
    (tmp_path / "journal" / "x-1-0.jsonl").write_bytes(b"%08x %b\n" % (zlib.crc32(line), line))
    ledger = DirectoryLedger(tmp_path)
    assert state_of(ledger).trials == {}
    assert len(ledger.dropped()) == 1


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["manifest.json", "ensemble.json", "export"])
def test_a_hostile_folder(name, text, tmp_path, monkeypatch):
    """Of a checkpoint, of a study with settings of ensembles, and of an export."""
    content = TEXTS[text].encode(errors="surrogateescape")
    if name == "manifest.json":
        (tmp_path / "step-000000000001").mkdir()
        (tmp_path / "step-000000000001" / name).write_bytes(content)
        found = verify(tmp_path)
        assert not found.good
        return
    (tmp_path / "ensemble.json").write_bytes(content)
    with refused(tmp_path, monkeypatch):
        (Ensemble.load if name == "export" else StoredSettings.read)(tmp_path)


@pytest.mark.parametrize("name", ["a pipe", "a device", "a loop of links", "a sparse file"])
def test_what_is_no_file(name, tmp_path):
    """As a journal: none of it is waited for, read for ever, or held in memory."""
    DirectoryLedger(tmp_path, create=True).close()
    path = tmp_path / "journal" / "x-1-0.jsonl"
    if name == "a pipe":
        os.mkfifo(path)
    elif name == "a device":
        path.symlink_to("/dev/zero")
    elif name == "a loop of links":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**34)
    began = time.process_time()
    with contextlib.suppress(TrainwrightError):
        state_of(DirectoryLedger(tmp_path))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("line", ["status {}", "status {} --trial 0", "report {}", "export {} --csv {}/out.csv"])
def test_commands_on_a_study_among_hostile_journals(line, tmp_path, monkeypatch):
    """Its own result is still there; the others' lines are left out, pipes and endless files among them."""
    monkeypatch.chdir(tmp_path)
    space = tw.Space(x=tw.Float(0, 1))
    with tw.Study(space, "min loss", directory=tmp_path / "study", seed=0) as study:
        study.tell(study.ask(), loss=0.25)
    journals = tmp_path / "study" / "ledger" / "journal"
    for number, text in enumerate(TEXTS.values()):
        content = text.replace("\n", " ").encode(errors="surrogateescape")
        (journals / f"x-{number}-0.jsonl").write_bytes(b"%08x %b\n" % (zlib.crc32(content), content))
    os.mkfifo(journals / "y-1-0.jsonl")
    (journals / "y-2-0.jsonl").symlink_to("/dev/zero")
    began = time.process_time()
    words = line.format(*[tmp_path / "study"] * 2).split()
    assert not build_app(words[:1]).main(words, standalone_mode=False)
    assert time.process_time() - began < 10
    assert not list(tmp_path.rglob(MARKER))
    with tw.Study.open(tmp_path / "study") as study:
        assert study.best.values == {"loss": 0.25}
