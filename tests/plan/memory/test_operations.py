"""Operations: their written form."""

import pytest

from trainwright.errors import ChainError
from trainwright.plan.memory import operations as ops
from trainwright.plan.memory.operations import Value

ALL = [
    (ops.forward_all(3), "Fall 3"),
    (ops.forward_all(12, 2), "Fall 12/2"),
    (ops.forward_keep(1), "Fck 1"),
    (ops.forward_drop(2), "Fdrop 2"),
    (ops.backward(7), "B 7"),
    (ops.delete(Value.OUTPUT, 4), "Del a4"),
    (ops.offload(Value.SAVED, 10), "Off s10"),
    (ops.prefetch(Value.OUTPUT, 1), "Pre a1"),
]


@pytest.mark.parametrize(("operation", "written"), ALL)
def test_written_and_read(operation, written):
    assert str(operation) == written
    assert ops.parse_operations(written) == operation


def test_a_list_is_one_line():
    assert ops.format_operations(operation for operation, _ in ALL[:2]) == "Fall 3; Fall 12/2"


@pytest.mark.parametrize("written", ["", "F 3", "Fall", "Fall x", "Del 3", "Del b3", "B 3/1", "Fall 3/", "Off a-1"])
def test_what_is_none(written):
    with pytest.raises(ChainError, match="operation: got"):
        ops.parse_operations(written)
