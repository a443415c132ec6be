"""Settings: frozen dataclasses whose fields state type, range, default and help once.

    @dataclass(frozen=True, kw_only=True, slots=True)
    class EnsembleSettings(Settings, error=EnsembleError):
        max_members: Annotated[int, integer(minimum=1), "members of the ensemble at most"] = 8

Errors, tables of study files and options of the command line are made from the fields.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from trainwright.errors import InputError, closest
from trainwright.validators import Validator, check

__all__ = ["Setting", "Settings", "refuse_unknown", "settings_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One field of a settings class: its name, type, default, validator (None: everything passes) and help."""

    name: str
    type: Any
    default: Any  # dataclasses.MISSING for one that must be given
    validator: Validator | None
    help: str


class Settings:
    """A dataclass that checks its annotated fields when it is made; `error` in the class's head is what it raises."""

    __slots__ = ()
    _error: ClassVar[type[InputError]] = InputError
    _prefix: ClassVar[str | None] = None

    def __init_subclass__(cls, *, error: type[InputError] | None = None, label: str | None = None) -> None:
        """Keep the error to raise, and what its sentences name before a field ("": nothing; default: the class)."""
        super().__init_subclass__()
        if error is not None:
            cls._error = error
        if label is not None:
            cls._prefix = f"{label}." if label else ""

    def __post_init__(self) -> None:
        """Check each field alone, then `check_together`."""
        prefix = f"{type(self).__name__}." if self._prefix is None else self._prefix
        for setting in settings_of(type(self)):
            if setting.validator is not None:
                check(getattr(self, setting.name), setting.validator, f"{prefix}{setting.name}", self._error)
        self.check_together()

    def check_together(self) -> None:
        """Refuse fields that do not fit each other; for subclasses to define."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Self:
        """Return the settings of a table; errors begin with `where` it is, such as "[ensemble]"."""
        known = settings_of(cls)
        refuse_unknown(table, [setting.name for setting in known], where, cls._error)
        for setting in known:
            if setting.default is dataclasses.MISSING and setting.name not in table:
                names = ", ".join(each.name for each in known)
                meaning = f" ({setting.help})" if setting.help else ""
                raise cls._error(f"{where}: {setting.name!r} is missing{meaning}; allowed: {names}")
        try:
            return cls(**table)
        except cls._error as error:
            raise cls._error(f"{where} {error}") from None


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the fields of a settings class, in their order."""
    return _read_fields(cls)


@cache
def _read_fields(cls: Any) -> tuple[Setting, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_read_field(field, hints[field.name]) for field in dataclasses.fields(cls) if field.init)


def refuse_unknown(
    names: Iterable[str], allowed: Sequence[str], where: str, error: type[InputError] = InputError
) -> None:
    """Raise `error` for the first name that is not allowed."""
    for name in names:
        if name not in allowed:
            near = closest(name, allowed)
            raise error(f"{where}: {name!r} is unknown; allowed: {', '.join(allowed) or 'none'}{near}")


def _read_field(field: "dataclasses.Field[Any]", hint: Any) -> Setting:
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    default = field.default
    if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return Setting(
        name=field.name,
        type=kind,
        default=default,
        validator=next((extra for extra in extras if isinstance(extra, Validator)), None),
        help=next((extra for extra in extras if isinstance(extra, str)), ""),
    )
