"""A sweeper of Hydra: `python train.py -m hydra/sweeper=trainwright lr=tag(log,interval(1e-4,1e-1)) opt=sgd,adamw`.

The sweeps of the overrides are the space; each job is a trial, by whatever launcher Hydra is told to use, and what the
task function returns is its objective. The study lies in a directory: run again, the sweep resumes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Objective
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.parameters import Parameter
from trainwright.study import Study

with MissingExtra.instead_of_import_error("trainwright.integrations.hydra", "hydra-core", "hydra"):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
    from hydra.core.plugins import Plugins
    from hydra.plugins.sweeper import Sweeper
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig, OmegaConf

__all__ = ["TrainwrightSweeper"]


class TrainwrightSweeper(Sweeper):
    """Asks a study for overrides, launches `batch` jobs at a time, and tells it what they return.

    `params` are sweeps of a configuration file, as `{"lr": "interval(0, 1)"}`; an override of the command line takes
    the place of one of the same name, if it sweeps as well.
    """

    def __init__(
        self,
        *,
        objective: str = "min loss",
        trials: int = 20,
        batch: int = 1,
        directory: str = "runs/hydra",
        seed: int = 0,
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.objective, self.trials, self.batch = objective, trials, batch
        self.directory, self.seed, self.params = directory, seed, params or {}
        self.config: DictConfig | None = None
        self.launcher: Any = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher that Hydra's configuration names."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Mapping[str, Any]:
        """Run jobs until the study has `trials` results; return the best one's overrides and value."""
        assert self.hydra_context is not None  # noqa: S101 -- Hydra calls setup first
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        swept = parser.parse_overrides([f"{name}={text}" for name, text in self.params.items()])
        space, fixed = _read_overrides(swept, parser.parse_overrides(arguments))
        metric = Objective.parse(self.objective).metric
        with Study(space, self.objective, directory=self.directory, seed=self.seed) as study:
            while (missing := self.trials - study.state.results) > 0:
                self._run_batch(study, metric, fixed, min(self.batch, missing))
            best = study.best
        found = {
            "name": "trainwright",
            "best_evaluated_params": dict(best.params),
            "best_evaluated_result": best.values,
        }
        # As Hydra's other optimising sweepers do.
        home = Path(self.config.hydra.sweep.dir) if self.config is not None else Path()
        home.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.create({**found, "best_evaluated_result": best.values[metric]}), home / _RESULTS)
        return found

    def _run_batch(self, study: Study, metric: str, fixed: Sequence[str], count: int) -> None:
        asked = study.ask(count)
        jobs = [[*fixed, *(f"{name}={value}" for name, value in each.items())] for each in asked]
        self.validate_batch_is_legal(jobs)
        done = self.launcher.launch(jobs, initial_job_idx=asked[0].number or 0)
        failed: Exception | None = None
        for configuration, job in zip(asked, done, strict=True):
            try:
                value = job.return_value
            except Exception as error:  # noqa: BLE001 -- Hydra raises what the job raised
                failed = error
                study.tell(configuration, failed=f"{type(error).__name__}: {error}")
                continue
            if not isinstance(value, int | float):
                raise InputError(
                    f"Hydra: the task function returned {value!r}; return the study's objective {metric!r}, a number"
                )
            study.tell(configuration, **_metrics(metric, float(value)))
        if failed is not None and not study.state.results:
            # Nothing has worked so far: more of the same would not either.
            raise failed


def _metrics(name: str, value: float) -> Any:
    return {name: value}


_RESULTS = "optimization_results.yaml"


def _read_overrides(swept: Sequence[Override], given: Sequence[Override]) -> tuple[Space, list[str]]:
    """Return the space of the sweeps, and the other overrides as they were typed."""
    parameters: dict[str, Parameter] = {}
    fixed: list[str] = []
    in_file = {override.get_key_element(): override for override in swept}
    for override in [*swept, *given]:
        name = override.get_key_element()
        if override.is_sweep_override():
            parameters[name] = _parameter(name, override)
        elif name in in_file and in_file[name].is_sweep_override():
            raise InputError(
                f"Hydra: {override.input_line} contradicts the space, in which {in_file[name].input_line} sweeps it; "
                f"leave {name} out of hydra.sweeper.params, or give a sweep such as {name}=interval(0,1)"
            )
        else:
            fixed.append(override.input_line or "")
    if not parameters:
        raise InputError(
            "Hydra: no override sweeps anything; give one such as lr=interval(1e-4,1e-1) or optimizer=sgd,adamw"
        )
    return Space.of(parameters), fixed


def _parameter(name: str, override: Override) -> Parameter:
    """Return the parameter of a sweep: an interval, a range, or choices as they were typed."""
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        low, high, log = sweep.start or 0.0, sweep.end or 0.0, "log" in sweep.tags
        # `int(interval(1,100))` is the interval of whole numbers.
        whole = type(low) is int and type(high) is int
        return Int(int(low), int(high), log=log) if whole else Float(float(low), float(high), log=log)
    if isinstance(sweep, RangeSweep) and all(isinstance(each, int) for each in (sweep.start, sweep.stop, sweep.step)):
        values = range(sweep.start, sweep.stop, sweep.step)  # type: ignore[arg-type]  # whole numbers, as just seen
        return Int(values[0], values[-1], step=abs(values.step))
    choices = list(override.sweep_string_iterator())
    if len(choices) < 2:
        raise InputError(f"Hydra: {override.input_line} has one value; give {name} two or more, or no sweep")
    return Choice(*choices)
