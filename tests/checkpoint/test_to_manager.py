"""What other tools saved becomes a folder that a Manager restores: weights, optimizer and plain values, bit for bit."""

import json
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trainwright.checkpoint import Manager
from trainwright.checkpoint.tools.convert import convert
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def train(model, optimizer, steps):
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=draws)).square().sum().backward()
        optimizer.step()


def equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


@pytest.mark.parametrize("wrapped", ["", "module.", "_orig_mod."])
def test_a_plain_state_dict(tmp_path, wrapped):
    """Whatever wrapped the model when it was saved."""
    model, other = network(0), network(1)
    torch.save({wrapped + name: value for name, value in model.state_dict().items()}, tmp_path / "model.pt")
    done = convert(tmp_path / "model.pt", tmp_path / "out", "manager")
    assert (done.format, done.tensors) == ("manager", len(model.state_dict()))
    with Manager(tmp_path / "out", model=other) as manager:
        restored = manager.restore(mode="exact")
    assert restored is not None
    assert equal(other.state_dict(), model.state_dict())


class Value:
    """What one item of a checkpoint comes back as."""

    def state_dict(self):
        return None

    def load_state_dict(self, state):
        self.content = state


@pytest.mark.parametrize("older", [False, True])
def test_numbers_and_arrays_of_numpy(tmp_path, older):
    """As metrics are often kept: each comes back in its type, also from a file of NumPy's first version."""
    best = {"loss": np.float32(1.1), "epoch": np.int64(7), "stop": np.bool_(True), "at": np.datetime64("2026-01-01")}
    curve = np.arange(6, dtype=np.float16).reshape(2, 3)
    content = {"model": network(0).state_dict(), "best": best, "curve": [curve, np.complex64(2j)], "step": np.int16(9)}
    torch.save(content, tmp_path / "last.pt")
    if older:
        rename(tmp_path / "last.pt", b"numpy._core.multiarray", b"numpy.core.multiarray")
    convert(tmp_path / "last.pt", tmp_path / "out", "manager")
    back, other = Value(), Value()
    with Manager(tmp_path / "out", model=network(1), best=back, curve=other) as manager:
        manager.restore(mode="best_effort")
        assert manager.steps == 9
    assert back.content == best
    assert [type(one) for one in back.content.values()] == [type(one) for one in best.values()]
    array, number = other.content
    assert (array.dtype, array.tolist()) == (curve.dtype, curve.tolist())
    assert (type(number), number) == (np.complex64, 2j)


def rename(file, name, other):
    """Put another name into the pickle of a file of torch's."""
    with zipfile.ZipFile(file) as old:
        entries = {entry: old.read(entry) for entry in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for entry, data in entries.items():
            new.writestr(entry, data.replace(name, other) if entry.endswith("data.pkl") else data)


def test_arrays_of_objects_are_refused(tmp_path):
    """Their pickle may hold anything."""
    torch.save({"model": network(0).state_dict(), "names": np.array(["a", None], object)}, tmp_path / "last.pt")
    with pytest.raises(CheckpointFormatError, match="asks for code to be executed"):
        convert(tmp_path / "last.pt", tmp_path / "out", "manager")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_goes_on(tmp_path, kind):
    """Model and optimizer of a usual script: the next steps are those of the run that was saved."""
    model = network(0)
    settings = {"lr": 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})}
    optimizer = kind(model.parameters(), **settings)
    train(model, optimizer, 3)
    content = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "epoch": 7,
        "global_step": 3,
        "loss": 0.25,
        "history": (1, [2.5, None]),
    }
    torch.save(content, tmp_path / "last.ckpt")
    convert(tmp_path / "last.ckpt", tmp_path / "out", "manager")
    train(model, optimizer, 4)
    other = network(1)
    resumed = kind(other.parameters(), **settings)

    history, epoch = Value(), Value()
    with Manager(tmp_path / "out", model=other, optimizer=resumed, history=history, epoch=epoch) as manager:
        manager.restore(mode="best_effort")
        assert manager.steps == 3
    assert (history.content, epoch.content) == ((1, [2.5, None]), 7)
    train(other, resumed, 4)
    assert equal(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("shard", ["10GB", "2KB"])
def test_a_hugging_face_folder(tmp_path, shard):
    """One file or many, with weights that the model ties."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=11)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hub", max_shard_size=shard)
    assert (tmp_path / "hub" / "model.safetensors").exists() == (shard == "10GB")
    convert(tmp_path / "hub", tmp_path / "out", "manager")
    torch.manual_seed(1)
    other = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    with Manager(tmp_path / "out", model=other) as manager:
        manager.restore(mode="best_effort")
    assert equal(other.state_dict(), model.state_dict())


def test_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    torch.save({"weights": {"a": torch.ones(2)}, "epoch": 1}, tmp_path / "other.pt")
    model = network(0)
    wrong = {"model": model.state_dict(), "optimizer": torch.optim.AdamW(model[0].parameters()).state_dict()}
    torch.save(wrong, tmp_path / "part.pt")
    (tmp_path / "empty").mkdir()
    for name, sentence in (
        ("list.pt", "holds list; allowed: a model's state dict, or a dict with"),
        ("other.pt", "entries 'weights', 'epoch'; allowed: a model's state dict under one of model, state_dict"),
        ("part.pt", "has 2 parameters, which cannot be matched with the model's 6 weights; allowed: an optimizer"),
        ("empty", "holds no checkpoint; allowed: a file, or a Hugging Face folder with model.safetensors"),
    ):
        with pytest.raises(CheckpointFormatError, match=sentence):
            convert(tmp_path / name, tmp_path / "out", "manager")
        assert not (tmp_path / "out").exists()


def test_a_damaged_index(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}))
    with pytest.raises(CheckpointCorruptError, match=r"'b' is in .*index\.json, but in none of its files"):
        convert(tmp_path, tmp_path.parent / "out", "manager")
    index.write_text(json.dumps({"weight_map": {"a": "../model-1.safetensors"}}))
    with pytest.raises(CheckpointFormatError, match="allowed: files of its folder"):
        convert(tmp_path, tmp_path.parent / "out", "manager")
