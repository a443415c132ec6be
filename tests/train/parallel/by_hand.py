"""Profiles of small chains, written down from the shapes that a forward pass shows."""

import torch
from torch import nn

from trainwright.model.layer import Block, Layer, Transformer
from trainwright.model.profile import Profile

KINDS = {nn.Linear: "linear", nn.Conv2d: "conv", nn.MaxPool2d: "pool", nn.LayerNorm: "norm"}


def profile_of(model, sample, *, blocks=None, transformer=None):
    """Return the profile of a model: a block for each of `blocks`, by default for each of its leaves."""
    seen, order = {}, []
    leaves = [each for each in model.modules() if not any(True for _ in each.children())]

    def note(module, args, found):
        seen[module] = _layer(module, args[0], found)
        order.append(module)

    hooks = [each.register_forward_hook(note) for each in leaves]
    outputs = {}
    blocks = leaves if blocks is None else blocks
    hooks += [each.register_forward_hook(lambda one, _, found: outputs.update({one: found})) for each in blocks]
    model(sample)
    for hook in hooks:
        hook.remove()
    made = []
    for number, block in enumerate(blocks):
        inside = set(block.modules())
        layers = [seen[each] for each in order if each in inside]
        found = outputs[block].nbytes
        shape = transformer if transformer and len(layers) > 1 else None
        if shape is not None:  # the attention itself is no module: it comes before the layer that ends it
            place = next(i for i, each in enumerate(layers) if each.kind == "linear" and each.filters == shape.hidden)
            place += 2 if layers[place + 1].filters == layers[place + 2].filters == shape.hidden else 0
            elements = sample.shape[0] * shape.sequence * shape.hidden
            layers.insert(
                place, Layer(name="attention", kind="attention", input_elements=3 * elements, output_elements=elements)
            )
        made.append(
            Block(
                name=str(number),
                layers=tuple(layers),
                output_bytes=found,
                saved_bytes=found,
                gradient_bytes=found,
                transformer=shape,
            )
        )
    return Profile(name="by hand", batch=len(sample), blocks=tuple(made), precision="fp32")


def _layer(module, given, found):
    spatial = given.ndim > 3
    settings = {}
    if isinstance(module, nn.Conv2d | nn.MaxPool2d):
        for name in ("stride", "padding", "dilation"):
            value = getattr(module, name)
            settings[name] = value if isinstance(value, tuple) else (value, value)
        kernel = module.kernel_size
        settings["kernel"] = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    if isinstance(module, nn.Linear | nn.Conv2d):
        settings |= {"filters": module.weight.shape[0], "channels": module.weight.shape[1]}
    return Layer(
        name=type(module).__name__,
        kind=KINDS.get(type(module), "pointwise"),
        input_elements=given.numel(),
        output_elements=found.numel(),
        weight_elements=sum(each.numel() for each in module.parameters()),
        input_size=tuple(given.shape[2:]) if spatial else (),
        output_size=tuple(found.shape[2:]) if found.ndim > 3 else (),
        **settings,
    )


def transformer_of(width, heads, length):
    return Transformer(hidden=width, heads=heads, sequence=length)


def batch_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
