"""Operations: their written form."""

import pytest

from trainwright.errors import ChainError
from trainwright.plan.memory.operations import Operation, OperationKind, Value, operations_of, parse_operation, rows_of

ALL = [
    (Operation(OperationKind.FORWARD_ALL, 3), "Fall 3"),
    (Operation(OperationKind.FORWARD_ALL, 12, option=2), "Fall 12/2"),
    (Operation(OperationKind.FORWARD_KEEP, 1), "Fck 1"),
    (Operation(OperationKind.FORWARD_DROP, 2), "Fdrop 2"),
    (Operation(OperationKind.BACKWARD, 7), "B 7"),
    (Operation(OperationKind.DELETE, 4, Value.OUTPUT), "Del a4"),
    (Operation(OperationKind.OFFLOAD, 10, Value.SAVED), "Off s10"),
    (Operation(OperationKind.PREFETCH, 1, Value.OUTPUT), "Pre a1"),
]


@pytest.mark.parametrize(("operation", "written"), ALL)
def test_written_and_read(operation, written):
    assert str(operation) == written
    assert parse_operation(written) == operation


def test_rows_are_operations():
    operations = tuple(operation for operation, _ in ALL)
    assert operations_of(rows_of(operations)) == operations


@pytest.mark.parametrize("written", ["", "F 3", "Fall", "Fall x", "Del 3", "Del b3", "B 3/1", "Fall 3/", "Off a-1"])
def test_what_is_none(written):
    with pytest.raises(ChainError, match="operation: got"):
        parse_operation(written)
