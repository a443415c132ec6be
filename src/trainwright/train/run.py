"""What `trial.prepare` hands back: model, optimizer and batches, placed on the trial's devices."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint import Manager
from trainwright.errors import TrialError
from trainwright.train.batch_slicing import samples_in, slice_batch
from trainwright.train.batching import Batching, BatchRule, BatchStep
from trainwright.train.loader_sharding import PlacedBatches, ShardedBatches, batches_of
from trainwright.train.rescaling import RateRule, Rescaling
from trainwright.train.slots import Slots

if TYPE_CHECKING:
    import torch

    from trainwright.plan import Layout
    from trainwright.plan.memory.plan_record import Plan as MemoryPlan
    from trainwright.train.parallel.model import Parallel
    from trainwright.train.parallel.recompute.budgeted import Budgeted
    from trainwright.train.trial import Trial

__all__ = ["Run"]


class Run:
    """A model in training, on one device or as one of several ranks that hold equal copies of it.

    `loader` yields this rank's share of each global batch on `device`, one an optimizer step; `step` does forward,
    backward and update. `model` is what to call in training: it averages gradients over the ranks, each in proportion
    to its share. `batch`, `micro_batch` and `accumulate` are those of the epoch in work.
    """

    def __init__(
        self,
        trial: "Trial",
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        loader: Any = None,
        *,
        loss: "Callable[[torch.nn.Module, Any], torch.Tensor] | None" = None,
        schedule: Any = None,
        batch: BatchRule = "constant",
        micro_batch: int | None = None,
        learning_rate: RateRule = "auto",
        warmup_steps: int | None = None,
        slots: int | None = None,
        plan: "Layout | None" = None,
        sync_bn: bool = False,
        memory: "str | float | MemoryPlan | None" = None,
        unused_parameters: bool = False,
    ) -> None:
        if not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "register_step_pre_hook"):
            # A wrapper that never ran torch's own constructor, as accelerate's does not, refuses hooks.
            name = type(optimizer).__name__
            raise TrialError(
                f"prepare: the optimizer is wrapped in {name}, which takes no hooks; call trial.prepare with the plain "
                "model and optimizer first, and accelerator.prepare after it"
            )
        self._unused = unused_parameters
        self._exchanged = 0  # elements of gradients, in the step at hand
        self.device = trial.device
        self.optimizer = optimizer
        self.schedule = schedule
        self._trial = trial
        self._bare = model.to(self.device)
        self._loss = loss
        self._loader = loader
        self._batches: ShardedBatches | None = None
        self._batching: Batching | None = None
        self._step: BatchStep | None = None
        self._micro_batch = micro_batch
        self._rate = Rescaling(optimizer=optimizer, rule=learning_rate, warmup_steps=warmup_steps)
        self._slots: Slots | None = None
        self._hooked = hasattr(optimizer, "register_step_post_hook")
        self._count: Callable[[], None] = lambda: None
        self._parallel: Parallel | None = None
        self._budgeted: Budgeted | None = None
        if plan is not None:
            # A memory budget is a part of the layout: the one given here, or the one that the layout's file has.
            plan = plan.layout if memory is None else replace(plan.layout, memory=memory)
            memory = plan.memory
        _refuse_together(plan=plan, slots=slots, memory=memory, sync_bn=sync_bn)
        if memory is not None:
            self._budgeted = self._within(memory)
        to_call = self._bare if self._budgeted is None else self._budgeted.module
        if plan is not None:
            self._micro_batch = micro_batch or plan.micro_batch
            self._parallel = self._set_up(to_call, plan, sync_bn=sync_bn)
            self._bare = self._parallel.module
        # Ranks of one data-parallel place get the same samples.
        place, places = self._place
        if loader is not None:
            self._batches, size = batches_of(loader, rank=place, world=places, ranks=trial.world_size)
            if plan is not None and size is not None and size != plan.batch:
                raise TrialError(f"prepare: the plan is for batches of {plan.batch}, the loader gives {size}")
            self._batching = self._batching_of(size, batch)
        if self._batching is None and batch != "constant":
            raise TrialError(
                f"prepare: batch={batch!r} needs a loader that tells its batch; give tw.train.Loader, or a DataLoader "
                "with a batch_size"
            )
        if slots is not None:
            if loss is None or micro_batch is not None:
                raise TrialError(
                    f"prepare: slots={slots} cuts batches in run.step; give loss=f too, and no micro_batch: it is the "
                    "batch over the slots"
                )
            self._slots = Slots(model, count=slots, trial=trial)
        # What the training calls: the wrapper of a plan, DDP over several ranks, or the model itself.
        self.model: torch.nn.Module
        if self._parallel is not None:
            self.model = self._parallel
        else:
            self.model = to_call if trial.world_size == 1 or slots is not None else self._replicated(to_call)
        self._depth = 0  # of steps in one another: of an optimizer that calls its base's torch hooks both
        if self._hooked:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    @property
    def loader(self) -> PlacedBatches:
        """This rank's batches on `device`. Raises `TrialError` if `prepare` was given no loader."""
        if self._batches is None:
            raise TrialError(
                "run.loader: trial.prepare was given no loader; give trial.prepare(model, optimizer, loader)"
            )
        return PlacedBatches(self._batches, self.device, self.arrange)

    @property
    def batch(self) -> int:
        """How many samples an optimizer step has, over all ranks."""
        return self._arranged().batch

    @property
    def micro_batch(self) -> int:
        """How many samples of it this rank's device takes at a time."""
        return self._arranged().micro_batch

    @property
    def accumulate(self) -> int:
        """How many times it does so in a step."""
        return self._arranged().accumulate

    @property
    def place(self) -> int:
        """The number of this rank among those that take different samples, from 0."""
        return self._place[0]

    @property
    def learning_rate_scale(self) -> float:
        """The factor of the learning rates in the next step; optimizer and schedule show the rate without it."""
        return self._rate.scale

    @property
    def memory_plan(self) -> "MemoryPlan | None":
        """How the model keeps to its memory budget; None without one, or before its first batch."""
        return None if self._budgeted is None else self._budgeted.plan

    def step(self, batch: Any) -> "torch.Tensor":
        """Take one optimizer step on `batch`, in micro-batches if need be. Needs `prepare(..., loss=)`.

        Returns the mean loss over the global batch, detached; `loss` is to be a mean over the samples that it is given.
        """
        if self._loss is None:
            raise TrialError("run.step needs a loss; give trial.prepare(..., loss=f) with f(model, batch) a scalar")
        # Gradients of the last step go first, so that their memory is free during the forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(batch) if self._slots is None else self._slots.backward(batch, self._loss)
        if self._hooked:
            self.optimizer.step()
        else:  # an optimizer of the user's own: what is not stepped here is not seen
            self._before()
            self.optimizer.step()
            self._after()
        return loss

    def arrange(self) -> None:
        """Take over the batch of the epoch that comes, and the learning rate that goes with it."""
        if self._batching is None or self._batches is None:
            return
        epoch = self._trial.next_epoch
        self._step = self._batching.at(epoch)
        # A slot is the micro-batch; a rank takes its share of them one after another.
        if self._slots is not None:
            count = self._slots.count
            size, times = self._step.batch // count, count // self._trial.world_size
            self._step = BatchStep(batch=self._step.batch, micro_batch=size, accumulate=times)
        if self._budgeted is not None:
            self._budgeted.accumulate = self._step.accumulate > 1
        self._batches.arrange(self._step.batch)
        self._rate.aim(self._batching.ratio(epoch), len(self._batches))

    def items(self) -> dict[str, Any]:
        """Return what a resumed run needs, by name; the global generators come with every checkpoint."""
        loader = self._loader if hasattr(self._loader, "load_state_dict") else getattr(self._loader, "generator", None)
        found = {
            "model": self._bare,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loader": loader,
            "rate": self._rate,
            "slots": self._slots,
        }
        return {name: item for name, item in found.items() if item is not None}

    def count_steps(self, manager: Manager) -> None:
        """Let a manager know of each step of the optimizer, whoever calls it."""
        self._count = manager.count

    def _before(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._rate.before()

    def _after(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._rate.after()
            self._count()

    def _batching_of(self, size: int | None, rule: BatchRule) -> Batching | None:
        if size is None:
            return None
        return Batching(
            rule=rule,
            reference=size,
            processes=self._place[1],
            devices=self._trial.devices,
            start_devices=self._trial.assignment.start_devices,
            micro_batch=self._micro_batch,
        )

    @property
    def _place(self) -> tuple[int, int]:
        """Which samples this rank takes: of that place among so many."""
        if self._parallel is None:
            return self._trial.rank, self._trial.world_size
        return self._parallel.data_rank, self._parallel.data_ranks

    @property
    def _share(self) -> float:
        """The part of the global batch that this rank's batch is."""
        return 1 / self._place[1] if self._batches is None else self._batches.share

    def _arranged(self) -> BatchStep:
        if self._step is None:
            raise TrialError(
                "the micro-batch is known if trial.prepare gets a loader that tells its batch; give tw.train.Loader, "
                "or a DataLoader with a batch_size"
            )
        return self._step

    def _within(self, memory: "str | float | MemoryPlan") -> "Budgeted":
        """Return the model with a memory budget, which the optimizer and the buckets of DDP are part of."""
        from torch.optim import Optimizer

        from trainwright.train.parallel.recompute.budgeted import Budgeted

        trained = sum(parameter.nbytes for parameter in self._bare.parameters() if parameter.requires_grad)
        return Budgeted(
            self._bare,
            memory,
            optimizer=self.optimizer if isinstance(self.optimizer, Optimizer) else None,
            reserve_bytes=trained if self._trial.world_size > 1 else 0,
            on_plan=lambda plan: self._trial.note("memory_plan", plan.summary),
        )

    def _set_up(self, module: "torch.nn.Module", plan: "Layout", *, sync_bn: bool) -> "Parallel":
        """Return the model as the ranks of a layout train it."""
        from trainwright.train.parallel.setup import set_up

        if plan.memory is not None:  # the budget decides what is run again
            plan = replace(plan, recompute="none", recomputed=())
        return set_up(module, self.optimizer, plan, sync_bn=sync_bn)

    def _replicated(self, module: "torch.nn.Module") -> "torch.nn.Module":
        """Return the model as torch's DDP, with gradients summed by share instead of averaged."""
        from torch.nn.parallel import DistributedDataParallel

        # The search for unused ones also keeps DDP from regrouping gradients after the first step of a process.
        model = DistributedDataParallel(module, find_unused_parameters=self._unused)
        model.register_comm_hook(None, lambda _, bucket: self._summed(bucket))
        return model

    def _refuse_unused(self) -> None:
        """Raise if ranks still wait for gradients of this one: the next thing they exchange would be taken for them."""
        # DDP waits for every parameter: fewer summed elements mean that a later exchange would be taken for them.
        exchanged, self._exchanged = self._exchanged, 0
        if not self._unused and exchanged < sum(
            parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad
        ):
            raise TrialError(
                "run.step: some parameters of the model had no part in the loss of this step, and other ranks wait for "
                "their gradients; give trial.prepare(..., unused_parameters=True), or freeze them before prepare"
            )

    def _summed(self, bucket: Any) -> Any:
        """Start to sum a bucket of gradients over the ranks, each in proportion to its share of the batch."""
        import torch.distributed as dist

        self._exchanged += bucket.buffer().numel()
        work = dist.all_reduce(bucket.buffer().mul_(self._share), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _backward(self, batch: Any) -> "torch.Tensor":
        """Leave the gradient over the global batch in the parameters; ranks speak in the last micro-batch only."""
        import torch.distributed as dist

        assert self._loss is not None  # noqa: S101 -- `step` has seen to it
        alone = self._trial.world_size == 1
        if self._parallel is not None and self._budgeted is None:
            return self._parallel.backward(self._loss, self._even(batch))
        parts = self._parts(batch) if self._parallel is None else self._even(batch)
        if self._budgeted is not None:
            self._budgeted.accumulate = len(parts) > 1
        total: Any = 0.0
        for number, (weight, part) in enumerate(parts, 1):
            with nullcontext() if alone or number == len(parts) else self.model.no_sync():  # type: ignore[operator]  # DDP's
                if self._budgeted is not None:
                    self._budgeted.loss = functools.partial(_loss_on, self._loss, part, self._autocast())
                loss = self._loss(self.model, part)
                if self._budgeted is not None:
                    self._budgeted.loss = None  # it holds the batch
                (loss if weight == 1.0 else loss * weight).backward()
            total = loss.detach() if weight == 1.0 else total + loss.detach() * weight
        if not alone:
            if self._parallel is None:  # a plan's gradients are exchanged by its own wrapper
                self._refuse_unused()
            total = total * self._share
            dist.all_reduce(total)
        return total  # type: ignore[no-any-return]

    def _even(self, batch: Any) -> list[tuple[float, Any]]:
        """Return the micro-batches of a plan; shares of a batch are equal, else their mean is another."""
        assert self._parallel is not None  # noqa: S101 -- asked only then
        places = self._parallel.data_ranks
        if abs(self._share * places - 1) > 1e-9:
            raise TrialError(
                f"prepare: a batch cannot be shared evenly by {places} data parallel ranks of the plan; give the "
                "loader drop_last=True"
            )
        return [(1.0, batch)] if self._parallel.plan.degrees.pipeline > 1 else self._parts(batch)

    def _autocast(self) -> "AbstractContextManager[Any]":
        """Return what the loss is computed in: a plan's precision is that of the model's forward pass alone."""
        import torch

        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))

    def _parts(self, batch: Any) -> list[tuple[float, Any]]:
        """Return the micro-batches of a batch, each with the part of it that it is."""
        size = self._micro_batch if self._step is None else self._step.micro_batch
        if size is None or (self._step is not None and self._step.accumulate == 1):
            return [(1.0, batch)]
        count = samples_in(batch)
        if count <= size:
            return [(1.0, batch)]
        return [(samples_in(part) / count, part) for part in slice_batch(batch, size)]


def _loss_on(
    loss: "Callable[[torch.nn.Module, Any], torch.Tensor]",
    batch: Any,
    surroundings: "AbstractContextManager[Any]",
    model: "torch.nn.Module",
) -> Any:
    with surroundings:
        return loss(model, batch)


def _refuse_together(*, plan: "Layout | None", slots: int | None, memory: Any, sync_bn: bool) -> None:
    """Raise `TrialError` for settings that cannot be combined."""
    if plan is not None and slots is not None:
        raise TrialError(f"prepare: slots={slots} and a plan; give one of them: slots are data parallel")
    if memory is not None and slots is not None:
        raise TrialError(f"prepare: memory={memory!r} and slots={slots}; give one of them")
    if sync_bn and plan is None:
        raise TrialError("prepare: sync_bn=True without a plan; give plan=, a data parallel one for instance")
    if sync_bn and memory is not None:
        raise TrialError(
            f"prepare: memory={memory!r} and sync_bn=True; give one of them: a norm that is run again on one rank "
            "would wait for the others"
        )
    if memory is not None and plan is not None and (plan.zero or plan.degrees.data != plan.degrees.devices):
        what = f"ZeRO {plan.zero}" if plan.zero else "other degrees than data"
        raise TrialError(
            f"prepare: memory={memory!r} and a plan, {plan.strategy!r}, of {what}; allowed with a budget: a plan for "
            "one device, or a data parallel one without ZeRO. For others leave out memory=: what they recompute is "
            "part of the plan"
        )
