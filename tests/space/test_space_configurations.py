"""Configurations: legality in words, identity, defaults; and documents: JSON, differences."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from trainwright.errors import SpaceError, TrialError
from trainwright.space import Beta, Choice, Constant, Float, Int, Space, any_of, equals, less, not_, require
from trainwright.space.configuration import Configuration
from trainwright.space.documents import parameter_from_json


@pytest.fixture
def space():
    return Space(
        require("batch * accumulation <= 4096"),
        lr=Float(1e-5, 1e-1, log=True),
        batch=Int(16, 1024, log=True),
        accumulation=Choice(1, 4, 16, ordered=True),
        optimizer=Choice("sgd", "adamw"),
        momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
        epochs=Constant(9),
    )


KNOWN = "lr, batch, accumulation, optimizer, momentum, epochs"
GOOD = {"lr": 0.01, "batch": 64, "accumulation": 4, "optimizer": "adamw"}


class TestChecks:
    """Every violation names the rule and the values."""

    @pytest.mark.parametrize(
        ("change", "sentences"),
        [
            ({}, []),
            ({"epochs": 9}, []),
            (
                {"lr": 3.0, "momentum": 0.5},
                ["lr=3.0 is outside [1e-05, 0.1]", "'momentum' is inactive when optimizer='adamw'"],
            ),
            ({"optimizer": "sgd"}, ["'momentum' is missing, and it is active when optimizer='sgd'"]),
            ({"optimizer": "adam"}, ["optimizer='adam' is not a value of optimizer; allowed: 'sgd', 'adamw'"]),
            (
                {"batch": 1024, "accumulation": 16},
                ["batch=1024, accumulation=16 breaks 'batch * accumulation <= 4096'"],
            ),
            ({"epochs": 3}, ["epochs=3 differs from the constant 9"]),
            ({"epochs": [9]}, ["epochs=[9] differs from the constant 9"]),
            (
                {"optimiser": "sgd"},
                ["'optimiser' is no parameter of the space; known: " + KNOWN + " (did you mean 'optimizer'?)"],
            ),
            ({"batch": True}, ["batch=True is not a whole number; allowed: a whole number in [16, 1024]"]),
        ],
    )
    def test_sentences(self, space, change, sentences):
        assert space.check(GOOD | change) == sentences
        if sentences:
            with pytest.raises(TrialError) as caught:
                space.configuration_of(GOOD | change)
            assert str(caught.value) == "; ".join(sentences)

    def test_what_is_missing_is_named(self, space):
        assert [v.split("'")[1] for v in space.check({})] == ["lr", "batch", "accumulation", "optimizer"]

    def test_a_parent_that_is_wrong_raises_no_doubts_about_its_children(self, space):
        assert [v.split("=")[0] for v in space.check(GOOD | {"optimizer": 3, "momentum": 0.5})] == ["optimizer"]

    def test_encode_takes_rows_that_only_break_requirements(self, space):
        row = space.encode(GOOD | {"batch": 1024, "accumulation": 16})
        assert not space.legal(row[None])[0]

    def test_latent_gaps_are_refused(self, space):
        L = space.latent(np.random.default_rng(0), 2)
        L[1, 0] = np.nan
        with pytest.raises(SpaceError, match="settle: 'lr' is active in row 1 but NaN there"):
            space.settle(L)


class TestIdentity:
    """Equal keys are duplicates."""

    def test_a_configuration_reads_like_a_dict(self, space):
        found = space.configuration_of(GOOD)
        assert found["lr"] == 0.01
        assert dict(found) == GOOD | {"epochs": 9}
        assert list(found) == ["lr", "batch", "accumulation", "optimizer", "epochs"]
        assert "momentum" not in found
        assert found.get("momentum", 0) == 0
        assert (found.number, found.origin) == (None, {})

    def test_it_is_frozen_hashable_and_travels(self, space):
        found = space.configuration_of(GOOD)
        assert pickle.loads(pickle.dumps(found)) == found
        assert len({found, space.configuration_of(GOOD)}) == 1
        with pytest.raises(AttributeError):
            found.number = 3
        assert found != Configuration(params=found.params, key=found.key, number=3)

    def test_the_key_is_pinned(self, space):
        """Ledgers hold keys, so they must never change between versions."""
        assert space.configuration_of(GOOD).key == "193887b746c93164ba0a9823465a5d95"

    def test_the_key_does_not_depend_on_the_order(self, space):
        assert space.configuration_of(dict(reversed(GOOD.items()))).key == space.configuration_of(GOOD).key

    def test_a_row_gives_the_same_configuration(self, space):
        row = space.sample(np.random.default_rng(0), 1)[0]
        found = space.configuration(row)
        assert found == space.configuration_of(found.params)

    def test_signed_zero_and_nan_have_one_key(self):
        space = Space(a=Float(0, 1), b=Float(0, 1, when=not_(equals("a", 0))))
        U = np.array([[0.0, np.nan], [-0.0, -np.nan]])
        assert len(set(space.row_keys(U))) == 1


class TestDefaults:
    """If every active parameter has a default, together they are the first trial."""

    def test_all_given(self):
        space = Space(
            a=Int(1, 9, default=2),
            b=Choice(None, "x", default=None),
            c=Float(0, 1, when=equals("b", "x")),
            k=Constant(1),
        )
        assert space.default().params == {"a": 2, "b": None, "k": 1}

    def test_one_missing(self):
        assert Space(a=Int(1, 9, default=2), b=Choice(None, "x")).default() is None

    def test_inactive_defaults_are_left_out(self):
        space = Space(b=Choice("x", "y", default="y"), c=Float(0, 1, default=0.5, when=equals("b", "x")))
        assert space.default().params == {"b": "y"}

    def test_a_default_that_breaks_a_requirement(self):
        with pytest.raises(SpaceError) as caught:
            Space(
                require("batch * accumulation <= 4096"),
                batch=Int(1, 512, default=512),
                accumulation=Int(1, 16, default=16),
                other=Float(0, 1),
            )
        assert str(caught.value) == "default batch=512, accumulation=16 breaks 'batch * accumulation <= 4096'"


class TestDocuments:
    """Spaces as data."""

    def test_the_fingerprint_is_pinned(self, space):
        """Ledgers hold fingerprints, so they must never change between versions."""
        assert space.fingerprint == "8fb6f33eaccfa156034986f8bc1f5705"

    def test_a_study_file_may_name_kinds_and_arguments(self):
        table = {
            "lr": {"kind": "float", "low": 1e-5, "high": 0.1, "log": True, "prior": {"beta": [2, 3]}},
            "opt": {"kind": "choice", "values": ["sgd", [1, 2]], "weights": [1, 2], "default": [1, 2]},
            "m": {
                "kind": "int",
                "low": 0,
                "high": 9,
                "when": {"any_of": [{"equals": ["opt", "sgd"]}, {"less": ["lr", 0.01]}]},
            },
            "k": {"kind": "constant", "value": 3},
        }
        assert Space.of({name: parameter_from_json(name, entry) for name, entry in table.items()}) == Space(
            lr=Float(1e-5, 0.1, log=True, prior=Beta(2, 3)),
            opt=Choice("sgd", (1, 2), weights=[1, 2], default=(1, 2)),
            m=Int(0, 9, when=any_of(equals("opt", "sgd"), less("lr", 0.01))),
            k=Constant(3),
        )

    @pytest.mark.parametrize(
        ("entry", "sentence"),
        [
            ({"low": 1}, "lr: {'low': 1} lacks a kind; allowed: float, int, choice, constant, derived"),
            ({"kind": "flot"}, "lr: kind 'flot' is unknown; allowed: float, int, choice, constant, derived (did you"),
            ({"kind": "float", "low": 1}, "lr: float needs 'high'; known: low, high, log"),
            ({"kind": "float", "low": 1, "hihg": 2}, "lr: 'hihg' is no argument of float; known: low, high, log"),
            ({"kind": "choice", "values": "abc"}, "lr: values must be a list, got 'abc'"),
            ({"kind": "float", "low": 0, "high": 1, "when": "x"}, "condition 'x' cannot be read"),
            ({"kind": "float", "low": 0, "high": 1, "prior": "x"}, "prior 'x' cannot be read"),
        ],
    )
    def test_entries_that_cannot_be_read(self, entry, sentence):
        with pytest.raises(SpaceError) as caught:
            parameter_from_json("lr", entry)
        assert str(caught.value).startswith(sentence)

    @pytest.mark.parametrize(
        "document",
        [
            {},
            None,
            {"parameters": {}},
            {"parameters": [3]},
            {"parameters": [{"name": "a", "kind": "constant", "value": 1}] * 2},
            {"parameters": [], "requirements": ["a < 1"]},
        ],
    )
    def test_documents_that_are_no_space(self, document):
        with pytest.raises(SpaceError, match=r"cannot be read|is listed twice"):
            Space.from_json(document)

    def test_one_and_one_point_zero_are_one_bound(self):
        assert Space(a=Float(0, 1)) == Space(a=Float(0.0, 1.0))
        assert Space(a=Choice(1)) != Space(a=Choice(1.0))

    @pytest.mark.parametrize(
        ("other", "sentences"),
        [
            (Space(require("w < 9"), w=Int(16, 512), o=Choice("a", "b")), ["w = Int(16, 256), now Int(16, 512)"]),
            (
                Space(require("w < 9"), w=Int(16, 256), o=Choice("a", "c")),
                ["o = Choice('a', 'b'), now Choice('a', 'c')"],
            ),
            (
                Space(require("w < 9"), w=Int(16, 256, log=True), o=Choice("a", "b")),
                ["w = Int(16, 256), now Int(16, 256, log=True)"],
            ),
            (
                Space(require("w < 9"), w=Float(16, 256), o=Choice("a", "b")),
                ["w = Int(16, 256), now Float(16.0, 256.0)"],
            ),
            (Space(require("w < 9"), w=Int(16, 256)), ["o = Choice('a', 'b'), now absent"]),
            (
                Space(require("w < 9"), w=Int(16, 256), o=Choice("a", "b"), x=Float(0, 1)),
                ["x = absent, now Float(0.0, 1.0)"],
            ),
            (Space(require("w < 9"), o=Choice("a", "b"), w=Int(16, 256)), ["the order w, o, now o, w"]),
            (Space(w=Int(16, 256), o=Choice("a", "b")), ["requirements ['w < 9'], now []"]),
            (
                Space(require("w < 9"), require("w > 1"), w=Int(16, 256), o=Choice("a", "b")),
                ["requirements ['w < 9'], now ['w < 9', 'w > 1']"],
            ),
        ],
    )
    def test_differences_in_words(self, other, sentences):
        old = Space(require("w < 9"), w=Int(16, 256), o=Choice("a", "b"))
        assert old != other
        assert old.differences(other) == sentences


def test_importing_the_space_loads_nothing_heavy():
    code = "import sys, trainwright.space; print(sorted({'scipy', 'numba', 'torch', 'ray'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
