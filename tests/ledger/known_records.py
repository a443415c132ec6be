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
_BY_TEXT: dict[str, st.SearchStrategy[Any]] = {
    fields.TEXT.text: _text,
    fields.FLAG.text: st.booleans(),
    fields.NOTHING.text: st.none(),
    fields.TEXTS.text: st.lists(_text, max_size=2),
    fields.TEXT_MAP.text: st.dictionaries(_text, _text, max_size=2),
    fields.NUMBER.text: _numbers,
    fields.NUMBERS.text: st.dictionaries(_text, _numbers, max_size=2),
    fields.PARAMS.text: st.dictionaries(_text, _values, max_size=3),
    fields.JSON.text: _values,
    fields.JSON_OBJECT.text: bodies,
    fields.OBJECTIVES.text: st.just(["min loss"]),
    fields.CONSTRAINTS.text: st.just(["bytes <= 1"]),
    fields.SPACE.text: st.just({"parameters": [{"name": "x"}]}),
    fields.seconds().text: st.floats(0, 1e12),
}


def values_of(of: fields.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that fit a type of the records' table."""
    if isinstance(of, fields.Shape):
        return st.fixed_dictionaries(
            {f.name: values_of(f.type) for f in of.fields if f.required},
            optional={f.name: values_of(f.type) for f in of.fields if not f.required},
        )
    text = of.text.removesuffix(", or null")
    if text.startswith("whole number >= "):
        least = int(text.removeprefix("whole number >= "))
        strategy = st.integers(least, least + 2**40).filter(of.fits)
    else:
        strategy = _BY_TEXT[text]
    return strategy if text == of.text else st.none() | strategy


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
