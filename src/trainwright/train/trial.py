"""The Trial in a training function: reports metrics, raises at early stopping, and resumes from checkpoints."""

import contextlib
import importlib.util
import operator
import reprlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from trainwright.checkpoint import CheckpointConfig, Manager, Restored, Retention
from trainwright.checkpoint.save.snapshot import Buffer
from trainwright.checkpoint.state.differences import Effect, settle_differences
from trainwright.errors import CheckpointError, TrialError, TrialMisuse, UnknownAttribute, closest
from trainwright.ledger import Record, facts
from trainwright.randomness import rng, seed_all
from trainwright.train.assignment import Assignment, Channel, TrialEnd, check_metrics
from trainwright.train.batching import BatchRule, RateRule
from trainwright.train.framework_checkpoints import FrameworkCheckpoints, newest_checkpoint
from trainwright.train.group import WAIT_SECONDS, wait_for_ranks
from trainwright.train.run import Run
from trainwright.train.trial_checkpoints import TrialCheckpoints, read_options, set_options
from trainwright.validators import check, integer

if TYPE_CHECKING:
    import torch

    from trainwright.plan import Layout
    from trainwright.plan.memory.plan_record import Plan as MemoryPlan

__all__ = ["Trial"]


_PREPARED = CheckpointConfig(on_error="raise", timeout_seconds=WAIT_SECONDS, retention=Retention(last=2, epoch_ends=1))
"""Of the manager that `prepare` makes. Rules and clones go on from the ends of epochs."""


