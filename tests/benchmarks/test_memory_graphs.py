"""PipeDream's graph files become chains."""

import pytest
from benchmarks.memory.graphs import chain_of_graph, read_graph

from trainwright.errors import ChainError


def node(number, what, *, forward=1.0, backward=2.0, size="100.0", parameters=0.0):
    return (
        f"node{number} -- {what} -- forward_compute_time={forward:.3f}, backward_compute_time={backward:.3f}, "
        f"activation_size={size}, parameter_size={parameters:.3f}"
    )


RESIDUAL = [
    node(3, "ReLU(inplace)", forward=0.5, size="80.0"),
    node(1, "Input", forward=18.0, backward=0.0, size="64.0"),
    node(2, "Conv2d(3, 8, kernel_size=(3, 3))", parameters=40.0),
    node(4, "Conv2d(8, 8)", parameters=60.0),
    node(5, "Add(inplace)", forward=0.0, backward=0.0),
    node(6, "Linear(8, 2)", size="[6.0; 2.0]"),
    "\tnode1 -- node2",
    "\tnode2 -- node3",
    "\tnode3 -- node4",
    "\tnode4 -- node5",
    "\tnode3 -- node5",
    "\tnode5 -- node6",
]


def test_cuts_are_where_one_value_is_alive():
    """The residual connection keeps Conv and Add together; the input is dropped with the time of its loading."""
    chain = chain_of_graph(RESIDUAL, saved_multiple=2)
    assert [stage.name for stage in chain.stages] == ["Conv2d", "ReLU", "Conv2d .. Add", "Linear"]
    assert chain.input_bytes == 64
    assert chain.plain_seconds == pytest.approx((1 + 0.5 + 1 + 0 + 1 + 2 + 2 + 2 + 0 + 2) / 1000)
    merged = chain.stages[2]
    assert (merged.output_bytes, merged.saved_bytes, merged.parameter_bytes) == (100, 400, 60)
    assert merged.no_grad_forward_temporary_bytes == 100  # Conv's output, beside that of Add
    assert merged.backward_temporary_bytes == 100  # its gradient
    assert chain.stages[3].output_bytes == 8


def test_inner_values_may_be_dropped():
    """The cheapest per byte first; what is dropped is made again in the backward, group by group."""
    lines = [
        node(1, "A"),
        node(2, "Conv", forward=4.0),
        node(3, "Norm", forward=1.0),
        node(4, "ReLU", forward=0.9),
        node(5, "Conv", forward=4.1),
        node(6, "Norm", forward=1.1),
        node(7, "Add", forward=0.5),
        *(f"\tnode{one} -- node{one + 1}" for one in range(1, 7)),
        "\tnode1 -- node7",
    ]
    _, stage = chain_of_graph(lines).stages
    assert [option.name for option in stage.options] == ["drop 1 of 6", "drop 2 of 6", "drop 3 of 6"]
    assert [option.saved_bytes for option in stage.options] == [500, 400, 300]
    extra = [option.backward_seconds - stage.backward_seconds for option in stage.options]
    assert extra == pytest.approx([0.0009, 0.0019, 0.0030])
    # Norm and ReLU are alive together; the later Norm has gone by then, but for the step at which both are counted.
    assert [option.backward_temporary_bytes for option in stage.options] == [200, 300, 300]
    assert not any(each.options for each in chain_of_graph(RESIDUAL).stages[:2])


def test_small_values_may_pass_a_cut():
    """A value that crosses several cuts is part of every output there, and of what is saved."""
    lines = [
        node(1, "A", size="100.0"),
        node(2, "Tiny", size="5.0"),
        node(3, "B"),
        node(4, "C"),
        *(f"\tnode{start} -- node{end}" for start, end in [(1, 2), (1, 3), (2, 4), (3, 4)]),
    ]
    wide = chain_of_graph(lines)
    assert [stage.output_bytes for stage in wide.stages] == [100, 105, 105, 100]
    assert [stage.saved_bytes for stage in wide.stages] == [100, 105, 105, 100]
    strict = chain_of_graph(lines, tolerance=0.0)
    assert [stage.name for stage in strict.stages] == ["A", "Tiny .. C"]


def test_views_stay_with_what_they_show():
    lines = [node(1, "LSTM(2)"), node(2, "__getitem__(0)"), node(3, "Linear"), "\tnode1 -- node2", "\tnode2 -- node3"]
    chain = chain_of_graph(lines)
    assert [(stage.name, stage.saved_bytes) for stage in chain.stages] == [
        ("LSTM .. __getitem__", 100),
        ("Linear", 100),
    ]


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["nonsense"], "line 1: got 'nonsense'"),
        ([node(1, "A"), "", "\tnode1 -- node9"], "edge of node9"),
        ([node(1, "A", size="many")], "line 1: got a field that is no number"),
        ([node(1, "A", forward=float("nan"))], "forward_seconds: got nan"),
        ([node(1, "A"), node(2, "B"), "\tnode1 -- node2", "\tnode2 -- node1"], "circle through node1"),
        ([node(1, "Input")], "no node beside inputs"),
    ],
)
def test_lines_that_are_no_graph(lines, where):
    with pytest.raises(ChainError, match=where):
        chain_of_graph(lines)


def test_files(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text("\n".join(RESIDUAL))
    assert read_graph(path).name == "net"
    with pytest.raises(ChainError, match="there is no such file"):
        read_graph(tmp_path / "none.txt")
    with pytest.raises(ChainError, match=r"saved_multiple: got 0.5"):
        read_graph(path, saved_multiple=0.5)
