"""What `trial.prepare` returns: model, optimizer and batches placed on the trial's devices, and the training step."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint import Manager
from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state
from trainwright.errors import MissingExtra, TrialError
from trainwright.train.batch_slicing import samples_in, slice_batch, train_parts
from trainwright.train.batching import Batching, BatchRule, BatchStep, LearningRateRescaling, RateRule
from trainwright.train.goodput_batch import GoodputBatch
from trainwright.train.gradient_noise import GradientNoise
from trainwright.train.gradient_step import GradientStep, is_divided
from trainwright.train.loader_sharding import PlacedBatches, ShardedBatches, shard_batches
from trainwright.train.replay import EpochReplay
from trainwright.train.slots import Slots

if TYPE_CHECKING:
    import torch

    from trainwright.plan import Layout
    from trainwright.plan.memory.plan_record import Plan as MemoryPlan
    from trainwright.train.parallel.model import Parallel
    from trainwright.train.trial import Trial

__all__ = ["Run", "parallelise"]


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
        find_unused_parameters: bool = False,
        max_gradient_norm: float | None = None,
        scaler: "torch.amp.GradScaler | None" = None,
        saves_within: bool = True,
    ) -> None:
        if not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "register_step_pre_hook"):
            # A wrapper that never ran torch's own constructor, as accelerate's does not, refuses hooks.
            name = type(optimizer).__name__
            raise TrialError(
                f"prepare: the optimizer is wrapped in {name}, which takes no hooks; call trial.prepare with the plain "
                "model and optimizer first, and accelerator.prepare after it"
            )
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
        self._rate = LearningRateRescaling(optimizer=optimizer, rule=learning_rate, warmup_steps=warmup_steps)
        self._slots: Slots | None = None
        if loss is None and (max_gradient_norm is not None or scaler is not None):
            raise TrialError(
                "prepare: max_gradient_norm and scaler are for run.step, which needs loss=f; in your own loop call "
                "torch.nn.utils.clip_grad_norm_ and the scaler yourself"
            )
        self._gradients = GradientStep(optimizer, device=self.device, scaler=scaler, max_norm=max_gradient_norm)
        self._hooked = hasattr(optimizer, "register_step_post_hook")
        self._manager: Manager | None = None
        self._stateful_loader = loader if hasattr(loader, "load_state_dict") else getattr(loader, "generator", None)
        self._replay = EpochReplay(self._stateful_loader)
        # Only the steps that `step` takes can be gone through again.
        self._replayable = loss is not None and saves_within
        self._steps_of_epoch = 0
        self._parallel: Parallel | None = None
        divided = plan is not None or memory is not None
        if slots is None and (divided or trial.world_size > 1):
            self._parallel = self._set_up(plan, memory, sync_bn=sync_bn, unused=find_unused_parameters)
            self._bare = self._parallel.module
            self._micro_batch = micro_batch or (None if plan is None else plan.micro_batch)
        elif slots is not None and (divided or sync_bn or micro_batch is not None or loss is None):
            raise TrialError(
                f"prepare: slots={slots} cuts batches and sums gradients by itself, in run.step; give loss=f, and no "
                "plan, memory, sync_bn or micro_batch, which is the batch over the slots"
            )
        # Ranks of one data-parallel place get the same samples.
        place, places = self._place
        if loader is not None:
            self._batches, size = shard_batches(loader, rank=place, world=places, ranks=trial.world_size)
            if plan is not None and size is not None and size != plan.batch:
                raise TrialError(f"prepare: the plan is for batches of {plan.batch}, the loader gives {size}")
            self._batching = self._batching_of(size, batch)
        if self._batching is None and batch != "constant":
            raise TrialError(
                f"prepare: batch={batch!r} needs a loader of known batch size; give tw.train.Loader, or a DataLoader "
                "with a batch_size"
            )
        if slots is not None:
            self._slots = Slots(model, count=slots, seed=trial.seed)
        # What chooses by it needs to measure the gradient noise.
        self._noise: GradientNoise | None = None
        self._goodput: GoodputBatch | None = None
        if batch == "goodput" or learning_rate == "adascale":
            self._noise = self._make_noise()
            self._rate.follow(self._noise)
            if batch == "goodput" and self._batching is not None:
                self._goodput = GoodputBatch.of(trial, self._batches, self._batching, self._micro_batch)
        # What the training calls: the model itself on one device, else what the ranks of the layout train.
        self.model: torch.nn.Module = self._bare if self._parallel is None else self._parallel
        if self._parallel is not None:
            self._parallel.share_batches(lambda: self._share)
        # Of steps in one another: of an optimizer that calls its base's torch hooks both.
        self._depth = 0
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
        return PlacedBatches(self._batches, self.device, self.arrange, self._replay.length)

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
    def gradient_norm(self) -> "torch.Tensor | None":
        """The norm of the last step's gradient, over all ranks, before it was clipped; None unless it is clipped."""
        return self._gradients.norm

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples, where learning rate or batch are chosen by it; None until measured."""
        return None if self._noise is None else self._noise.scale

    @property
    def memory_plan(self) -> "MemoryPlan | None":
        """How the model keeps to its memory budget; None without one, before its first batch, and in pipelines."""
        return None if self._parallel is None else self._parallel.memory_plan

    def step(self, batch: Any) -> "torch.Tensor":
        """Take one optimizer step on `batch`, in micro-batches if need be. Needs `prepare(..., loss=)`.

        Returns the mean loss over the global batch, detached; `loss` is to be a mean over the samples that it is given.
        Saves if it is time to. May end the trial here, quietly, when its allocation ends. In an epoch that was
        interrupted the losses of steps that are done are returned as they were, and nothing is computed.
        """
        if self._loss is None:
            raise TrialError("run.step needs a loss; give trial.prepare(..., loss=f) with f(model, batch) a scalar")
        if self._replay.replays:
            return self._replay.recall(self.device)
        loss = self._take_step(batch, self._loss)
        self._replay.note(loss)
        if self._step is not None:
            self._replay.batch = self._step.batch
        if self._goodput is not None:
            self._goodput.note_step()
        self._save_if_due()
        return loss

    def _take_step(self, batch: Any, loss_of: "Callable[[torch.nn.Module, Any], torch.Tensor]") -> "torch.Tensor":
        # Gradients of the last step go first, so that their memory is free during the forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        loss_of = self._gradients.scaled_loss(loss_of)
        # A pipeline's micro-batches are the layout's, as slots are cut by themselves.
        whole = self._slots is not None or (self._parallel is not None and self._parallel.plan.degrees.pipeline > 1)
        parts = [(1.0, batch)] if whole else self._parts(batch)
        after_first = None
        if self._noise is not None:
            after_first = self._noise.begin([(weight, samples_in(part)) for weight, part in parts])
        if self._slots is not None:
            loss = self._slots.backward(batch, loss_of)
        elif self._parallel is None:
            loss = train_parts(self.model, loss_of, parts, after_first=after_first)
        else:
            loss = self._parallel.backward(loss_of, parts, after_first)
        loss_scale, steps = self._gradients.loss_scale, self._steps_of_epoch
        self._gradients.unscale_gradients(self._parallel)
        if self._noise is not None:
            # Of a last, uneven batch there is nothing to say.
            size, places = self.batch, self._place[1]
            self._noise.end(size if size % places == 0 and samples_in(batch) * places == size else None)
        self._gradients.clip_gradients(self._parallel)
        if not self._hooked:  # an optimizer of the user's own: what is not stepped here is not seen
            self._before()
        self._gradients.step()
        if not self._hooked:
            self._after()
        elif self._steps_of_epoch == steps:
            # The scaler left out the update: the batch is used up all the same, and a schedule may follow.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
            self._count_step()
        return loss if loss_scale == 1.0 else loss / loss_scale

    def arrange(self) -> int | None:
        """Take over the batch of the epoch that comes, and the learning rate that goes with it.

        Return the steps of the epoch, None for a pass over the loader.
        """
        if self._batching is None or self._batches is None:
            return None
        # The batch stays what it was in an epoch that was interrupted, whatever devices there are now.
        batch = self._replay.batch
        if batch is None and self._goodput is not None and self._noise is not None:
            batch = self._goodput.choose_batch(self._noise.scale)
            # Where one step is worth less than its samples, an epoch of equal progress has more of them.
            self._replay.length = self._goodput.length(self._noise.gain(batch / self._batching.reference))
        self._step = self._batching.at(self._trial.next_epoch, batch)
        # A slot is the micro-batch; a rank takes its share of them one after another.
        if self._slots is not None:
            count = self._slots.count
            size, times = self._step.batch // count, count // self._trial.world_size
            self._step = BatchStep(batch=self._step.batch, micro_batch=size, accumulate=times)
        if self._parallel is not None:
            self._parallel.expect_accumulation(self._step.accumulate > 1)
        self._batches.arrange(self._step.batch)
        self._rate.rescale_lr(self._step.batch / self._batching.reference, self._replay.length or len(self._batches))
        return self._replay.length

    def items(self) -> dict[str, Any]:
        """Return what a resumed run needs, by name; the global generators come with every checkpoint."""
        found = {
            "model": self._bare,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loader": self._stateful_loader,
            "rate": self._rate,
            "scaler": self._gradients.scaler,
            "noise": self._noise,
            "slots": self._slots,
            "replay": self._replay,
        }
        return {name: item for name, item in found.items() if item is not None}

    @property
    def saves_within(self) -> bool:
        """Whether a run of it may end at any step, to go on behind it."""
        return self._replayable and self._replay.keepable

    def _can_save(self) -> bool:
        """Whether a run that ends now can go on behind the last step."""
        # Steps that others have taken are not known.
        known = self._replay.possible and self._steps_of_epoch == self._replay.done
        return known and not (self._noise is not None and self._noise.pending)

    def count_steps(self, manager: Manager) -> None:
        """Let a manager know of each step of the optimizer, whoever calls it."""
        self._manager = manager

    def begin_epoch(self, epoch: int) -> None:
        """Take note that the training function begins an epoch here."""
        if self._manager is not None:
            self._replay.begin(epoch, keep=self._replayable)
            self._steps_of_epoch = 0

    def end_epoch(self) -> None:
        """Take note that the epoch in work is over: a report comes."""
        self._replay.end()
        if self._noise is not None:
            self._noise.forget_step()
        if self._goodput is not None and self._step is not None:
            measured = self._goodput.end_epoch(self._step, self.noise_scale)
            if measured is not None:
                self._trial.note("goodput", measured)

    def resume(self, *, own: bool) -> None:
        """Go on from the checkpoint that was restored; from that of another trial (not `own`) with a new epoch."""
        if not own:
            self._replay.forget()
            return
        random, options = capture_rng_state(), deepcopy(self._read_groups())
        schedule = None if self.schedule is None else deepcopy(self.schedule.state_dict())

        def put_back() -> None:
            for group, saved in zip(self.optimizer.param_groups, options, strict=True):
                group.update(saved)
            if schedule is not None:
                self.schedule.load_state_dict(schedule)
            restore_rng_state(random)
            self._steps_of_epoch = self._replay.done

        # Schedules ask whether the optimizer has stepped before them: it has, in an earlier run.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        self._replay.resume(put_back)

    def _read_groups(self) -> list[dict[str, Any]]:
        """Return all of the optimizer's groups but the parameters."""
        return [
            {name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups
        ]

    def _save_if_due(self) -> None:
        """Save within the epoch if it is time to; end the trial here if its allocation ends."""
        if self._manager is not None and self._can_save():
            owner = self._trial.checkpoint_owner()
            if self._manager.save_if_due(leave=owner.leaves()):
                self._manager.save(wait=True)
                owner.leave()

    def _before(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._rate.scale_rates()

    def _after(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._rate.restore_rates()
            self._count_step()

    def _count_step(self) -> None:
        self._steps_of_epoch += 1
        if self._manager is not None:
            self._manager.count()

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

    def _make_noise(self) -> GradientNoise:
        if self._loss is None or self._batching is None or is_divided(self._parallel):
            raise TrialError(
                "prepare: batch='goodput' and learning_rate='adascale' measure gradients in run.step; give loss=f, a "
                "loader of known batch size, and no plan that divides the model"
            )
        return GradientNoise(self._gradients, self._parallel, reference=self._batching.reference)

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
                "the micro-batch is known if trial.prepare gets a loader of known batch size; give tw.train.Loader, "
                "or a DataLoader with a batch_size"
            )
        return self._step

    def _set_up(self, plan: "Layout | None", memory: Any, *, sync_bn: bool, unused: bool) -> "Parallel":
        """Return the model as the ranks of a layout train it; without a plan that is the model, or copies of it."""
        MissingExtra.check_torch("trial.prepare with a plan, a memory budget or several processes")
        from trainwright.plan import Degrees, Layout
        from trainwright.train.parallel.setup import set_up

        world = self._trial.world_size
        if plan is None:
            strategy = "serial" if world == 1 else "data"
            layout = Layout(strategy=strategy, degrees=Degrees(data=world), batch=world, micro_batch=1)
        else:
            layout = plan.layout
        if memory is not None:
            layout = replace(layout, memory=memory)
        return set_up(
            self._bare,
            self.optimizer,
            layout,
            sync_bn=sync_bn,
            unused=unused,
            on_plan=lambda made: self._trial.note("memory_plan", made.summary),
        )

    def _parts(self, batch: Any) -> list[tuple[float, Any]]:
        """Return the micro-batches of a batch, each with the part of it that it is."""
        size = self._micro_batch if self._step is None else self._step.micro_batch
        if size is None or (self._step is not None and self._step.accumulate == 1):
            return [(1.0, batch)]
        count = samples_in(batch)
        if count <= size:
            return [(1.0, batch)]
        return [(samples_in(part) / count, part) for part in slice_batch(batch, size)]


def parallelise(model: "torch.nn.Module", plan: "Layout", *, sync_bn: bool = False) -> "Parallel":
    """Return the model as the ranks of torch.distributed train it together by `plan`; call it on every rank.

    Weights are those of rank 0. Make the optimizer afterwards, of the returned model's parameters: its state is no part
    of the plan's memory budget, as it is with `trial.prepare(plan=...)`.
    `sync_bn` takes batch statistics over all ranks, as one device would. Raises `UnsupportedPlan`, naming the strategy,
    for what cannot be set up.
    """
    MissingExtra.check_torch("a parallel plan")
    from trainwright.train.parallel.setup import set_up_model

    return set_up_model(model, plan, sync_bn=sync_bn)
