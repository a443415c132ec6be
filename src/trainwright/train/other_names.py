"""What to use instead of the names that trials have in Optuna."""

from collections.abc import Collection

from trainwright.errors import closest

__all__ = ["instead_of"]


def instead_of(name: str, known: Collection[str]) -> str:
    """Return what to use instead of a name that `Trial` does not have, of those that are `known`."""
    optuna = "or run an Optuna objective as it is by tw.from_optuna"
    if name.startswith("suggest_"):
        return f"the values are in trial.params: give the study a Space, tw.Space(x=tw.Float(0, 1)), {optuna}"
    if name in _INSTEAD:
        return f"use {_INSTEAD[name]}, {optuna}"
    public = [item for item in known if not item.startswith("_")]
    return f"a Trial has {', '.join(public)}{closest(name, public)}; {optuna.removeprefix('or ')}"


_INSTEAD = {
    "set_user_attr": "trial.note",
    "set_system_attr": "trial.note",
    "user_attrs": "trial.note, and study.state.notes",
    "system_attrs": "trial.note, and study.state.notes",
    "distributions": "the study's Space",
    "relative_params": "trial.params",
    "study": "the Study outside the training function",
    "datetime_start": "study.state.trials[number].leases",
}
"""Our names, by Optuna's."""
