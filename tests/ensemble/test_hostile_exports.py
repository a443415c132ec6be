"""Exports that somebody wrote to do harm: whatever becomes of them, nothing of them is run."""

import contextlib
import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import Ensemble
from trainwright.ensemble.export.folder import MANIFEST_FILE, manifest_digest
from trainwright.ensemble.library.member import Member
from trainwright.errors import EnsembleError, ExportError

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "serve"))

import programs_for_tests as made  # noqa: E402
import served_networks as networks  # noqa: E402
from programs_for_tests import MODEL, WEIGHTS, node, packed, tensor  # noqa: E402

from trainwright.ensemble.export.program import load_network, refuse_unknown  # noqa: E402

DRAWS = np.random.default_rng(0)
WEIGHT, BIAS = DRAWS.normal(size=(3, 4)).astype("f4"), DRAWS.normal(size=3).astype("f4")
X = torch.as_tensor(DRAWS.normal(size=(8, 4)).astype("f4"))
EXPECTED = X.numpy() @ WEIGHT.T + BIAS
HONEST = made.layers_files([(WEIGHT, BIAS)])


class Payload:
    """A pickle that touches the marker when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def changed(**edits):
    """Return entries in which the program's JSON has other fields at the top."""
    return HONEST | {MODEL: json.dumps(json.loads(HONEST[MODEL]) | edits).encode()}


def edited(edit):
    """Return entries whose program an edit has changed in place."""
    program = json.loads(HONEST[MODEL])
    edit(program["graph_module"])
    return HONEST | {MODEL: json.dumps(program).encode()}


def with_node(one, answer=None):
    """Return entries with one more node, whose answer is the network's if a name is given."""

    def edit(module):
        module["graph"]["nodes"].append(one)
        if answer is not None:
            module["graph"]["tensor_values"].setdefault(answer, made.meta([6], made.BYTE))
            module["graph"]["outputs"] = [tensor(answer)]
            module["signature"]["output_specs"] = [{"user_output": {"arg": tensor(answer)}}]

    return edited(edit)


def called(target, answer="more", **inputs):
    return with_node(node(target, answer, **inputs), answer if isinstance(answer, str) else None)


def weights_with(**edits):
    config = json.loads(HONEST[WEIGHTS])
    for name, value in edits.items():
        config["config"]["0_w"][name] = value
    return HONEST | {WEIGHTS: json.dumps(config).encode()}


def meta_with(**edits):
    return weights_with(tensor_meta=made.meta([3, 4]) | edits)


SELF = {"self": tensor("x")}


def ints(*values):
    return {"as_ints": list(values)}


def whole(value):
    return {"as_int": value}


def touching(marker):
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


def expressions(marker):
    text = HONEST[MODEL].decode()
    return HONEST | {
        MODEL: text.replace(json.dumps(made.ROWS), json.dumps(f"(0*{touching(marker)} + {made.ROWS})")).encode()
    }


