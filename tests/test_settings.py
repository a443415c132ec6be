"""Settings and validators: every bad value of every field of every settings class gives one sentence."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from trainwright.errors import EnsembleError, InputError
from trainwright.settings import Settings, settings_of
from trainwright.validators import check, each, flag, integer, number, one_of, optional, text

STRANGE = [None, True, -1, 0, 0.5, 1e300, math.nan, math.inf, "", "no such thing", [], {}, object(), (1, "a")]


def settings_classes():
    """Return every settings class of the package, found by loading all of it that needs no extra."""
    for module in pkgutil.walk_packages(trainwright.__path__, "trainwright."):
        source = importlib.util.find_spec(module.name).origin
        if not module.name.endswith("__main__") and "Settings" in Path(source).read_text(encoding="utf-8"):
            importlib.import_module(module.name)
    todo, found = [Settings], {}
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            # A class with slots is made twice; the module holds the one that counts.
            if cls.__module__.startswith("trainwright."):
                found[f"{cls.__module__}.{cls.__qualname__}"] = getattr(
                    importlib.import_module(cls.__module__), cls.__name__
                )
    return [cls for _, cls in sorted(found.items()) if dataclasses.is_dataclass(cls)]


@pytest.mark.parametrize(
    "cls", [cls for cls in settings_classes() if not inspect.isabstract(cls)], ids=lambda cls: cls.__name__
)
def test_every_bad_value_of_every_field_gives_one_sentence(cls):
    known = settings_of(cls)
    good = {one.name: one.default for one in known if one.default is not dataclasses.MISSING}
    needed = {one.name: _some(one.validator) for one in known if one.default is dataclasses.MISSING}
    for setting in known:
        for value in STRANGE:
            if setting.validator is None or setting.validator.accepts(value):
                continue
            with pytest.raises(InputError) as caught:
                cls(**good | needed | {setting.name: value})
            sentence = str(caught.value)
            assert sentence.count("\n") == 0
            assert setting.name in sentence
            assert "allowed: " in sentence


def _some(validator):
    candidates = [1, 3, 0.5, 2.0, "a", True, (1, 2), ("a",), Path("a"), len, *(validator.choices if validator else ())]
    return next((value for value in candidates if validator is None or validator.accepts(value)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kiln(Settings, error=EnsembleError):
    degrees: Annotated[float, number(above=0, maximum=1300, of="degrees"), "heat"]
    hours: Annotated[int, integer(minimum=1), "how long"] = 8
    gas: Annotated[bool, flag()] = False

    def check_together(self):
        if self.gas and self.degrees > 1000:
            raise EnsembleError("Kiln.gas: got True above 1000 degrees; allowed: False")


def test_a_table_makes_settings_and_its_errors_say_where():
    assert Kiln.from_table({"degrees": 900}, "[kiln]") == Kiln(degrees=900)
    for table, sentence in (
        ({}, "[kiln]: 'degrees' is missing (heat); allowed: degrees, hours, gas"),
        ({"degree": 3}, "[kiln]: 'degree' is unknown; allowed: degrees, hours, gas"),
        ({"degrees": 0}, "[kiln] Kiln.degrees: got 0; allowed: a number of degrees above 0 and at most 1300"),
        ({"degrees": 900, "hours": True}, "[kiln] Kiln.hours: got True; allowed: a whole number >= 1"),
        ({"degrees": 1200, "gas": True}, "[kiln] Kiln.gas: got True above 1000 degrees; allowed: False"),
    ):
        with pytest.raises(EnsembleError) as caught:
            Kiln.from_table(table, "[kiln]")
        assert str(caught.value).startswith(sentence)


@given(st.integers() | st.floats() | st.booleans() | st.text() | st.none(), st.integers(-9, 9), st.integers(-9, 9))
def test_ranges_are_what_their_words_say(value, low, high):
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_real = is_whole or (isinstance(value, float) and math.isfinite(value))
    assert integer(minimum=low, maximum=high).accepts(value) == (is_whole and low <= value <= high)
    assert number(minimum=low, below=high).accepts(value) == (is_real and low <= value < high)
    assert number(above=low).accepts(value) == (is_real and value > low)
    assert optional(integer()).accepts(value) == (value is None or is_whole)
    assert (integer() | text()).accepts(value) == (is_whole or (isinstance(value, str) and bool(value)))


def test_a_choice_is_of_its_own_type_and_a_near_one_is_named():
    assert not one_of(1, 2).accepts(True)
    assert not one_of("1").accepts(1)
    assert each(one_of("a"), least=1).accepts(["a"])
    assert not each(one_of("a"), least=1).accepts([])
    with pytest.raises(InputError, match=r"x: got 'fallbakc'; allowed: 'best', 'fallback'.*fallback"):
        check("fallbakc", one_of("best", "fallback"), "x")
