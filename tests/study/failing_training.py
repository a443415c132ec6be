"""Training functions that fail in one way each, at the top of a module so that workers find them."""

import ctypes
import os
import signal

import trainwright as tw

__all__ = ["KINDS", "LINES", "begun", "fails"]


def begun(folder):
    """Return how many runs of trials were begun."""
    return len(list(folder.glob("begun-*")))


def fails(trial):
    """Fail as `kind` says, in the epoch that `epoch` says."""
    folder, kind = trial.params["folder"], trial.params["kind"]
    with open(f"{folder}/begun-{trial.number}-{trial.assignment.lease}", "w"):  # noqa: PTH123
        pass
    for epoch in trial.epochs():
        if epoch == trial.params["epoch"]:
            KINDS[kind](trial)
        trial.report(loss=1 / epoch)


def _type_error(trial):
    return trial.number + "x"


def _import_error(_):
    import no_such_module  # noqa: F401


def _exit(_):
    raise SystemExit(3)


def _library_error(_):
    signal.signal("no signal", None)


def _bad_setting(_):
    tw.FixedEpochs(0)


def _missing_metric(trial):
    trial.report(other=1.0)


def _hard_exit(_):
    os._exit(3)


def _crash(_):
    ctypes.string_at(0)


def _out_of_memory(_):
    raise MemoryError


KINDS = {
    "TypeError": _type_error,
    "ModuleNotFoundError": _import_error,
    "SystemExit": _exit,
    "library": _library_error,
    "setting": _bad_setting,
    "missing": _missing_metric,
    "exit": _hard_exit,
    "crash": _crash,
    "memory": _out_of_memory,
}
"""What may go wrong, by name."""

LINES = {kind: function.__code__.co_firstlineno + 1 for kind, function in KINDS.items()}
"""The line in which each goes wrong."""
