"""Where Hydra finds the sweeper: it looks through all modules below `hydra_plugins`, and takes no others."""

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

from trainwright.integrations import hydra as home

__all__ = ["TrainwrightSweeper"]


class TrainwrightSweeper(home.TrainwrightSweeper):
    """The sweeper, under the name by which Hydra makes it."""


@dataclass
class SweeperConfig:
    """The settings `hydra.sweeper.*`, with their defaults."""

    _target_: str = "hydra_plugins.trainwright_sweeper.TrainwrightSweeper"
    objective: str = "min loss"
    trials: int = 20
    batch: int = 1
    directory: str = "runs/hydra"
    seed: int = 0
    params: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="trainwright", node=SweeperConfig, provider="trainwright")
