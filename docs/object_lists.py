"""Lists of names on the pages of the reference, each shown by its docstring.

A block of kind `{objects}` has a module and names of it on each line, such as `trainwright.ledger: fold State Status`;
`trainwright.errors: *` is all that its `__all__` names, in the order of their definitions.
"""

import importlib
import inspect
import re
from types import ModuleType

_BLOCK = re.compile(r"^```\{objects\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def expand_objects(text: str) -> str:
    """Return a page with its lists of names as directives of autodoc."""
    return _BLOCK.sub(lambda block: f"```{{eval-rst}}\n{_directives(block[1])}```", text)


def _directives(lines: str) -> str:
    parts = []
    for line in lines.splitlines():
        path, _, names = line.partition(":")
        module = importlib.import_module(path)
        parts.append(f".. currentmodule:: {path}\n\n")
        for name in _public(module) if names.strip() == "*" else names.split():
            found = getattr(module, name)
            if inspect.isclass(found) and issubclass(found, BaseException):
                parts.append(f".. autoexception:: {name}\n\n")
            elif inspect.isclass(found):
                parts.append(f".. autoclass:: {name}\n   :members:\n\n")
            elif not callable(found):
                parts.append(f".. autodata:: {name}\n\n")
            else:
                parts.append(f".. autofunction:: {name}\n\n")
    return "".join(parts)


def _public(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if name in module.__all__ and not inspect.ismodule(value)]
