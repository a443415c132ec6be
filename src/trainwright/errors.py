"""The errors of Trainwright: one small tree; a message is one sentence: what, the value, what is allowed, the cure."""

import difflib
import functools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

_TORCH_OF_PLANS = (2, 11)
"""What plans and profiles are tested with; plain training takes 2.4 too."""


class TrainwrightError(Exception):
    """Any error that Trainwright raises on purpose; the work failed (exit status 1)."""


class InputError(TrainwrightError):
    """A mistake that its user can mend; the command line prints the sentence and exits with 2."""


class SpaceError(InputError):
    """A parameter, condition or requirement that contradicts itself or the rest of its space."""


class SpaceInfeasible(SpaceError):
    """No configuration meets the requirements of a space."""


class SpaceExhausted(TrainwrightError):
    """Every configuration of a finite space has been tried; ends a run normally."""


class ObjectiveError(InputError):
    """An objective without direction, a missing or non-numeric value."""


class TrialError(InputError):
    """A result reported twice, after the end, or for a configuration outside the space."""


class TrialMisuse(TrialError):
    """A call that no `Trial` supports, whatever its values: the run ends at once."""


class UnknownAttribute(TrialMisuse, AttributeError):
    """A name that `Trial` does not have, such as one of Optuna's."""


class StudyError(InputError):
    """A directory that is no study, or one that was made with other settings."""


class ProfileError(InputError):
    """A model that can be neither traced nor measured, a sample that it refuses, or a profile that cannot be read."""


class SearchError(InputError):
    """A searcher whose settings do not fit each other or the study."""


class ScheduleError(InputError):
    """A promotion rule or allocation policy whose settings do not fit each other or the study."""


class SchedulerStalled(TrainwrightError):
    """A trial waits for devices that can never be free, so that the study would wait for ever."""

    @classmethod
    def of(cls, trial: int, *, wanted: int, devices: int) -> "SchedulerStalled":
        """Return the error that says what a trial waits for."""
        return cls(
            f"trial {trial} waits for {wanted} devices, the engine has {devices}; "
            "use a policy that caps what it asks for, such as Doubling, or a larger engine"
        )


class EngineError(InputError):
    """Work that an engine cannot run: a function that it cannot ship, devices that are not there."""


class CheckpointError(TrainwrightError):
    """A checkpoint that could not be saved, found or restored."""


class CheckpointNotFoundError(CheckpointError, InputError):
    """A path that holds no checkpoint, or a step that was never committed or was dropped."""


class CheckpointVersionError(CheckpointError, InputError):
    """A checkpoint written by a newer version of Trainwright."""


class CheckpointMismatchError(CheckpointError, InputError):
    """A checkpoint of another model, of other shapes or dtypes, of another trial, or made in another environment."""


class CheckpointStateError(CheckpointError, InputError):
    """State that cannot be saved, or a manager that is used out of turn."""


class CheckpointConfigError(CheckpointError, InputError):
    """Settings of checkpointing that are out of range or contradict each other."""


class CheckpointFormatError(CheckpointError, InputError):
    """A format that is unknown or cannot hold what it is given, or a file that is none of that format."""


class CheckpointSpaceError(CheckpointError, InputError):
    """A folder for checkpoints that cannot be written or has no room."""


class CheckpointCorruptError(CheckpointError):
    """Files that are not what their manifest says, and no good checkpoint before them."""


class ChainError(InputError):
    """A chain of stages with impossible numbers, or operations that do not fit it."""


class BudgetError(InputError):
    """A memory budget that cannot be read or is out of range."""


class InfeasibleBudget(BudgetError):
    """A memory budget below the least that any known plan needs, `minimal_bytes` (what it consists of: `owners`)."""

    def __init__(self, message: str, *, minimal_bytes: int, owners: Mapping[str, int]) -> None:
        super().__init__(message)
        self.minimal_bytes = minimal_bytes
        self.owners = dict(owners)

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only arguments do not survive Exception's own pickling
        remake = functools.partial(type(self), minimal_bytes=self.minimal_bytes, owners=self.owners)
        return remake, (str(self),)


