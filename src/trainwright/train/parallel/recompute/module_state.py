"""What a forward may leave behind in modules and random generators, put back after a trial step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from trainwright.train.parallel.recompute.run_context import read_generators, set_generators

__all__ = ["as_before"]


@contextmanager
def as_before(module: nn.Module) -> Iterator[None]:
    """Put attributes of modules and random generators back at the end."""
    held = [_Attributes(vars(each)) for each in module.modules()]
    states = read_generators()
    try:
        yield
    finally:
        for each in held:
            each.put_back()
        set_generators(states)


class _Attributes:
    """The attributes of a module, compared by identity, and containers by their content too."""

    __slots__ = ("_before", "_contents", "_own")

    def __init__(self, own: dict[str, Any]) -> None:
        self._own, self._before = own, own.copy()
        # Most are empty, as those of hooks: nothing is made for these.
        self._contents = {
            name: value.copy() for name, value in own.items() if isinstance(value, list | dict | set) and value
        }

    def put_back(self) -> None:
        """Put back what is another now."""
        own, before = self._own, self._before
        if own.keys() != before.keys() or any(own[name] is not value for name, value in before.items()):
            own.clear()
            own.update(before)
        # In place, since others may refer to the same container.
        for name, value in before.items():
            if isinstance(value, list | dict | set):
                content = self._contents.get(name)
                if content is None:
                    value.clear()
                elif not _same_content(value, content):
                    _fill(value, content)


def _same_content(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool({*map(id, one)} == {*map(id, other)})
    # By identity: two tensors that are compared by value give no single answer.
    pairs = zip(one.items(), other.items(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
    return all(a is b or (isinstance(one, dict) and a[0] is b[0] and a[1] is b[1]) for a, b in pairs)


def _fill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)