@dataclass
class Trial:
    """One configuration in training.

    `params` holds its values, `number` its place in the study, `seed` a 63-bit seed of its own, `device` where to
    train. `scratch` is for anything that should live as long as this run of the trial, `buffer` its engine's.
    """

    assignment: Assignment
    channel: Channel
    gpu: bool = False
    scratch: dict[str, Any] = field(default_factory=dict)
    buffer: Buffer | None = field(default=None, repr=False)
    _run: Run | None = field(default=None, init=False, repr=False)
    _checkpoints: TrialCheckpoints | None = field(default=None, init=False, repr=False)
    _files: FrameworkCheckpoints | None = field(default=None, init=False, repr=False)
    _epoch: int = field(default=0, init=False, repr=False)  # the last one done
    # The last one reported in this run, or restored.
    _reported: int = field(default=0, init=False, repr=False)
    # The one that epochs() has handed out.
    _in_work: int = field(default=0, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)
    _waiting: list[Record] = field(default_factory=list, init=False, repr=False)
    _started: float = field(default_factory=lambda: time.monotonic(), init=False, repr=False)  # noqa: PLW0108 -- as it is then
    _setup_seconds: float | None = field(default=None, init=False, repr=False)  # until the first of `epochs`
    _last: Mapping[str, float] = field(default_factory=dict, init=False, repr=False)
    _told_to_end: bool = field(default=False, init=False, repr=False)  # at a report, by the study
    _closed: bool = field(default=False, init=False, repr=False)

    @property
    def params(self) -> Mapping[str, Any]:
        """The configuration's values by name; inactive parameters are absent."""
        return self.assignment.params

    @property
    def number(self) -> int:
        """The trial's number in its study."""
        return self.assignment.trial

    @property
    def seed(self) -> int:
        """A seed of this trial's own, the same in every run of it. Global generators are seeded with it already."""
        return self.assignment.seed

    @cached_property
    def device(self) -> str:
        """Where to train: "cuda:0" if this run was given a GPU and torch can use it, else "cpu"."""
        if not self.gpu or importlib.util.find_spec("torch") is None:
            return "cpu"
        import torch

        return "cuda:0" if torch.cuda.is_available() else "cpu"

    @property
    def rank(self) -> int:
        """The number of this process among those of the trial, from 0. What rank 0 reports counts."""
        return self.assignment.rank

    @property
    def world_size(self) -> int:
        """How many processes run this trial together."""
        return self.assignment.world_size

    @property
    def devices(self) -> int:
        """How many devices the trial has, over all its processes."""
        return self.assignment.world_size * self.assignment.devices_each

    @property
    def max_epochs(self) -> int | None:
        """The full length of a trial as the study's scheduler says, if it says so."""
        return self.assignment.max_epochs

    @property
    def next_epoch(self) -> int:
        """The epoch in work: the one that `epochs` has handed out last, else the one after the last reported."""
        return self._in_work or self._epoch + 1

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs still to do, from 1 or from after the restored checkpoint, up to `count` or `max_epochs`."""
        last = count if count is not None else self.max_epochs
        if last is None:
            raise TrialError(
                "trial.epochs() needs a length: give trial.epochs(27), or a scheduler with max_epochs such as "
                "ASHA(max_epochs=27)"
            )
        if self.max_epochs is not None:
            last = min(last, self.max_epochs)
        if self._setup_seconds is None:
            self._setup_seconds = time.monotonic() - self._started
        for epoch in range(self._epoch + 1, last + 1):
            self._in_work = epoch
            self._begin_epoch(epoch)
            yield epoch
            # An epoch without a report still passes.
            self._pass_epoch(epoch)

    def report(self, *unnamed: object, epoch: int | None = None, step: int | None = None, **metrics: float) -> None:
        """Report the metrics of an epoch (from 1; default: the one in work). May end the trial here, quietly.

        Every metric has a name: `trial.report(val_loss=0.3)`; an unnamed value is refused.

        With `prepare`, or a `Manager` of this trial, a checkpoint of this epoch is saved first, so that no reported
        epoch is ever repeated: report last in an epoch, for what comes after is not in it. An epoch counts once: a
        second report of it, or of an older one, is ignored with a warning; one beyond `max_epochs` ends the trial.
        `step` counts optimizer steps. Raises `TrialError` if a metric is no number or nothing is reported.
        """
        if unnamed:
            name = next(iter(self.assignment.metrics), "loss")
            raise TrialMisuse(
                f"trial.report: got {reprlib.repr(unnamed[0])} without a name; give trial.report({name}=...), with "
                "epoch= if it is not the one in work, or run an Optuna objective by tw.from_optuna"
            )
        if self._closed:
            raise TrialError(f"trial {self.number} has ended; report before the training function returns")
        numbers = check_metrics(self.number, metrics)
        at = self.next_epoch if epoch is None else self._whole("epoch", epoch, least=1)
        steps = None if step is None else self._whole("step", step, least=0)
        if at <= self._reported:
            if not self._warned:
                text = f"trial {self.number}: epoch {at} was reported before; later reports of it are ignored"
                warnings.warn(text, stacklevel=2)
            self._warned = True
            return
        if at <= self.assignment.begins_after:
            raise TrialMisuse(
                f"trial {self.number} continues another trial's checkpoint of epoch {self.assignment.begins_after}, "
                f"and reported epoch {at}; call trial.prepare, or the manager's restore(), before trial.epochs()"
            )
        if self.max_epochs is not None and at > self.max_epochs:
            raise TrialEnd
        if self.world_size > 1:
            wait_for_ranks()
        if self._run is not None:
            self._run.end_epoch()
        said: dict[str, Any] = {"step": steps, "metrics": numbers, "wall_seconds": time.monotonic() - self._started}
        # With the first report of the run.
        if self._setup_seconds:
            said["setup_seconds"], self._setup_seconds = self._setup_seconds, 0.0
        record = facts.reported(self.number, self.assignment.lease, epoch=at, **said)
        self._reported = at
        self._pass_epoch(at)
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.manager is not None:
            checkpoints.last_report = {"epoch": at, "step": steps, "metrics": numbers}
            checkpoints.manager.save(wait=True)
        saved = [] if self._files is None else [self._files.save({"epoch": at, "step": steps, "metrics": numbers})]
        self._last = numbers
        self._send([*saved, record])
        self._begin_epoch(self._epoch + 1)

    def should_prune(self) -> bool:
        """Whether the study has told this trial to end, as its rule decides (`PromotionRule.on_report`).

        No trial needs to ask: `report` ends those that are to end, so here the answer is False, before a report and
        after it. It is True only where the training function has caught the end that `report` raised.
        """
        return self._told_to_end

    def __getattr__(self, name: str) -> NoReturn:
        # Python's own questions, such as that of copy.
        if name.startswith("__"):
            raise AttributeError(name)
        public = [known for known in dir(Trial) if not known.startswith("_")]
        raise UnknownAttribute(
            f"trial.{name}: no such attribute; a Trial has {', '.join(public)}{closest(name, public)}; values are in "
            "trial.params, and an Optuna objective runs by tw.from_optuna"
        )

    def prepare(
        self,
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
        save_every: Literal["auto"] | float | None = "auto",
    ) -> Run:
        """Make ready to train on the trial's devices, from the newest good checkpoint if there is one.

        `loader` gives the batches of all devices together; each rank gets its share. `loss(model, batch)` is the mean
        over a batch's samples, needed for `run.step` only; `schedule` a learning-rate scheduler of torch, stepped by
        you. From here on every report saves a checkpoint, and so does `run.step` within an epoch: after `save_every`
        seconds (a float) or steps (an int), as often as costs and failures say ("auto"), or never (None). May end the
        trial here, quietly.

        What follows matters when the number of devices changes between runs of the trial, or the batch in one: `batch`
        is "constant", "grow" (with the devices) or [(epoch, batch), ...]; `micro_batch` bounds the samples on a device
        at a time, by default to those at the start of a new trial: more are accumulated. `learning_rate` says how the
        rate follows the batch: "linear", "sqrt", "none", or "auto" by the optimizer; it grows over `warmup_steps`, by
        default an epoch's. With `slots` gradients are equal to the last bit on any number of devices: see `Slots`.
        Raises `TrialError` for a batch that the devices cannot share.

        With a `plan` of the oracle the model is set up by `parallelise`, one rank a device, with the loader's batch;
        `sync_bn` is for batch normalisation. `memory` is a budget of each device ("8 GiB", bytes, a share of what a
        step takes, or a `tw.memory.plan`), optimizer and gradients included: `run.model` recomputes what it cannot
        keep; `InfeasibleBudget` is raised at the first batch if nothing fits. `find_unused_parameters=True` is for
        models of which a step on several ranks may leave out parameters, else refused; resumes are then bit-exact on
        any ranks. `run.step` clips the gradient of the whole batch and model to `max_gradient_norm`, and scales losses
        by a `scaler` (`torch.amp.GradScaler`, for float16).
        """
        if self._run is not None:
            raise TrialError(f"trial {self.number}: prepare was called twice; call it once, before trial.epochs()")
        run = self._run = Run(
            self,
            model,
            optimizer,
            loader,
            loss=loss,
            schedule=schedule,
            batch=batch,
            micro_batch=micro_batch,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            slots=slots,
            plan=plan,
            sync_bn=sync_bn,
            memory=memory,
            find_unused_parameters=find_unused_parameters,
            max_gradient_norm=max_gradient_norm,
            scaler=scaler,
            saves_within=save_every is not None,
        )
        # Dropout draws something else where other samples are.
        if run.place:
            seed_all(int(rng(self.seed, "rank", run.place).integers(2**63)))
        if self.assignment.directory is not None:
            config = _PREPARED if save_every is None else replace(_PREPARED, interval=save_every)
            manager = Manager(self, config=config, **run.items())
            run.count_steps(manager)
            self.checkpoint_owner().within_epochs = run.saves_within
            options = read_options(optimizer)
            restored = manager.restore(mode="best_effort")
            # Another machine or other versions will do, another model will not.
            if restored is not None:
                grave = [found for found in restored.differences if found.effect is Effect.STATE]
                settle_differences(grave, mode="exact", what=str(restored.path))
                own = restored.manifest.lease > 0
                if not own:  # another trial's: only what is learnt is taken over
                    set_options(optimizer, schedule, options)
                run.resume(own=own)
        run.arrange()
        self._begin_epoch(self._epoch + 1)
        return run

    def checkpoint_owner(self) -> TrialCheckpoints:
        """Return this trial as a `Manager` sees it. Raises `TrialError` if the study keeps nothing on disk."""
        if self._checkpoints is None:
            home = self._study()
            self._checkpoints = TrialCheckpoints(
                folder=home / "checkpoints" / f"trial-{self.number:06d}",
                lease=self.assignment.lease,
                study=home.name,
                trial=self.number,
                home=home,
                tell=self._waiting.append,
                go_on=self._resume_from,
                told_to_leave=self.channel.leaves,
                buffer=self.buffer,
            )
        return self._checkpoints

    def checkpoint_with(self, write: Callable[[Path], None]) -> Path | None:
        """Let `write(path)` save the training before each report, as a file or a folder at `path`, on every rank.

        Returns `resume_from`, from which the caller restores; `epochs` goes on behind it. A report that it knows and
        the ledger does not is sent first, which may end the trial here, quietly.
        """
        # A training that begins anew within its loop, such as one that ran out of memory, saves its new objects.
        twice = self._files is not None and not self._in_work
        if twice or (self._checkpoints is not None and self._checkpoints.manager is not None):
            raise TrialError(f"trial {self.number}: its checkpoints are saved already; use one way, and once")
        if self.assignment.directory is None:
            return None
        self._files = FrameworkCheckpoints(self.folder, self.assignment, write)
        found = newest_checkpoint(self.folder)
        if found is None:
            return None
        known = max(self._reported, self.assignment.reported_epoch)
        self._epoch = self._reported = found.report["epoch"]
        self._last = found.metrics
        if self._reported > known:
            names = {"epoch": self._reported, "step": found.report["step"], "metrics": found.metrics}
            late = facts.reported(self.number, self.assignment.lease, **names, wall_seconds=0.0)
            self._send([found.record(self.assignment), late])
        return found.path

    @property
    def resume_from(self) -> Path | None:
        """The newest whole checkpoint that a framework's callback or `checkpoint_with` has saved; None at first."""
        found = None if self.assignment.directory is None else newest_checkpoint(self.folder)
        return None if found is None else found.path

    @property
    def folder(self) -> Path:
        """A folder of this trial's own, the same in every run of it: for files from which it can go on by itself.

        Raises `TrialError` if the study keeps nothing on disk.
        """
        folder = self._folder("files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def library_directory(self) -> Path:
        """Return the folder for what this run offers to the ensemble library."""
        return self._folder("library") / f"lease-{self.assignment.lease}"

    def offer(self, path: Path, digests: Mapping[str, str], epoch: int) -> None:
        """Make the library entry at `path` visible with the next report, or when the trial ends."""
        relative = path.relative_to(self._study()).as_posix()
        self._waiting.append(
            facts.offered(self.number, self.assignment.lease, epoch=epoch, path=relative, digests=digests)
        )

    def note(self, name: str, value: Any) -> None:
        """Annotate the trial with plain data, visible with the next report, or when the trial ends."""
        self._waiting.append(facts.note(name, value, self.number))

    def end_by_itself(self) -> bool:
        """Take note that the function ends its trial here, as stopped; False if it has reported nothing. For engines.

        The first end of a lease counts: the one that follows from the quiet return would say that it is complete.
        """
        if not self._last:
            return False
        if not self._told_to_end:
            lease = self.assignment.lease
            stopped = facts.finished(self.number, lease, reason="stopped", values=self._last, wall_seconds=0.0)
            self.channel.exchange([*self._take_waiting(), stopped])
        return True

    def close(self) -> tuple[list[Record], Mapping[str, float], int]:
        """Let go of the model; return the records not yet sent, the last metrics and their epoch. For engines."""
        self._closed = True
        self._run = None
        self.scratch.clear()
        if self._checkpoints is not None and self._checkpoints.manager is not None:
            try:
                self._checkpoints.manager.close()
            except CheckpointError as error:  # the training is over: what it came to counts
                warnings.warn(str(error), stacklevel=2)
        return self._take_waiting(), self._last, self._epoch

    def _begin_epoch(self, epoch: int) -> None:
        if self._run is not None:
            self._run.begin_epoch(epoch)

    def _pass_epoch(self, epoch: int) -> None:
        self._epoch = max(self._epoch, epoch)
        if self._checkpoints is not None:
            self._checkpoints.epoch = self._epoch

    def _resume_from(self, restored: Restored) -> None:
        """Go on from a checkpoint, and report what it knows and the ledger does not: the run died between the two."""
        report = restored.manifest.report
        metrics = {name: float(value) for name, value in report["metrics"].items()}
        self._epoch, self._reported = restored.epoch, report.get("epoch", 0)
        # All there is to tell if no epoch is left to do.
        self._last = metrics
        checkpoints, known = self._checkpoints, self.assignment
        if checkpoints is not None and self._reported > known.reported_epoch:
            record = facts.reported(
                self.number, known.lease, epoch=self._reported, step=report["step"], metrics=metrics, wall_seconds=0.0
            )
            self._send([checkpoints.record(restored), record])
        elif checkpoints is not None and restored.manifest.step > known.saved_step:
            # A trial that gets on within its epoch is not given up.
            self._send([checkpoints.record(restored)])

    def _send(self, records: list[Record]) -> None:
        if not self.channel.exchange(self._take_waiting() + records):
            self._told_to_end = True
            raise TrialEnd

    def _take_waiting(self) -> list[Record]:
        """Take the records that wait; another thread may add one meanwhile."""
        waiting = self._waiting[:]
        del self._waiting[: len(waiting)]
        return waiting

    def _whole(self, name: str, value: Any, least: int) -> int:
        if not isinstance(value, bool):
            # A whole number of any library.
            with contextlib.suppress(TypeError):
                value = operator.index(value)
        check(value, integer(minimum=least), f"trial {self.number}: {name}", TrialError)
        return int(value)

    def _folder(self, name: str) -> Path:
        return self._study() / name / f"trial-{self.number:06d}"

    def _study(self) -> Path:
        if self.assignment.directory is None:
            raise TrialError(
                f"trial {self.number}: the study keeps nothing on disk; give tw.Study(..., directory='runs/name')"
            )
        return Path(self.assignment.directory)
