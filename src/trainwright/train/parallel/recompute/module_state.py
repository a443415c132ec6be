"""What a forward may leave behind in modules and random generators, put back after a trial step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from trainwright.train.parallel.recompute.run_context import read_generators, set_generators

__all__ = ["as_before"]

_MISSING: Final = object()


@contextmanager
def as_before(module: nn.Module) -> Iterator[None]:
    """Put attributes of modules and random generators back at the end."""
    # Attributes are compared by identity, and containers by their content too.
    held = [(vars(each), _copy_attributes(vars(each))) for each in module.modules()]
    states = read_generators()

    try:
        yield
    finally:
        for own, before in held:
            if _differs(own, before):
                _restore(own, before)
        set_generators(states)


_Attributes = dict[str, tuple[Any, Any]]
"""By the name of an attribute, what it is, and a copy of what it contains."""


def _copy_attributes(attributes: Mapping[str, Any]) -> _Attributes:
    return {
        name: (value, value.copy() if isinstance(value, list | dict | set) else None)
        for name, value in attributes.items()
    }


def _differs(attributes: Mapping[str, Any], before: _Attributes) -> bool:
    if any(name not in before for name in attributes):
        return True
    return any(
        attributes.get(name, _MISSING) is not value or (content is not None and not _same_content(value, content))
        for name, (value, content) in before.items()
    )


def _same_content(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool({*map(id, one)} == {*map(id, other)})
    # By identity: two tensors that are compared by value give no single answer.
    pairs = zip(one.items(), other.items(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
    return all(a is b or (isinstance(one, dict) and a[0] is b[0] and a[1] is b[1]) for a, b in pairs)


def _restore(attributes: dict[str, Any], before: _Attributes) -> None:
    for name in [*attributes]:
        if name not in before:
            del attributes[name]
    for name, (value, content) in before.items():
        attributes[name] = value
        # In place, since others may refer to the same container.
        if isinstance(value, list):
            value[:] = content
        elif content is not None:
            value.clear()
            value.update(content)
