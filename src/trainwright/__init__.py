"""Trainwright: from hyperparameter search to a served ensemble.

The public names below are loaded when they are first used, so that `import trainwright` stays fast and pulls in
neither torch, ray nor numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwright import checkpoint, ensemble, ledger, memory, report, serve, train
    from trainwright.cluster import Cluster
    from trainwright.engine import Local
    from trainwright.engine.ray.engine import Ray
    from trainwright.engine.simulated.ledger_cost import LedgerCost
    from trainwright.engine.simulated.settings import Scaling, Simulated
    from trainwright.engine.simulated.table import tables
    from trainwright.engine.simulated.task import Parametric
    from trainwright.ensemble import BudgetedGreedy, Ensemble, Front, Library
    from trainwright.errors import TrainwrightError
    from trainwright.integrations.optuna.sampler import TrainwrightSampler
    from trainwright.integrations.optuna.searcher import OptunaSearcher
    from trainwright.integrations.pycompss.engine import PyCOMPSs
    from trainwright.model.profile import Profile
    from trainwright.plan import Forecast, Layout, Oracle
    from trainwright.schedule import (
        ASHA,
        PASHA,
        RASDA,
        AnyOf,
        BestStatic,
        Doubling,
        DoublingAsPublished,
        Extrapolate,
        Fixed,
        FixedEpochs,
        Hyperband,
        IEpoch,
        MarginalGain,
        Median,
        MultiObjectiveASHA,
        Patience,
        Plateau,
        Scheduler,
        SuccessiveHalving,
    )
    from trainwright.search import (
        DefaultSearcher,
        EvolutionSearcher,
        ExpectedGain,
        ForestSearcher,
        GaussianProcessSearcher,
        GridSearcher,
        QuasiRandomSearcher,
        RandomSearcher,
    )
    from trainwright.serve import Deployment
    from trainwright.space import (
        Beta,
        Choice,
        Constant,
        Derived,
        Float,
        Int,
        Normal,
        Space,
        all_of,
        any_of,
        equals,
        greater,
        less,
        not_,
        one_of,
        require,
    )
    from trainwright.space.configuration import Configuration
    from trainwright.study import Study, StudyFailed, Worker
    from trainwright.train import Trial, from_optuna

__version__ = "0.1.0"

_NAMES = {
    "cluster": "Cluster",
    "engine": "Local",
    "engine.ray.engine": "Ray",
    "engine.simulated.ledger_cost": "LedgerCost",
    "engine.simulated.settings": "Scaling Simulated",
    "engine.simulated.table": "tables",
    "engine.simulated.task": "Parametric",
    "ensemble": "BudgetedGreedy Ensemble Front Library",
    "errors": "TrainwrightError",
    "integrations.optuna.sampler": "TrainwrightSampler",
    "integrations.optuna.searcher": "OptunaSearcher",
    "integrations.pycompss.engine": "PyCOMPSs",
    "model.profile": "Profile",
    "plan": "Forecast Layout Oracle",
    "schedule": "ASHA PASHA RASDA AnyOf BestStatic Doubling DoublingAsPublished Extrapolate Fixed FixedEpochs "
    "Hyperband IEpoch MarginalGain Median MultiObjectiveASHA Patience Plateau Scheduler "
    "SuccessiveHalving",
    "search": "DefaultSearcher EvolutionSearcher ExpectedGain ForestSearcher GaussianProcessSearcher GridSearcher "
    "QuasiRandomSearcher RandomSearcher",
    "serve": "Deployment",
    "space": "Beta Choice Constant Derived Float Int Normal Space all_of any_of equals greater less not_ one_of "
    "require",
    "space.configuration": "Configuration",
    "study": "Study StudyFailed Worker",
    "train": "Trial from_optuna",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("checkpoint", "ensemble", "ledger", "memory", "report", "serve", "train")

__all__ = [
    "ASHA",
    "PASHA",
    "RASDA",
    "AnyOf",
    "BestStatic",
    "Beta",
    "BudgetedGreedy",
    "Choice",
    "Cluster",
    "Configuration",
    "Constant",
    "DefaultSearcher",
    "Deployment",
    "Derived",
    "Doubling",
    "DoublingAsPublished",
    "Ensemble",
    "EvolutionSearcher",
    "ExpectedGain",
    "Extrapolate",
    "Fixed",
    "FixedEpochs",
    "Float",
    "Forecast",
    "ForestSearcher",
    "Front",
    "GaussianProcessSearcher",
    "GridSearcher",
    "Hyperband",
    "IEpoch",
    "Int",
    "Layout",
    "LedgerCost",
    "Library",
    "Local",
    "MarginalGain",
    "Median",
    "MultiObjectiveASHA",
    "Normal",
    "OptunaSearcher",
    "Oracle",
    "Parametric",
    "Patience",
    "Plateau",
    "Profile",
    "PyCOMPSs",
    "QuasiRandomSearcher",
    "RandomSearcher",
    "Ray",
    "Scaling",
    "Scheduler",
    "Simulated",
    "Space",
    "Study",
    "StudyFailed",
    "SuccessiveHalving",
    "TrainwrightError",
    "TrainwrightSampler",
    "Trial",
    "Worker",
    "__version__",
    "all_of",
    "any_of",
    "checkpoint",
    "ensemble",
    "equals",
    "from_optuna",
    "greater",
    "ledger",
    "less",
    "memory",
    "not_",
    "one_of",
    "report",
    "require",
    "serve",
    "tables",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"trainwright.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trainwright' has no attribute {name!r}")
    value = getattr(import_module(f"trainwright.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
