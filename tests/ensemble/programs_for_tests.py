"""`model.pt2` files written by hand, as torch.export writes them, so that tests may change any part of one."""

import io
import json
import zipfile

FLOAT, LONG, BYTE = 7, 5, 1
MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
ROWS = "Symbol('s31', positive=True, integer=True)"


def meta(sizes, kind=FLOAT):
    """Return what the format says of a tensor; None as a size is the number of rows."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    of_rows = {"as_expr": {"expr_str": ROWS, "hint": {"as_int": 128}}}
    return {
        "dtype": kind,
        "sizes": [of_rows if size is None else {"as_int": size} for size in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": one} for one in strides[: len(sizes)]],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def tensor(name):
    return {"as_tensor": {"name": name}}


def node(target, answer, **inputs):
    """Return a node; keyword arguments of the operator are those that begin with an underscore."""
    given = [
        {"name": name.strip("_"), "arg": told, "kind": 2 if name.startswith("_") else 1}
        for name, told in inputs.items()
    ]
    outputs = answer if isinstance(answer, list) else [tensor(answer)]
    return {
        "target": target,
        "inputs": given,
        "outputs": outputs,
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": None,
    }


def linear(of, weight, bias, answer):
    """Return the node of a linear layer."""
    parts = {"input": tensor(of), "weight": tensor(weight), "bias": tensor(bias)}
    return node("torch.ops.aten.linear.default", answer, **parts)


def graph(inputs, shapes, weights, nodes, answer):
    """Return models/model.json: `weights` are names in the network, `shapes` of all values."""
    specs = [{"parameter": {"arg": {"name": f"p_{name}"}, "parameter_name": name}} for name in weights]
    specs += [{"user_input": {"arg": tensor(name)}} for name in inputs]
    calls = [{"in_spec": _SPEC % _ARGS, "out_spec": _SPEC % '{"type":null,"context":null,"children_spec":[]}'}]
    return {
        "graph_module": {
            "graph": {
                "inputs": [tensor(name) for name in (*(f"p_{one}" for one in weights), *inputs)],
                "outputs": [tensor(answer)],
                "nodes": nodes,
                "tensor_values": {name: meta(sizes) for name, sizes in shapes.items()},
                "sym_int_values": {},
                "sym_bool_values": {},
                "is_single_tensor_return": False,
                "custom_obj_values": {},
                "sym_float_values": {},
            },
            "signature": {"input_specs": specs, "output_specs": [{"user_output": {"arg": tensor(answer)}}]},
            "module_call_graph": [
                {"fqn": "", "signature": {"inputs": [], "outputs": [], "forward_arg_names": ["x"], **calls[0]}}
            ],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10},
        "range_constraints": {"s31": {"min_val": 1, "max_val": None}},
        "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"],
        "torch_version": "2.13.0",
        "guards_code": [],
    }


_ARGS = (
    '{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null",'
    '"children_spec":[{"type":null,"context":null,"children_spec":[]}]},'
    '{"type":"builtins.dict","context":"[]","children_spec":[]}]}'
)
_SPEC = "[1, %s]"


def files_of(program, weights):
    """Return the entries of an archive; `weights` holds float32 arrays by their names in the network."""
    config = {
        name: {
            "path_name": f"weight_{number}",
            "is_param": True,
            "use_pickle": False,
            "tensor_meta": meta(list(array.shape)),
        }
        for number, (name, array) in enumerate(weights.items())
    }
    return {
        MODEL: json.dumps(program).encode(),
        WEIGHTS: json.dumps({"config": config}).encode(),
        "archive/data/constants/model_constants_config.json": b'{"config": {}}',
        "archive/data/sample_inputs/model.pt": b"",
        "archive/archive_format": b"pt2",
        "archive/archive_version": b"0",
        "archive/.data/version": b"6\n",
        "archive/byteorder": b"little",
        **{f"archive/data/weights/weight_{n}": array.tobytes() for n, array in enumerate(weights.values())},
    }


def packed(files, **settings):
    """Return the archive of entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **settings) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def layers_program(layers):
    """Return the `model.pt2` of linear layers, each a weight [out, in] and a bias [out], with ReLUs between them."""
    return packed(layers_files(layers))


def layers_files(layers):
    """Return the same as entries."""
    named = {
        f"{2 * at}_{part}": one for at, pair in enumerate(layers) for part, one in zip(("w", "b"), pair, strict=True)
    }
    shapes = {"x": [None, layers[0][0].shape[1]], **{f"p_{name}": list(one.shape) for name, one in named.items()}}
    nodes, last = [], "x"
    for at, (weight, _) in enumerate(layers):
        nodes.append(linear(last, f"p_{2 * at}_w", f"p_{2 * at}_b", f"linear_{at}"))
        last = f"linear_{at}"
        shapes[last] = [None, weight.shape[0]]
        if at + 1 < len(layers):
            nodes.append(node("torch.ops.aten.relu.default", f"relu_{at}", self=tensor(last)))
            shapes[f"relu_{at}"] = shapes[last]
            last = f"relu_{at}"
    return files_of(graph(["x"], shapes, named, nodes, last), named)
