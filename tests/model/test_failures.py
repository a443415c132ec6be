"""What cannot be profiled is refused in one sentence that names the module and the operation."""

import pytest
import torch
from torch import nn

import trainwright as tw
from trainwright.errors import InputError, ProfileError


class Deep(nn.Module):
    """A model with `inner` as its module "body.1"."""

    def __init__(self, inner):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), inner)

    def forward(self, x):
        return self.body(x)


class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


class Breaks(nn.Module):
    def forward(self, x):
        if x.sum() > -1e9:
            return x @ torch.zeros(7, 7)
        return x


class Raises(nn.Module):
    def forward(self, x):
        raise KeyError("mask")


def test_a_model_that_depends_on_values_is_run_and_timed():
    model = Deep(Branches())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profile = tw.Profile.trace(model, torch.randn(2, 4))
    assert profile.origin == "measured"
    assert all(layer.origin == "measured" for layer in profile.layers)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert tw.Profile.trace(Deep(nn.ReLU()), torch.randn(2, 4)).origin == "traced"


def test_a_model_that_can_be_neither_traced_nor_run():
    """Both reasons, with module and operation, in one sentence."""
    with pytest.raises(ProfileError) as caught:
        tw.Profile.trace(Deep(Breaks()), torch.randn(2, 4))
    text = str(caught.value)
    assert "aten._local_scalar_dense.default in module 'body.1' depends on the values" in text
    assert "running it fails too: sample: aten.mm.default in module 'body.1' fails on shapes (2, 4), (7, 7)" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (torch.zeros(2, 5), "aten.addmm.default in module 'body.0' fails on shapes (4,), (2, 5), (4, 4)"),
        ((torch.zeros(2, 4), torch.zeros(2, 4)), "the model itself fails: Deep.forward() takes 2 positional"),
        ({"y": torch.zeros(2, 4)}, "got an unexpected keyword argument 'y'"),
        (torch.tensor(1.0), "got no tensor with a batch dimension"),
        (3, "got no tensor with a batch dimension"),
    ],
)
def test_a_sample_that_the_model_refuses(sample, words):
    with pytest.raises(InputError, match=r"^sample: ") as caught:
        tw.Profile.trace(Deep(nn.ReLU()), sample)
    assert words in str(caught.value)
    assert "batch" in str(caught.value)


def test_an_error_of_the_model_names_its_module():
    with pytest.raises(ProfileError, match=r"module 'body.1' fails: 'mask'"):
        tw.Profile.trace(Deep(Raises()), torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "fp61"}, "precision: got 'fp61'; allowed: 'fp32', 'bf16', 'amp-bf16', 'amp-fp16'"),
        (
            {"optimizer": "adamv"},
            "got 'adamv'; allowed: 'sgd', 'momentum', 'adam', 'adamw', a function of the parameters, or None",
        ),
        ({"loss": lambda model, batch: model(batch)}, "loss: returned tensors of shapes"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(ProfileError) as caught:
        tw.Profile.trace(Deep(nn.ReLU()), torch.zeros(2, 4), **settings)
    assert words in str(caught.value)


def test_what_is_no_model():
    with pytest.raises(ProfileError, match=r"model: got function; allowed: a torch.nn.Module"):
        tw.Profile.trace(lambda x: x, torch.zeros(2, 4))


def test_a_model_without_anything_to_train_is_a_forward_pass():
    model = Deep(nn.ReLU()).requires_grad_(requires_grad=False)
    profile = tw.Profile.trace(model, torch.zeros(2, 4))
    assert profile.trainable_elements == 0
    assert sum(layer.backward_flops for layer in profile.layers) == 0
    assert sum(layer.forward_flops for layer in profile.layers) == 2 * 2 * 4 * 4
