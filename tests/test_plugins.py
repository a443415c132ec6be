"""Plug-ins: names and tables of every kind, and entry points that clash, fail or are not installed."""

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

import trainwright as tw
from trainwright import plugins
from trainwright.errors import InputError
from trainwright.plugins import describe, load, make, names_of

BUILT_IN = [(kind, name) for kind in plugins._BUILT_IN for name in plugins._BUILT_IN[kind]]


@dataclass(frozen=True, kw_only=True)
class Climber:
    """A plug-in whose settings are plain, nested and derived."""

    step: float
    inner: "Climber | None" = None
    cache: dict = field(default_factory=dict, init=False)


class NoDataclass:
    def __init__(self, step=1.0):
        self.step = step


class Distribution:
    def __init__(self, name, version):
        self.name, self.version = name, version


def entry(name, value, distribution=("climbers", "1.2")):
    point = EntryPoint(name, value, "trainwright.searchers")
    vars(point)["dist"] = Distribution(*distribution)
    return point


@pytest.fixture
def installed(monkeypatch):
    """Have `entry_points` find what the test appends."""
    found = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point for point in found if point.group == group])
    plugins._read_group.cache_clear()
    yield found
    plugins._read_group.cache_clear()


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_every_built_in_is_where_the_list_says(kind, name):
    assert load(kind, name, "here") is not None
    assert name in names_of(kind)


def test_a_plug_in_is_made_from_its_table_and_described_with_its_version(installed):
    installed.append(entry("Climber", f"{__name__}:Climber"))
    assert names_of("searcher")[-1] == "Climber"
    climber = make("searcher", {"name": "Climber", "step": 0.5, "inner": {"name": "Climber", "step": 1}})
    assert climber == Climber(step=0.5, inner=Climber(step=1))
    table = describe("searcher", climber)
    origin = {"name": "Climber", "from": "climbers==1.2"}
    assert table == {**origin, "step": 0.5, "inner": {**origin, "step": 1}}
    assert make("searcher", table) == climber


def test_an_object_that_no_table_can_say_has_none(installed):
    installed.append(entry("NoDataclass", f"{__name__}:NoDataclass"))
    assert make("searcher", {"name": "NoDataclass", "step": 2.0}).step == 2.0
    assert describe("searcher", NoDataclass()) is None
    assert describe("searcher", Climber(step=1)) is None
    assert describe("rule", tw.FixedEpochs(3)) == {"name": "FixedEpochs", "max_epochs": 3}


def test_what_is_wrong_with_a_plug_in_is_one_sentence(installed):
    installed += [
        entry("Twice", f"{__name__}:Climber"),
        entry("Twice", f"{__name__}:Climber", ("others", "3")),
        entry("Broken", "no_such_module_at_all:X"),
        entry("Climber", f"{__name__}:Climber"),
        entry("Climber", f"{__name__}:Climber"),  # found by two entries of the path
    ]
    for table, sentence in (
        ({"name": "Twice"}, r"name: 'Twice' is offered by climbers==1.2 and others==3; uninstall all but one"),
        ({"name": "Broken"}, r"name: 'Broken' of climbers==1.2 cannot be loaded \(ModuleNotFoundError"),
        ({"name": "Gone", "from": "gone==4"}, r"'Gone', a plug-in of gone==4, which is not installed here"),
        ({"name": "Climbr"}, r"got 'Climbr'; allowed: .*Climber.*mean"),
        ({"name": "Climber"}, r"\[searcher\] Climber: 'step' is missing"),
        ({"name": "Climber", "step": 1, "stop": 2}, r"\[searcher\] Climber: 'stop' is unknown"),
        ({"step": 1}, r"\[searcher\] name: got nothing"),
    ):
        with pytest.raises(InputError, match=sentence):
            make("searcher", table)
    assert make("searcher", {"name": "Climber", "step": 1}) == Climber(step=1)


def test_nothing_is_looked_for_where_a_built_in_one_is_named(monkeypatch):
    """Reading the metadata of everything installed would take most of the time in which a worker starts."""

    def refuse(**_):
        raise AssertionError("it looks for plug-ins")

    plugins._read_group.cache_clear()
    monkeypatch.setattr(plugins, "entry_points", refuse)
    try:
        assert make("rule", {"name": "ASHA", "max_epochs": 9}) == tw.ASHA(max_epochs=9)
    finally:
        plugins._read_group.cache_clear()
