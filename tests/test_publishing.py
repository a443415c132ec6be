"""Publishing: after a crash, on a full disk, there is the old content or the new; and nobody writes otherwise."""

import ast
import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from source_files import FILES, ROOT, calls
from trainwright import publishing
from trainwright.publishing import FileLayer, make_folder, publish, write_file

OTHERWISE = {  # what is written in another way, and why
    "publishing.py": "it is the way",
    "checkpoint/save/publish.py": "the names of a checkpoint's folder, by the operations of `publishing.FileLayer`",
    "checkpoint/tools/formats/*": "a format writes at the temporary path that `publish` gives",
    "checkpoint/tools/proof.py": "what a proof's ranks say, in a folder of its own that is removed",
    "checkpoint/tools/step_digests.py": "a proof's journal grows, in a folder of its own that is removed",
    "engine/doctor/examination.py": "it tries what a file system can do",
    "engine/process/worker.py": "a log grows",
    "ledger/directory.py": "a claim is whoever's was first, by a link or exclusive creation; a beat is only counted",
    "ledger/journal.py": "a journal only grows, and knows torn ends",
    "cli/submit.py": "a list of jobs grows, to which their scripts append too",
    "cluster/calibration/compute.py": "it measures writing",
    "study/driver/clone_checkpoints.py": "it links at the temporary path of `publish`, and hands over by a rename",
    "testing/*": "a kit writes in temporary folders of its own",
    "integrations/accelerate.py": "a checkpoint of a framework counts once its marker is published",
    "integrations/transformers.py": "likewise",
    "report/paper.py": "matplotlib writes at the temporary path that `publish` gives",
    "report/exports.py": "polars writes at the temporary path that `publish` gives",
}
METHODS = {"write_text", "write_bytes", "write_parquet", "savefig"}
FUNCTIONS = {
    "json.dump", "torch.save", "np.save", "np.savez", "np.savetxt", "os.replace", "os.rename", "shutil.copy",
    "shutil.copyfile", "shutil.copytree", "shutil.move", "tempfile.mkstemp", "pickle.dump",
}  # fmt: skip


def writes(path):
    """Yield the lines of a file that write, replace or rename files by themselves."""
    for name, call in calls(path):
        method = name.rpartition(".")[2]
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        mode = next((k.value.value for k in call.keywords if k.arg == "mode" and isinstance(k.value, ast.Constant)), "")
        opens = method in {"open", "ZipFile", "File", "fdopen"} and any(
            set(text) & set("wxa+") and set(text) <= set("wxarbt+") for text in (*texts, str(mode))
        )
        # one argument: text.replace has two
        replaces = method == "replace" and isinstance(call.func, ast.Attribute) and len(call.args) == 1
        creates = name == "os.open" and any(word in ast.unparse(call) for word in ("O_CREAT", "O_WRONLY", "O_RDWR"))
        renames = method == "rename" and len(call.args) in {1, 2}
        if opens or creates or replaces or renames or name in FUNCTIONS or (method in METHODS and name != method):
            yield call.lineno


def test_files_are_written_by_publishing_alone():
    """A file that must not be lost is published; whatever else is written says here why it may be."""
    found = {path.relative_to(ROOT): [*writes(path)] for path in FILES if path.name != "conformance.py"}
    direct = {path: lines for path, lines in found.items() if lines}
    allowed = {path for path in direct for pattern in OTHERWISE if path.match(pattern)}
    unexplained = {str(path): lines for path, lines in direct.items() if path not in allowed}
    assert not unexplained, "write with trainwright.publishing, or say in OTHERWISE why not"
    needless = [pattern for pattern in OTHERWISE if not any(path.match(pattern) for path in direct)]
    assert not needless


# Files.


@pytest.fixture
def failing(monkeypatch):
    def fail(name, code):
        def call(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(FileLayer, name, call)

    return fail


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_is_replaced_as_a_whole(tmp_path, before):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    write_file(path, "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_permissions_and_links_stay(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_device_is_written_to():
    write_file(os.devnull, "x")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_what_was_left_by_another_is_no_draft(tmp_path):
    """Whoever may write in the folder cannot make the draft beforehand: its name is drawn, and it must be new."""
    old = os.umask(0)
    try:
        write_file(tmp_path / "secret", "x", mode=0o600)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", ["write", "sync", "sync_folder"])
def test_a_failure_leaves_the_old_file(tmp_path, failing, name, code):
    path = tmp_path / "file"
    path.write_text("old")
    failing(name, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        write_file(path, "new")
    assert path.read_text() == ("new" if name == "sync_folder" else "old")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# Folders.


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr("sys.platform", "other")
    for content in ("first", "second"):
        with publish(tmp_path / "folder") as temporary:
            (temporary / "inner").mkdir(parents=True)
            (temporary / "inner" / "file").write_text(content)
        assert (tmp_path / "folder" / "inner" / "file").read_text() == content
        assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_an_error_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("old")

    def fill(temporary):
        temporary.mkdir()
        (temporary / "file").write_text("new")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), publish(folder) as temporary:
        fill(temporary)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    assert (folder / "file").read_text() == "old"
    with pytest.raises(FileExistsError), publish(folder, replace=False) as temporary:
        temporary.mkdir()
    assert (folder / "file").read_text() == "old"


def killed_at(folder, calls_left):
    """Publish in a child that kills itself before its n-th call of the system; return whether it came to the end."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    left = [calls_left]

    def deadly(real):
        def call(*arguments, **named):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return real(*arguments, **named)

        return call

    try:
        for name in ("open", "write", "fsync", "rename", "replace", "mkdir"):
            setattr(os, name, deadly(getattr(os, name)))
        publishing._exchange = deadly(publishing._exchange)
        write_file(folder / "file", "new" * 1000)
        with publish(folder / "folder") as temporary:
            temporary.mkdir()
            write_file(temporary / "a", "new")
            write_file(temporary / "b", "new")
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_call_leaves_the_old_or_the_new(tmp_path):
    for number in range(100):
        folder = tmp_path / str(number)
        (folder / "folder").mkdir(parents=True)
        for name in ("file", "folder/a", "folder/b"):
            (folder / name).write_text("old")
        ended = killed_at(folder, number)
        assert (folder / "file").read_text() in {"old", "new" * 1000}
        assert len({(folder / "folder" / name).read_text() for name in "ab"}) == 1
        if ended:
            break
    assert ended
    assert number > 10


def test_folders_last(tmp_path):
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "c").is_dir()
