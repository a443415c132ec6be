"""What SECURITY.md says, as far as code can tell."""

import ast
import importlib
import inspect
import pickle
from pathlib import Path

import pytest

from source_files import FILES, ROOT, calls, tree
from trainwright.http_security import is_loopback, token_for

PAGE = (ROOT.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
NAMES = {path.relative_to(ROOT).as_posix(): path for path in FILES}

# Each reads what this very program wrote, or refuses all but a list of records; reasons beside them.
UNPICKLES = {
    "ui/figure_views.py": "a copy of what it holds in memory",
}
CONNECTIONS = {  # lines on which multiprocessing's pickles go
    "engine/process/worker.py": "a trial's process and its engine",
    "engine/process/supervisor.py": "likewise",
    "engine/nodes/member_engine.py": "a gang's driver and its members, which have shown its secret",
    "engine/nodes/member.py": "likewise",
}
KITS = "testing/", "conformance.py"


def test_pickles_are_read_in_few_places():
    found = {
        name
        for name, path in NAMES.items()
        if not (name.startswith(KITS) or name.endswith(KITS))
        for called, _ in calls(path)
        if called in {"pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.loads", "marshal.loads"}
    } | {
        name
        for name, path in NAMES.items()
        if any(
            "pickle.Unpickler" in map(ast.unparse, n.bases) for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)
        )
    }
    assert found == set(UNPICKLES)


def test_lines_of_pickles_are_between_own_processes():
    """`Connection.recv` unpickles: only processes that started each other speak so, and none below serve or ui."""
    found = {
        name
        for name, path in NAMES.items()
        for called, call in calls(path)
        if called.endswith((".recv",)) and not call.args
    }
    assert found == set(CONNECTIONS)


def test_torch_files_are_read_as_weights():
    """No `torch.load` is without `weights_only=True`."""
    for name, path in NAMES.items():
        for called, call in calls(path):
            if called == "torch.load" and not (name.startswith(KITS) or name.endswith(KITS)):
                told = {word.arg: ast.unparse(word.value) for word in call.keywords}
                assert told.get("weights_only") == "True", name


def test_arrays_and_yaml_are_read_without_objects():
    for name, path in NAMES.items():
        for called, call in calls(path):
            told = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert told.get("allow_pickle", "False") == "False", name
            assert called not in {"yaml.load", "yaml.unsafe_load", "yaml.full_load"}, name


def test_text_is_executed_where_it_is_the_users_script():
    found = {name for name, path in NAMES.items() for called, _ in calls(path) if called in {"exec", "eval"}}
    assert found == {"engine/function_reference.py"}


def test_nothing_loads_programs_of_torch():
    """Members without a factory are ONNX files, which hold no code; torch's reader of programs runs what it finds."""
    found = {name for name, path in NAMES.items() for called, _ in calls(path) if called == "torch.export.load"}
    assert not found
    loaded = {name for name, path in NAMES.items() for called, _ in calls(path) if called.endswith("InferenceSession")}
    assert loaded == {"ensemble/export/onnx_file.py"}
    assert "register_custom_ops" not in (ROOT / "ensemble/export/onnx_file.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("reader", ["torch", "safetensors"])
def test_a_checkpoint_runs_nothing(reader, tmp_path):
    """A file that is a pickle with code in it is refused by each reader; more in the formats' conformance."""
    from trainwright.checkpoint.tools.formats.format import FORMATS
    from trainwright.errors import CheckpointError

    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return Path.touch, (mark,)

    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError):
        FORMATS[reader].read(path)
    assert not mark.exists()


LISTENERS = {
    "trainwright.serve.http.server": ("Server.__init__", "host"),
    "trainwright.serve.deployment": ("Deployment.run", "host"),
}


@pytest.mark.parametrize("module", LISTENERS)
def test_listeners_bind_to_loopback_unless_told(module):
    name, parameter = LISTENERS[module]
    owner, method = name.split(".")
    function = getattr(getattr(importlib.import_module(module), owner), method)
    assert is_loopback(inspect.signature(function).parameters[parameter].default)


def test_commands_that_listen_bind_to_loopback_unless_told():
    """Every command with --host has loopback as its default."""
    found = {}
    for name, path in NAMES.items():
        if not name.startswith("cli/"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
                values = [None] * (len(node.args.args) - len(node.args.defaults))
                values += [*node.args.defaults, *node.args.kw_defaults]
                found |= {
                    f"{name}:{node.name}": ast.literal_eval(value)
                    for each, value in zip(names, values, strict=True)
                    if each == "host" and value is not None
                }
    assert found
    assert all(is_loopback(host) for host in found.values()), found


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "node17"])  # noqa: S104 -- hosts that are not loopback
def test_beyond_loopback_there_is_a_token(host):
    from trainwright.serve.http.server import Server

    assert not is_loopback(host)
    assert len(token_for(host) or "") >= 32
    assert Server(service=None, host=host).token


def test_sockets_listen_in_few_places():
    """Whatever takes connections is in the table of the page; the page's own server may come to be one of them."""
    found = {
        name
        for name, path in NAMES.items()
        for called, _ in calls(path)
        if called.endswith((".listen", ".create_server", "uvicorn.Server", "uvicorn.run", "HTTPServer", ".Listener"))
    }
    assert {name for name in found if not name.startswith("ui/")} == {
        "http_security.py",
        "serve/http/server.py",
        "engine/process/listener.py",
    }


def test_limits_are_those_of_the_page():
    from trainwright.serve.service import Limits

    limits = Limits()
    assert f"{limits.body_bytes >> 20} MiB" in PAGE
    assert f"{limits.rows:,} rows" in PAGE
    assert f"{limits.body_seconds:.0f}\n  seconds" in PAGE
    assert f"{limits.connections:,} connections" in PAGE


def test_the_redis_address_is_private(tmp_path):
    """`ledger/url` may hold a password, so it is the owner's alone."""
    from trainwright.ledger import opening

    assert "0o600" in inspect.getsource(opening)


def test_a_token_file_that_others_may_read_is_refused(tmp_path):
    from trainwright.errors import InputError

    file = tmp_path / "token"
    file.write_text("a" * 32)
    file.chmod(0o644)
    with pytest.raises(InputError, match="chmod"):
        token_for("127.0.0.1", file)
    file.chmod(0o600)
    assert token_for("127.0.0.1", file) == "a" * 32
