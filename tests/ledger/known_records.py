"""Records of every kind of the table, with bodies that fit it, for hypothesis."""

from typing import Any

from hypothesis import strategies as st

from trainwright.ledger import fields
from trainwright.ledger.kinds import KINDS, NOTES
from trainwright.ledger.record import Record
from trainwright.testing.ledger import bodies

_text = st.text(max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_numbers = st.floats() | st.integers(-(2**63), 2**63)
_STRATEGIES: dict[type, Any] = {
    fields.Whole: lambda of: st.integers(of.minimum, min(of.maximum, of.minimum + 2**40)),
    fields.Seconds: lambda of: st.floats(0, of.maximum),
    fields.Optional: lambda of: st.none() | values_of(of.of),
    fields.Plain: lambda of: _PLAIN[of],
    fields.Shape: lambda of: st.fixed_dictionaries(
        {f.name: values_of(f.type) for f in of.fields if f.required},
        optional={f.name: values_of(f.type) for f in of.fields if not f.required},
    ),
}


_PLAIN: dict[fields.Plain, st.SearchStrategy[Any]] = {
    fields.TEXT: _text,
    fields.FLAG: st.booleans(),
    fields.NOTHING: st.none(),
    fields.TEXTS: st.lists(_text, max_size=2),
    fields.TEXT_MAP: st.dictionaries(_text, _text, max_size=2),
    fields.NUMBER: _numbers,
    fields.NUMBERS: st.dictionaries(_text, _numbers, max_size=2),
    fields.PARAMS: st.dictionaries(_text, _values, max_size=3),
    fields.JSON: _values,
    fields.JSON_OBJECT: bodies,
    fields.OBJECTIVES: st.just(["min loss"]),
    fields.CONSTRAINTS: st.just(["bytes <= 1"]),
    fields.SPACE: st.just({"parameters": [{"name": "x"}]}),
}


def values_of(of: fields.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that fit a type of the records' table."""
    strategy: st.SearchStrategy[Any] = _STRATEGIES[type(of)](of)
    return strategy


@st.composite
def _known(draw: st.DrawFn) -> Record:
    name = draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    body, trial, lease = (draw(values_of(of)) for of in (kind.body, kind.trial, kind.lease))
    # A proposal with a lease is a start as well, and has the fields of one.
    if name == "proposed" and lease is not None:
        body |= draw(values_of(KINDS["started"].body))
    if name == "note" and body["name"] in NOTES:
        body["value"] = draw(values_of(NOTES[body["name"]].type))
    return Record(name, body, trial, lease)


known_records = _known()
"""Records of every kind of the table, whose bodies fit it, not yet stamped."""
