"""Chains: what they refuse, what they hold, and their files."""

import dataclasses
import json

import pytest

from trainwright.errors import ChainError
from trainwright.memory import Chain, Stage
from trainwright.model.chain import Option

STAGE = Stage(name="conv", forward_seconds=1.0, backward_seconds=2.0, output_bytes=3, saved_bytes=5)
CHAIN = Chain(
    stages=(
        STAGE,
        dataclasses.replace(
            STAGE,
            gradient_bytes=1,
            no_grad_forward_seconds=0.5,
            options=(Option(name="less", forward_seconds=1.0, backward_seconds=3.0, saved_bytes=4),),
        ),
    ),
    loss=Stage(name="loss", forward_seconds=0.1, backward_seconds=0.2, output_bytes=0, saved_bytes=7),
    input_bytes=11,
    fixed={"parameters": 100},
    name="two",
)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"forward_seconds": -1.0}, r"stage 2 \(conv\), forward_seconds: got -1.0"),
        ({"backward_seconds": float("nan")}, r"stage 2 \(conv\), backward_seconds: got nan"),
        ({"no_grad_forward_seconds": float("inf")}, r"no_grad_forward_seconds: got inf"),
        ({"output_bytes": -3}, r"stage 2 \(conv\), output_bytes: got -3"),
        ({"output_bytes": 2.5}, r"stage 2 \(conv\), output_bytes: got 2.5"),
        ({"saved_bytes": 2}, r"saved_bytes: got 2; allowed: at least its output_bytes, 3"),
        ({"options": (Option(forward_seconds=1, backward_seconds=1, saved_bytes=2),)}, r"option 1, saved_bytes: got 2"),
        ({"options": (Option(forward_seconds=1, backward_seconds=-1, saved_bytes=3),)}, r"option 1, backward_seconds"),
    ],
)
def test_impossible_numbers_are_named(change, where):
    """The sentence holds stage, field and value."""
    with pytest.raises(ChainError, match=where):
        Chain(stages=(STAGE, dataclasses.replace(STAGE, **change)))


def test_a_chain_has_stages_and_its_loss_hands_nothing_on():
    with pytest.raises(ChainError, match="at least one stage"):
        Chain(stages=())
    with pytest.raises(ChainError, match="nothing comes after the loss"):
        Chain(stages=(STAGE,), loss=dataclasses.replace(STAGE, gradient_bytes=None, output_bytes=2))
    with pytest.raises(ChainError, match="fixed, parameters: got -1"):
        Chain(stages=(STAGE,), fixed={"parameters": -1})


def test_sums_and_defaults():
    first, second = CHAIN.stages
    assert (first.output_gradient_bytes, second.output_gradient_bytes) == (3, 1)
    assert (first.no_grad_seconds, second.no_grad_seconds) == (1.0, 0.5)
    assert CHAIN.plain_seconds == pytest.approx(6.3)
    assert CHAIN.fixed_bytes == 111
    assert [choice.saved_bytes for choice in second.choices] == [5, 4]


def test_files_hold_everything(tmp_path):
    """A chain that is written and read is the same, and so is its digest, which names do not change."""
    CHAIN.save(tmp_path / "chain.json")
    again = Chain.load(tmp_path / "chain.json")
    assert again == CHAIN
    assert again.digest == CHAIN.digest
    renamed = dataclasses.replace(CHAIN, name="other", stages=(dataclasses.replace(STAGE, name="x"), CHAIN.stages[1]))
    assert renamed.digest == CHAIN.digest
    assert dataclasses.replace(CHAIN, input_bytes=12).digest != CHAIN.digest


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: c["stages"][0].pop("saved_bytes"), "stage 1, saved_bytes: missing"),
        (lambda c: c["stages"][0].update(saved=1), "stage 1, saved: unknown key"),
        (lambda c: c["stages"][1].update(options=3), "stage 2, options: got 3"),
        (lambda c: c["stages"].append(7), "stage 3: got 7"),
        (lambda c: c.update(stages=[]), "at least one stage"),
        (lambda c: c.update(stages=5), "stages: got 5"),
        (lambda c: c.update(schema=99), "schema: got 99"),
        (lambda c: c.update(fixed=4), "fixed: got 4"),
        (lambda c: c.update(budget=4), "budget: unknown key"),
        (lambda c: c["stages"][0].update(forward_seconds="1"), "forward_seconds: got '1'"),
    ],
)
def test_files_that_are_none(tmp_path, change, where):
    content = json.loads(json.dumps(CHAIN.to_json()))
    change(content)
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ChainError, match=where):
        Chain.load(path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ChainError, match="there is no such file"):
        Chain.load(tmp_path / "none.json")
    with pytest.raises(ChainError, match="no object with 'stages'"):
        Chain.from_json([1, 2])
