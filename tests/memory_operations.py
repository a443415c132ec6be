"""Operations by short names, for plans that tests write out."""

from trainwright.plan.memory.operations import Operation, OperationKind

__all__ = ["backward", "delete", "forward_all", "forward_drop", "forward_keep", "offload", "prefetch"]


def forward_all(stage, option=0):
    """Return F_all of a stage."""
    return Operation(OperationKind.FORWARD_ALL, stage, option=option)


def forward_keep(stage):
    """Return F_ck of a stage."""
    return Operation(OperationKind.FORWARD_KEEP, stage)


def forward_drop(stage):
    """Return the forward of a stage that drops its bare input."""
    return Operation(OperationKind.FORWARD_DROP, stage)


def backward(stage):
    """Return the backward of a stage."""
    return Operation(OperationKind.BACKWARD, stage)


def delete(value, stage):
    """Return Del of a value of a stage."""
    return Operation(OperationKind.DELETE, stage, value)


def offload(value, stage):
    """Return the start of a copy of a value to the host."""
    return Operation(OperationKind.OFFLOAD, stage, value)


def prefetch(value, stage):
    """Return the start of a copy of a value back from the host."""
    return Operation(OperationKind.PREFETCH, stage, value)
