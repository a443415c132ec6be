"""Hydra's sweeper: overrides are the space, jobs are trials, and a sweep that was killed resumes."""

import os
import subprocess
import sys

import pytest

import trainwright as tw

pytest.importorskip("hydra")
pytestmark = pytest.mark.xfail(sys.version_info >= (3, 14), reason="Hydra 1.3 itself does not start on Python 3.14")

APP = """
import hydra, os, signal

@hydra.main(version_base=None, config_path=None, config_name="config")
def main(config):
    with open(config.log, "a") as file:
        file.write(f"{config.lr} {config.opt.name} {config.width}\\n")
    if config.kill and len(open(config.log).readlines()) == config.kill:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.opt.name == "broken":
        raise ValueError("no luck")
    return "much" if config.words else (config.lr - 0.01) ** 2 + config.width

from hydra.core.config_store import ConfigStore
ConfigStore.instance().store(
    name="config", node={"lr": 0.1, "width": 1, "opt": {"name": "sgd"}, "log": "???", "kill": 0, "words": False}
)
main()
"""


def sweep(folder, *overrides):
    (folder / "app.py").write_text(APP)
    line = [sys.executable, "app.py", "-m", "hydra/sweeper=trainwright", f"log={folder}/log", *overrides]
    environment = {**os.environ, "HYDRA_FULL_ERROR": "0"}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


SPACE = ("lr=tag(log,interval(1e-4,1e-1))", "opt.name=sgd,adamw", "width=range(1,4)")


def test_a_killed_sweep_resumes(tmp_path):
    first = sweep(tmp_path, *SPACE, "hydra.sweeper.trials=6", "hydra.sweeper.batch=2", "kill=4")
    assert first.returncode == -9
    again = sweep(tmp_path, *SPACE, "hydra.sweeper.trials=6", "hydra.sweeper.batch=2")
    assert again.returncode == 0, again.stderr
    with tw.Study.open(tmp_path / "runs" / "hydra") as study:
        assert study.state.results == 6
        assert set(study.space.parameters) == {"lr", "opt.name", "width"}
        assert {type(p).__name__ for p in study.space.parameters.values()} == {"Float", "Choice", "Int"}
        best = min(t.values["loss"] for t in study.trials)
        assert all(
            t.values["loss"] == pytest.approx((t.params["lr"] - 0.01) ** 2 + t.params["width"]) for t in study.trials
        )
    # Six results, and of the batch that was killed both jobs once more.
    assert 7 <= len((tmp_path / "log").read_text().splitlines()) <= 8
    [found] = tmp_path.glob("multirun/*/*/optimization_results.yaml")
    assert f"best_evaluated_result: {best}" in found.read_text()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["lr=0.1", "+hydra.sweeper.params.lr='interval(0,1)'"], "lr=0.1 contradicts the space"),
        (["lr=0.1"], "no override sweeps anything"),
        (["lr=interval(0,1)", "words=true"], "the task function returned 'much'; return the study's objective 'loss'"),
        (["opt.name=broken", "lr=interval(0,1)"], "no luck"),
    ],
)
def test_mistakes_are_told(tmp_path, overrides, said):
    done = sweep(tmp_path, *overrides, "hydra.sweeper.trials=3")
    assert done.returncode != 0
    assert said in done.stderr
    assert not (tmp_path / "log").exists() or len((tmp_path / "log").read_text().splitlines()) == 1