class BudgetExceeded(BudgetError):
    """A step took more than its budget though its plan was within it."""


class PlanMismatch(InputError):
    """A memory plan made for another chain, or written by another version."""


class PipelineError(InputError):
    """An impossible pipeline: more stages than layers, no micro-batch, an unknown schedule."""


class UnsupportedModel(InputError):
    """A model, or a use of it, that a memory plan cannot carry out."""


class UnsupportedPlan(InputError):
    """A parallel strategy that cannot be set up here; the message names it."""

    @classmethod
    def of(cls, strategy: str, why: str) -> "UnsupportedPlan":
        """Return the error that says why `strategy` cannot be set up."""
        return cls(f"plan {strategy!r} cannot be set up: {why}")


class EnsembleError(InputError):
    """Predictions, splits or budgets from which no ensemble can be made."""


class MixedSplitsError(EnsembleError):
    """Library members whose predictions were made on different rows."""


class EmptyLibraryError(EnsembleError):
    """A study of which no trial has left predictions that can be used."""


class SplitOverlapError(EnsembleError):
    """Splits that share rows, so that test rows were used for selection."""


class PredictionError(EnsembleError):
    """Invalid predictions, targets or row ids: not finite, not probabilities, of the wrong shape or number."""


class CostError(EnsembleError):
    """Seconds or bytes that are needed but unknown, or were measured on different kinds of device."""


class ExportError(EnsembleError):
    """An exported ensemble that is incomplete, damaged, of a newer version, or whose networks cannot be built."""


class ServeError(TrainwrightError):
    """A served ensemble that cannot do what it is asked."""


class ServeConfigError(ServeError, InputError):
    """Settings of a deployment that are out of range, or that nothing meets."""


class DeviceError(ServeError, InputError):
    """A device that does not exist, is named twice, or shares cores with another."""


class AllocationError(ServeError, InputError):
    """An ensemble that does not fit the devices, or a plan made for other ones."""


class RequestError(ServeError, InputError):
    """A request whose tensors or options do not fit the ensemble."""


class Overloaded(ServeError):
    """A queue that is full; ask again after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NotReady(Overloaded):
    """A service that starts, drains, or has too few members left; ask again after `retry_after_seconds`."""


class DeadlinePassed(ServeError):
    """A request whose deadline passed before enough members had answered."""


class MissingExtra(InputError):
    """An optional dependency that is not installed; the message gives the pip line."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> "MissingExtra":
        """Return the error that says that `what` needs `package`, which `extra` brings."""
        return cls(f'{what} needs {package}: pip install ".[{extra}]"')

    @classmethod
    @contextmanager
    def instead_of_import_error(cls, what: str, package: str, extra: str) -> Iterator[None]:
        """Raise this error in place of one of the imports within the block."""
        try:
            yield
        except ImportError as error:
            raise cls.of(what, package, extra) from error

    @classmethod
    def check_torch(cls, what: str) -> None:
        """Raise this error if `what` needs a newer torch than is installed."""
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as version_of

        try:
            version = version_of("torch")
        except PackageNotFoundError:
            raise cls.of(what, "torch", "torch") from None
        if tuple(int(part) for part in version.split(".")[:2]) < _TORCH_OF_PLANS:
            needed = ".".join(map(str, _TORCH_OF_PLANS))
            raise cls(
                f"{what}: torch is {version}; needed is {needed} or newer (pip install 'torch>={needed}'). Training on "
                "one device, its checkpoints and ensembles do without"
            )


class LedgerError(TrainwrightError):
    """A ledger that cannot be written or read; names the path."""


class LedgerFull(LedgerError):
    """A ledger without space for a write; after waiting for space it may be repeated."""


class LedgerTooNew(StudyError):
    """A ledger written by a newer version of Trainwright."""


class ListenError(TrainwrightError):
    """An address that cannot be bound: a port in use, or not permitted."""


def closest(name: str, known: Collection[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, whatever its case, or "" if none is."""
    plain = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), plain, n=1)
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# The tree and its two helpers are all that is here.
__all__ = [name for name, item in list(globals().items()) if getattr(item, "__module__", "") == __name__]
