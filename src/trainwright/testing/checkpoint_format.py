"""What every file format promises, as tests: subclass `FormatConformance`, give `make`, inherit them.

    class TestMine(FormatConformance):
        def make(self):
            return Mine()

Needs hypothesis; nothing else of the package imports this file.
"""
# ruff: noqa: S101 -- asserts are what tests are made of

import pickle
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.checkpoint.tools.formats.format import DTYPES, FORMATS, Format, equal_bits
from trainwright.errors import CheckpointError, CheckpointFormatError, CheckpointMismatchError

__all__ = ["FormatConformance", "bits"]

_shared = settings(
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
_ODD_NAMES = ("", ".", "..", "/", "a/b", "/a", "a//b", "a.b", "a", "%", "%2F", "%document", "%%", "%metadata", "a b")
_MORE_NAMES = ("x.npy", "Ä/é", "日本", "\u202e", "a\nb", "a\0b", "__metadata__", "tensors", "a\\b", "é", "e\u0301")
# Infinities, quiet and signalling NaN with payloads, +-0, denormals, by bits.
_SPECIAL = {
    "float16": ("int16", [0x7C00, -0x8000, 0x7E01, 0x7D55, -0x01FF, 0x0000, 0x0001, 0x03FF]),
    "bfloat16": ("int16", [0x7F80, -0x8000, 0x7FC1, 0x7FAA, -0x003F, 0x0000, 0x0001, 0x007F]),
    "float32": ("int32", [0x7F800000, -0x80000000, 0x7FC00001, 0x7FA12345, -0x3FFFFF, 0, 1, 0x7FFFFF]),
    "float64": ("int64", [0x7FF << 52, -(1 << 63), (0x7FF8 << 48) + 7, (0x7FF4 << 48) + 9, -1, 0, 1, (1 << 52) - 1]),
}


def bits(dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits: NaN with payloads, denormals and all."""
    size = prod(shape) * getattr(torch, dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(shape) if size else _empty(dtype, shape)


class FormatConformance(ABC):
    """What every format promises. Subclass as Test<Format>, give `make`, inherit the tests."""

    many = 10_000
    """How many small tensors are a checkpoint like others; fewer in the fast tests of a format with dear records."""

    @abstractmethod
    def make(self) -> Format:
        """Return the format."""

    def check(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
        """Write, read back, and compare bit by bit."""
        kind = self.make()
        with _folder() as folder:
            path = folder / f"one{kind.suffix}"
            files = kind.write(path, tensors, metadata)
            assert files
            assert all(file.is_file() for file in files)
            assert kind.recognises(path)
            # No other format may take the file for its own, or reading without a name would guess wrong.
            known = {**FORMATS, kind.name: kind}
            assert [one.name for one in known.values() if one.recognises(path)] == [kind.name]
            with kind.open(path) as stored:
                assert {name: (info.dtype, info.shape) for name, info in stored.infos.items()} == {
                    name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
                    for name, tensor in tensors.items()
                }
                _compare(stored, tensors)
                assert stored.metadata == dict(metadata or {})

    def test_every_dtype(self) -> None:
        """Random bits of every dtype come back, as a matrix, as a single number, and as nothing at all."""
        tensors = {}
        for number, dtype in enumerate(sorted(self.make().dtypes)):
            tensors[dtype] = bits(dtype, (3, 8), number)
            tensors[f"{dtype}.0d"] = bits(dtype, (), number)
            tensors[f"{dtype}.empty"] = _empty(dtype, (0,))
            tensors[f"{dtype}.flat"] = _empty(dtype, (2, 0, 3))
        self.check(tensors)

    def test_special_values(self) -> None:
        """Infinities, NaN payloads, both zeros and denormals keep their bits."""
        self.check(
            {
                dtype: torch.tensor(values, dtype=getattr(torch, carrier)).view(getattr(torch, dtype))
                for dtype, (carrier, values) in _SPECIAL.items()
            }
        )

    def test_nothing(self) -> None:
        """A checkpoint without tensors, and one with text alone, are checkpoints."""
        self.check({})
        self.check({}, {"note": "no tensors\nÄ", "": ""})

    def test_layouts(self) -> None:
        """What is not contiguous, a view, expanded or wants gradients is written as it reads."""
        base = bits("float32", (8, 6))
        tensors = {
            "transposed": base.T,
            "strided": base[::2, 1::3],
            "view": base[1:3],
            "expanded": base[:1].expand(4, 6),
            "parameter": torch.nn.Parameter(torch.ones(3)),
            "single": base[:, 1][3:4],
            "channels": torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj().resolve_conj(),
        }
        self.check(tensors)
        kind = self.make()
        with _folder() as folder:
            files = kind.write(folder / f"view{kind.suffix}", {"row": torch.zeros(4096, 256)[1:2]})
            assert sum(file.stat().st_size for file in files) < 100_000

    def test_tied(self) -> None:
        """Names of one tensor are stored once and come back as one tensor; equal tensors and views are not tied."""
        weight = bits("float32", (256, 256))
        tensors = {"a": weight, "b/tied": weight, "equal": weight.clone(), "view": weight[0], "flat": weight.view(-1)}
        self.check(tensors)
        kind = self.make()
        with _folder() as folder:
            path = folder / f"tied{kind.suffix}"
            files = kind.write(path, {"a": weight, "b/tied": weight})
            assert sum(file.stat().st_size for file in files) < 1.5 * weight.nbytes
            found = kind.read(path)
            assert found["a"].data_ptr() == found["b/tied"].data_ptr()
            with kind.open(path) as stored:
                assert {name: info.tied for name, info in stored.infos.items()} == {"a": None, "b/tied": "a"}
                assert equal_bits(stored["b/tied"], weight)
                with _refused(CheckpointMismatchError):
                    stored["weight"]

    def test_odd_names(self) -> None:
        """Slashes, dots, percent signs, control characters, all of Unicode, and the empty name are names."""
        names = [*_ODD_NAMES, *_MORE_NAMES, "x" * 200]
        self.check({name: bits("int32", (2,), number) for number, name in enumerate(names)}, {"a": "b", "%": "/"})

    def test_many_small(self) -> None:
        """Ten thousand small tensors are a checkpoint like others."""
        self.check({f"layers/{i}.weight": torch.full((3,), i, dtype=torch.int32) for i in range(self.many)})

    def test_any_state(self) -> None:
        """Any names, dtypes, shapes and text come back."""
        dtypes = st.sampled_from(sorted(self.make().dtypes))
        entries = st.tuples(dtypes, _shapes, st.integers(0, 99))

        @_shared
        @given(st.dictionaries(_names, entries, max_size=6), st.dictionaries(_names, _names, max_size=3))
        def check(entries: dict[str, tuple[str, tuple[int, ...], int]], metadata: dict[str, str]) -> None:
            self.check({name: bits(*entry) for name, entry in entries.items()}, metadata)

        check()

    def test_streams(self) -> None:
        """An open checkpoint of any format can be written as it is, each tensor read when it is its turn."""
        kind = self.make()
        tensors = {"a": bits("float32", (7, 3)), "b": bits("bfloat16", (2, 2)), "c": bits("uint8", (0, 4))}
        # Ties must survive a copy from one format to another.
        tensors["tied"] = tensors["a"]
        for other in FORMATS.values():
            with _folder() as folder:
                other.write(folder / "source", tensors, {"note": other.name})
                with other.open(folder / "source") as stored:
                    kind.write(folder / "target", stored, stored.metadata)
                _compare(kind.read(folder / "target"), tensors)
                with kind.open(folder / "target") as found:
                    assert (found.metadata, found.infos["tied"].tied) == ({"note": other.name}, "a")

    def test_refusals(self) -> None:
        """Dtypes that the format has no word for, sparse tensors, lone surrogates and existing paths are refused."""
        kind = self.make()
        # A format that has no word for a type must say so, not write another type.
        for dtype in sorted(DTYPES - kind.dtypes):
            self._refuses_to_write({"x": bits(dtype, (2,))}, dtype, "allowed: one of the formats")
        self._refuses_to_write({"x": torch.eye(2).to_sparse()}, "sparse", "dense")
        self._refuses_to_write({"x": torch.empty(2, device="meta")}, "'x'", "dense")
        self._refuses_to_write({"\ud800": torch.ones(1)}, "surrogates")
        with _folder() as folder:
            kind.write(folder / "one", {"x": torch.ones(2)})
            with _refused(CheckpointFormatError, "exists"):
                kind.write(folder / "one", {"x": torch.zeros(2)})
            assert equal_bits(kind.read(folder / "one")["x"], torch.ones(2))

    def _refuses_to_write(self, tensors: Mapping[str, torch.Tensor], *words: str) -> None:
        with _folder() as folder, _refused(CheckpointFormatError, *words):
            self.make().write(folder / "one", tensors)

    def test_truncated(self) -> None:
        """A file that lost its end, wherever it was cut, is refused; so is one that is empty or not there."""
        kind = self.make()
        tensors = {"a": bits("float32", (64, 64)), "b": bits("uint8", (100,)), "c": bits("float64", ())}
        with _folder() as folder:
            files = [file.relative_to(folder) for file in kind.write(folder / "one", tensors, {"note": "x"})]
            for file in files:
                size = (folder / file).stat().st_size
                # Cuts in the header, in the middle and just before the end.
                for left in sorted({0, 1, 7, 100, size // 10, size // 2, size * 9 // 10, size - 100, size - 1}):
                    with _folder() as other:
                        _copy(folder / "one", other / "one")
                        with (other / file).open("r+b") as handle:
                            handle.truncate(left)
                        with _refused(CheckpointError):
                            kind.read(other / "one")
            with _refused(CheckpointError, "not there"):
                kind.read(folder / "two")

    def test_foreign(self) -> None:
        """Files that are something else, those of other formats too, are refused in a sentence that names the path."""
        kind = self.make()
        with _folder() as folder:
            for number, content in enumerate([b"", b"{}", b"hello\n" * 99, bytes(range(256)) * 9, b"\0" * 99]):
                (folder / f"foreign-{number}").write_bytes(content)
            (folder / "folder").mkdir()
            for other in FORMATS.values():
                if other.name != kind.name:
                    other.write(folder / f"a {other.name}", {"x": torch.ones(2)})
            for path in sorted(folder.iterdir()):
                with _refused(CheckpointFormatError, str(path), kind.name):
                    kind.read(path)

    def test_pickles_are_not_executed(self) -> None:
        """Pickles that would run code, wherever the format could meet one, are refused and run nothing."""
        with _folder() as folder:
            # The mark appears only if somebody's code was run.
            mark = folder / "executed"
            (folder / "bare").write_bytes(pickle.dumps(_Payload(mark)))
            torch.save({"x": _Payload(mark)}, folder / "torch")
            np.savez(folder / "array.npz", x=np.array([_Payload(mark)], dtype=object))
            self.hide_pickles(folder, lambda: pickle.dumps(_Payload(mark), protocol=2))
            for path in sorted(folder.iterdir()):
                with _refused(CheckpointError):
                    self.make().read(path)
            assert not mark.exists()

    def hide_pickles(self, folder: Path, payload: Callable[[], bytes]) -> None:  # noqa: B027 -- a format without pickles has none to hide
        """Put further files into `folder` where a pickle lies hidden; formats with more places to hide say more."""


class _Payload:
    """Unpickled by a careless reader, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def _empty(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype))


def _compare(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not equal_bits(found[name], tensor)] == []


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@contextmanager
def _refused(error: type[CheckpointError], *words: str) -> Iterator[None]:
    """Expect one sentence of that kind which says all of `words`."""
    said = None
    try:
        yield
    except error as refusal:
        said = str(refusal)
    assert said is not None, f"no {error.__name__} was raised"
    assert all(word in said for word in words), said
    assert "\n" not in said