def library(marker):
    """Return entries with a shared library that torch would open, and whose loading touches the marker."""
    source = marker.with_suffix(".c")
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void f(void) "
        f'{{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    built = marker.with_suffix(".so")
    try:
        subprocess.run(["/usr/bin/env", "cc", "-shared", "-fPIC", "-o", built, source], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        pytest.skip("needs a C compiler")
    at = "archive/data/aotinductor/model/x"
    told = b'{"AOTI_DEVICE_KEY":"cpu"}'
    return HONEST | {f"{at}.so": built.read_bytes(), f"{at}_metadata.json": told, f"{at}.wrapper_metadata.json": told}


def from_file(marker):
    return called(
        "torch.ops.aten.from_file.default",
        filename={"as_string": str(marker)},
        shared={"as_bool": True},
        size=whole(6),
        _dtype={"as_scalar_type": made.BYTE},
    )


def pickled_weight(marker):
    data = pickle.dumps(Payload(marker))
    return weights_with(use_pickle=True) | {"archive/data/weights/weight_0": data}


def pickled_constant(marker):
    told = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    return HONEST | {
        "archive/data/constants/custom_obj_0": pickle.dumps(Payload(marker)),
        "archive/data/constants/model_constants_config.json": json.dumps({"config": {"c": told}}).encode(),
    }


def higher_order(marker):
    del marker
    inner = json.loads(HONEST[MODEL])["graph_module"]["graph"]
    branch = {"as_graph": {"name": "true", "graph": inner}}
    return called("torch.ops.higher_order.cond", **{"": branch})


def recurrent(marker):
    """Return entries with an LSTM whose weights are smaller than its sizes say; a kernel would read beyond them."""
    del marker
    state = node("torch.ops.aten.zeros.default", "state", size=ints(1, 8, 64))
    inputs = {
        "input": tensor("steps"), "hx": {"as_tensors": [{"name": "state"}] * 2},
        "params": {"as_tensors": [{"name": "p_0_w"}] * 2}, "has_biases": {"as_bool": False}, "num_layers": whole(1),
        "dropout": {"as_float": 0.0}, "train": {"as_bool": False}, "bidirectional": {"as_bool": False},
        "batch_first": {"as_bool": True},
    }  # fmt: skip
    outputs = [tensor("out"), tensor("h"), tensor("c")]

    def edit(module):
        module["graph"]["nodes"] += [
            state,
            node("torch.ops.aten.unsqueeze.default", "steps", self=tensor("x"), dim=whole(1)),
            node("torch.ops.aten.lstm.input", outputs, **inputs),
        ]

    return edited(edit)


def pieces(marker):
    del marker

    def edit(module):
        module["graph"]["nodes"] += [
            node("torch.ops.aten.expand.default", "wide", self=tensor("p_0_b"), size=ints(1 << 20, 3)),
            node("torch.ops.aten.unbind.int", [{"as_tensors": []}], self=tensor("wide"), dim=whole(0)),
        ]

    return edited(edit)


def renamed(old, new):
    return {new if name == old else name: data for name, data in HONEST.items()}


def repeated(marker):
    del marker
    buffer = io.BytesIO(packed(HONEST))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(MODEL, b"{}")
    return buffer.getvalue()


def link(marker):
    del marker
    entry = zipfile.ZipInfo("archive/data/weights/weight_0")
    entry.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in HONEST.items():
            archive.writestr(entry if name == entry.filename else name, data)
    return buffer.getvalue()


def overlapping(marker):
    """Two entries of the directory that are one and the same megabyte: each more costs 80 bytes."""
    del marker
    big = HONEST | {"archive/data/weights/weight_7": bytes(1 << 20), "archive/data/weights/weight_8": b""}
    content = bytearray(packed(big))
    first, second = (content.rindex(f"archive/data/weights/weight_{n}".encode()) - 46 for n in (7, 8))
    content[second + 16 : second + 28] = content[first + 16 : first + 28]  # checksum and sizes
    content[second + 42 : second + 46] = content[first + 42 : first + 46]  # where it begins
    return bytes(content)


def deep(marker):
    del marker
    return HONEST | {MODEL: b"[" * 100_000 + b"]" * 100_000}


REFUSED = {
    "a library": library,
    "an operator that maps a file": from_file,
    "a weight as a pickle": pickled_weight,
    "a constant as a pickle": pickled_constant,
    "example inputs as a pickle": lambda m: HONEST | {"archive/data/sample_inputs/model.pt": pickle.dumps(Payload(m))},
    "weights of old": lambda m: HONEST | {"archive/data/weights/model.pt": pickle.dumps(Payload(m))},
    "extra files": lambda m: HONEST | {"archive/extra/run.py": touching(m).encode()},
    "a higher-order operator": higher_order,
    "a function of Python": lambda m: called("torch.hub.os.system", a={"as_string": f"touch {m}"}),
    "a builtin": lambda m: called("_operator.attrgetter", a={"as_string": str(m)}),
    "a power of sizes": lambda m: called("_operator.pow", a=whole(9), b=whole(10**9)),
    "an operator of nowhere": lambda m: called("torch.ops.aten.linear.no_such", input=tensor("x")),
    "an operator of another library": lambda m: called("torch.ops.prims.convert_element_type.default", a=tensor("x")),
    "an operator that is no text": lambda m: called(17),
    "dunder names": lambda m: called("torch.ops.aten.__class__.default", input=tensor("x")),
    "an output variant": lambda m: called("torch.ops.aten.add.out", **SELF, other=tensor("x"), _out=tensor("p_0_w")),
    "memory of its own": lambda m: called("torch.ops.aten.set_.source_Tensor", **SELF, source=tensor("p_0_w")),
    "memory beyond a tensor": lambda m: called(
        "torch.ops.aten.as_strided.default", **SELF, size=ints(9), stride=ints(9)
    ),
    "memory that nobody wrote": lambda m: called("torch.ops.aten.empty.memory_format", size=ints(8, 3)),
    "random numbers": lambda m: called("torch.ops.aten.rand_like.default", self=tensor("x")),
    "dropout": lambda m: called(
        "torch.ops.aten.dropout.default", input=tensor("x"), p={"as_float": 0.5}, train={"as_bool": True}
    ),
    "a terabyte": lambda m: called("torch.ops.aten.zeros.default", size=ints(1 << 40)),
    "a terabyte by expansion": lambda m: called(
        "torch.ops.aten.expand.default", self=tensor("p_0_b"), size=ints(1 << 38, 3)
    ),
    "more than numbers hold": lambda m: called("torch.ops.aten.zeros.default", size=ints(1 << 70)),
    "a million pieces": pieces,
    "weights of another size": recurrent,
    "shapes that do not fit": lambda m: called("torch.ops.aten.matmul.default", self=tensor("x"), other=tensor("x")),
    "a value from nowhere": lambda m: called("torch.ops.aten.relu.default", self=tensor("nobody")),
    "a value twice": lambda m: called("torch.ops.aten.relu.default", "linear_0", self=tensor("x")),
    "a custom object": lambda m: called(
        "torch.ops.aten.relu.default", self={"as_custom_obj": {"name": "x", "class_fqn": "os"}}
    ),
    "a sparse layout": lambda m: called("torch.ops.aten.zeros.default", size=ints(3), _layout={"as_layout": 2}),
    "weights beyond the file": lambda m: meta_with(sizes=[whole(3), whole(5)], strides=[whole(5), whole(1)]),
    "an offset beyond the file": lambda m: meta_with(storage_offset=whole(1 << 60)),
    "a negative stride": lambda m: meta_with(strides=[whole(-4), whole(1)]),
    "a huge shape": lambda m: meta_with(sizes=[whole(1 << 39), whole(1)], strides=[whole(0), whole(0)]),
    "a shape that is no number": lambda m: meta_with(sizes=[whole(True), {"as_int": 1e9}]),
    "a data type of nowhere": lambda m: meta_with(dtype=99),
    "a path": lambda m: weights_with(path_name="../../../etc/passwd"),
    "an absolute entry": lambda m: HONEST | {str(m): b"x"},
    "an entry above": lambda m: HONEST | {"archive/../../x": b"x"},
    "an entry in other letters": lambda m: HONEST | {"archive/Models/model.json": HONEST[MODEL]},
    "entries of another archive": lambda m: renamed(MODEL, "other/models/model.json"),
    "one entry twice": repeated,
    "a link": link,
    "a bomb": lambda m: packed(
        HONEST | {"archive/data/weights/weight_9": bytes(1 << 26)}, compression=zipfile.ZIP_DEFLATED
    ),
    "overlapping entries": overlapping,
    "deep brackets": deep,
    "no JSON": lambda m: HONEST | {MODEL: b"\xff"},
    "no archive": lambda m: b"nothing",
    "cut short": lambda m: packed(HONEST)[:-200],
    "inputs in another order": lambda m: edited(lambda module: module["signature"]["input_specs"].reverse()),
    "a changed weight": lambda m: edited(
        lambda module: module["signature"]["output_specs"].insert(
            0, {"buffer_mutation": {"arg": {"name": "linear_0"}, "buffer_name": "0_w"}}
        )
    ),
}

HARMLESS = {
    "an expression": expressions,
    "guards": lambda m: changed(guards_code=[touching(m)]),
    "ranges": lambda m: changed(range_constraints={"s31": {"min_val": -(1 << 63), "max_val": 1 << 63}}),
    "a range that is code": lambda m: changed(range_constraints={touching(m): {"min_val": 0, "max_val": 1}}),
    "verifiers": lambda m: changed(verifiers=[touching(m)]),
    "versions": lambda m: changed(torch_version=touching(m), schema_version={"major": 1 << 63, "minor": 0}),
    "trees": lambda m: edited(
        lambda module: module["module_call_graph"][0]["signature"].update(in_spec=touching(m), out_spec="[")
    ),
    "metadata": lambda m: edited(
        lambda module: module["graph"]["nodes"][0].update(metadata={"nn_module_stack": touching(m), "from_node": "["})
    ),
    "named tuples": lambda m: edited(
        lambda module: module.update(treespec_namedtuple_fields={"os.system": [touching(m)]})
    ),
}


def read(content):
    """Do what loading does, and then predicting."""
    refuse_unknown(content, whose="it")
    return load_network(content, whose="it")(X).numpy()


def content_of(case, marker):
    found = case(marker)
    return found if isinstance(found, bytes) else packed(found)


def test_the_honest_one_is_one_for_torch_too():
    """So that the cases are files that torch would read."""
    content = packed(HONEST)
    np.testing.assert_allclose(read(content), EXPECTED, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(load_network(content, whose="it", trust=True)(X).numpy(), EXPECTED, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case, tmp_path):
    content = content_of(REFUSED[case], tmp_path / "marker")
    with pytest.raises(ExportError, match=r"^it: model\.pt2 ") as found:
        read(content)
    assert not (tmp_path / "marker").exists()
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 600


@pytest.mark.parametrize("case", HARMLESS)
def test_what_is_not_read_does_nothing(case, tmp_path):
    content = content_of(HARMLESS[case], tmp_path / "marker")
    np.testing.assert_allclose(read(content), EXPECTED, rtol=1e-5, atol=1e-6)
    assert not (tmp_path / "marker").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["an expression", "an operator that maps a file"])
def test_the_attacks_are_real(case, tmp_path):
    """With trust they do what they came for, which is what the flag says."""
    content = content_of((REFUSED | HARMLESS)[case], tmp_path / "marker")
    with contextlib.suppress(RuntimeError, ValueError, TypeError):
        torch.export.load(io.BytesIO(content)).module()(X)
    assert (tmp_path / "marker").exists()


@pytest.fixture
def folder(tmp_path):
    """Return an export of one member with a program and no factory."""
    found = networks.ensemble(tmp_path / "left", [{}], build=networks.classes)
    return found.save(tmp_path / "export")


def rewritten(folder, edit, member=None):
    """Change the manifest, or the member's file, and compute every digest anew."""
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    [listed] = manifest["members"]
    if member is not None:
        path = folder / listed["folder"] / "member.json"
        told = json.loads(path.read_bytes())
        member(told)
        path.write_text(json.dumps(told))
        listed["digests"]["member.json"] = Member.digest_of(path.read_bytes())
    if edit is not None:
        edit(manifest)
    manifest["digest"] = manifest_digest(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


MANIFESTS = {
    "a folder above": lambda m: m["members"][0].update(folder="../left/member-0"),
    "an absolute folder": lambda m: m["members"][0].update(folder="/etc"),
    "a folder that is a number": lambda m: m["members"][0].update(folder=7),
    "no members": lambda m: m.update(members=[]),
    "members that are text": lambda m: m.update(members=["x"]),
    "weights that are not finite": lambda m: m.update(weights=[float("nan")]),
    "a negative weight": lambda m: m.update(weights=[-1.0]),
    "weights of others": lambda m: m.update(weights=[0.5, 0.5]),
    "weights that are text": lambda m: m.update(weights="1"),
    "a rule of nowhere": lambda m: m.update(rule={"name": "os.system"}),
    "a rule with settings of nowhere": lambda m: m.update(rule={"name": "median", "weights": 7}),
    "a calibration of nowhere": lambda m: m.update(calibration={"run": "x"}),
    "a threshold that is text": lambda m: m.update(threshold="high"),
    "a report that is a number": lambda m: m.update(report=7),
}
MEMBERS = {
    "a huge input": lambda m: m["cost"][0].update(input_shape=[1 << 40]),
    "an input that is not finite": lambda m: m["cost"][0].update(input_shape=[float("nan")]),
    "a file above": lambda m: m["files"].update({"../../manifest.json": 3}),
    "no costs": lambda m: m.pop("cost"),
    "a list": lambda m: m.update(splits=[1]),
    "a schema that is text": lambda m: m.update(schema="1"),
    "seconds that are not finite": lambda m: m["cost"][0].update(seconds=float("inf")),
}


@pytest.mark.parametrize("case", [*MANIFESTS, *MEMBERS])
def test_manifests(case, folder):
    rewritten(folder, MANIFESTS.get(case), MEMBERS.get(case))
    with pytest.raises(EnsembleError) as found:
        Ensemble.load(folder).report()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "factory", ["subprocess:run", "os:system", "torch.hub:load", "builtins:exec", "shutil:rmtree", "job", None, 7]
)
def test_factories_are_no_tools(factory, folder, tmp_path):
    """A list of parameters is a list of arguments for subprocess.run: a name must not reach it."""
    marker = tmp_path / "marker"
    rewritten(folder, None, lambda m: m.update(factory=factory, params={"touch": 1, str(marker): 1}))
    with pytest.raises(ExportError, match=r"factory") as found:
        Ensemble.load(folder).predict(np.zeros((1, networks.INPUTS), dtype="f4"))
    assert not marker.exists()
    assert "\n" not in str(found.value)


def test_a_program_with_more_needs_the_flag(folder, tmp_path):
    """Refused when it is loaded, in a sentence with the flag; with the flag it predicts."""
    network = networks.classes({})
    layers = [(network[at].weight.detach().numpy(), network[at].bias.detach().numpy()) for at in (0, 2)]
    files = made.layers_files(layers)
    program = json.loads(files[MODEL])
    program["graph_module"]["graph"]["nodes"].insert(
        0, node("torch.ops.aten.rand_like.default", "unused", self=tensor("x"))
    )
    program["graph_module"]["graph"]["tensor_values"]["unused"] = made.meta([None, networks.INPUTS])
    content = packed(files | {MODEL: json.dumps(program).encode()})
    [member] = folder.glob("members/*")
    (member / "model.pt2").write_bytes(content)
    rewritten(folder, lambda m: m["members"][0]["digests"].update({"model.pt2": Member.digest_of(content)}))
    with pytest.raises(
        ExportError, match=r"uses 'torch\.ops\.aten\.rand_like\.default'; .*trust=True \(--trust\) loads"
    ):
        Ensemble.load(folder)
    x = networks.inputs(4)
    expected = network(torch.as_tensor(x)).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(Ensemble.load(folder, trust=True).predict(x), expected, rtol=1e-5, atol=1e-6)
