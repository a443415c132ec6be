"""Recomputes in models sharded by FSDP: gathers (unshards) parameters to be measured, and before a rerun."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainwright.train.parallel.recompute.trees import local_tensor

__all__ = ["fixed_bytes", "parameters_gathered", "sharded_modules", "stage_gathered"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@contextmanager
def parameters_gathered(model: nn.Module) -> Iterator[None]:
    """Let a model have its parameters whole, and call its modules without the hooks of `fully_shard`."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        yield
        return
    # The outermost is the root of the others, which it finds when it is first called.
    sharded[0]._get_fsdp_state()._lazy_init()  # noqa: SLF001  the test of two ranks pins it
    held = []
    for module in sharded:
        state = module._get_fsdp_state()  # noqa: SLF001  as above
        for name in _HOOKS:
            hooks = getattr(module, name)
            held.append((hooks, dict(hooks)))
            for key, hook in list(hooks.items()):
                if getattr(hook, "__self__", None) is state:
                    del hooks[key]
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
        for hooks, before in held:
            hooks.clear()
            hooks.update(before)


def fixed_bytes(model: nn.Module) -> dict[str, int]:
    """Return what a device has of a model that FSDP divides, by owner; nothing for another.

    Its own shards, and the parameters gathered: of modules that divide them again after each pass two at a time, for
    the next is fetched meanwhile. An exchange has the module's parameters or gradients in a buffer, two at a time too.
    """
    shards, staying, passing = 0, 0, [0]
    for module in model.modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None  # noqa: SLF001
        if group is None:
            continue
        own = [each.sharded_param for each in group.fsdp_params]
        whole = sum(each.numel() * each.itemsize for each in own)
        shards += sum(local_tensor(each).nbytes for each in own)
        staying += 0 if group.post_forward_mesh_info is not None else whole
        passing.append(whole)
    if len(passing) == 1:
        return {}
    largest = max(passing)
    return {"parameters": min(sum(passing), staying + 2 * largest), "shards": shards, "exchanges": 2 * largest}


def sharded_modules(model: nn.Module, name: str, modules: Sequence[nn.Module]) -> list[FSDPModule]:
    """Return FSDP's modules that hold parameters of a stage: those in it, and those that it is in but the model."""
    above = [
        module
        for path, module in model.named_modules()
        if path and name.startswith(f"{path}.") and isinstance(module, FSDPModule)
    ]
    return above + [each for module in modules for each in module.modules() if isinstance(each, FSDPModule)]


@contextmanager
def stage_gathered(modules: Sequence[FSDPModule]) -> Iterator[None]:
    """Gather what is divided now, and divide it again: FSDP gathers a stage when the backward comes to it, not before.

    What a graph has saved of a gathered parameter is right again when that is gathered again: it has the same storage.
    """
    divided = [each for each in modules if _is_divided(each)]
    for module in divided:
        module.unshard()
    try:
        yield
    finally:
        for module in divided:
            module.reshard()


def _is_divided(module: FSDPModule) -> bool:
    group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001  as above
    return group is not None and group.is_sharded
