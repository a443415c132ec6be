"""`trainwright checkpoint ...`: look at checkpoints, check and compare them, and choose when to save."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from trainwright.checkpoint.policy.save_policy import Costs, plan_saves
from trainwright.checkpoint.tools.proof import Proof
from trainwright.checkpoint.tools.proof import verify_resume as prove
from trainwright.cli.checkpoint_files import convert, diff, inspect, verify
from trainwright.cli.command import Argument, Option, Result, make_group, seconds
from trainwright.engine.process.proof import verify_trial
from trainwright.errors import InputError
from trainwright.report.formatting import duration

__all__ = ["app"]


def verify_resume(
    target: Annotated[
        str,
        Argument(
            metavar="SCRIPT|MODULE:FUNCTION",
            help="A training script with a Manager, restore and step; or the function that trains a study's trials.",
        ),
    ],
    arguments: Annotated[list[str] | None, Argument(help="A script's arguments, after --.")] = None,
    *,
    steps: Annotated[
        int | None,
        Option(help="How many before the interruption; of a script as many after it. A trial's are drawn."),
    ] = None,
    kill: Annotated[
        bool, Option("--kill", help="Interrupt a script by SIGKILL, not after a clean end. Trials always are.")
    ] = False,
    drop: Annotated[list[str] | None, Option(help="An item, or rng, not to restore, to see that it is needed.")] = None,
    ranks: Annotated[int, Option(help="Processes of each run, as torchrun starts them.")] = 1,
    param: Annotated[list[str] | None, Option(help="A parameter of the trial, NAME=VALUE; text, or else JSON.")] = None,
    epochs: Annotated[int | None, Option(help="The full length of the trial.")] = None,
    seed: Annotated[int, Option(help="Of the trial, and of the step that is drawn for it.")] = 0,
    timeout: Annotated[float, Option(help="Seconds that one run may take.")] = 3600.0,
) -> Result:
    """Interrupt a training, resume it in a new process, and compare it bit by bit with one that was not interrupted.

    It runs four times as it is; its own checkpoints are not touched. Exit 1 if anything differs.
    """
    # A path may have a colon in it; a file that exists is a script.
    trial = ":" in target and not Path(target).exists()
    if arguments if trial else param or epochs:
        whose = "values after -- are for scripts" if trial else "--param and --epochs are for trials' functions"
        raise InputError(f"verify-resume {target}: {whose}; leave them out")
    limits: dict[str, Any] = {"drop": drop or (), "ranks": ranks, "timeout_seconds": timeout}
    if trial:
        sys.path.insert(0, str(Path.cwd()))
        params = dict(_parse_parameter(text) for text in param or ())
        proof = verify_trial(target, params, epochs=epochs, steps=steps, seed=seed, **limits)
    elif steps is None:
        raise InputError("verify-resume: --steps is missing; give how many steps of the script to interrupt after")
    else:
        proof = prove(target, steps=steps, arguments=arguments or (), kill=kill, **limits)
    print(f"{target}: {_describe_proof(proof, 'killed' if kill or trial else 'interrupted')}")
    return Result(asdict(proof), status=0 if proof.equal else 1)


def _parse_parameter(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; what is no JSON is text."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InputError(f"--param: got {text!r}; allowed: NAME=VALUE, such as lr=0.01")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _describe_proof(proof: Proof, how: str) -> str:
    resumed, end = f"{how} at step {proof.steps} and resumed", f"up to step {2 * proof.steps}"
    if proof.resumed_from is not None:
        resumed, end = f"{resumed} from step {proof.resumed_from}", "up to its end"
    if proof.equal:
        digests = f"{proof.compared:,} digests of batches, losses and state compared, {end}"
        return f"{resumed}, it is equal to the last bit\n  {digests}"
    verdict = f"{resumed}, it is NOT equal" if proof.repeatable else "two runs without interruption differ"
    others = f" and {proof.others} more items" if proof.others else ""
    far = f"; parameters are apart by up to {proof.max_difference:.2g} in the end" if proof.max_difference else ""
    suspect = f"\n  suspect: {proof.suspect}" if proof.suspect else ""
    return f"{verdict}\n  first difference at step {proof.step}: {proof.item}{others}{far}{suspect}"


def interval(
    *,
    cost: Annotated[str, Option(help="Time that one save takes from training, e.g. 3s.")],
    mtbf: Annotated[str, Option(help="Mean time between losses of all nodes together, e.g. 1d.")],
    recovery: Annotated[str, Option(help="From a loss until training resumes.")] = "0",
    remaining: Annotated[str | None, Option(help="Remaining time of the allocation.")] = None,
) -> Result:
    """How often to save, and what that costs."""
    costs = Costs(
        mtbf_seconds=seconds("--mtbf", mtbf),
        cost_seconds=seconds("--cost", cost),
        recovery_seconds=seconds("--recovery", recovery),
    )
    left = None if remaining is None else seconds("--remaining", remaining)
    plan = plan_saves(costs, remaining_seconds=left)
    wall = costs.wall_per_useful(plan.optimum_seconds)
    print(
        f"a loss every {duration(costs.mtbf_seconds)} on average, back after {duration(costs.recovery_seconds)}; "
        f"a save costs {duration(costs.cost_seconds)}"
    )
    print(
        f"save every {duration(plan.optimum_seconds)}: {100 * (wall - 1):.2f} % more wall time than a training that "
        f"saves nothing and loses nothing, {100 / wall:.2f} % of it useful"
    )
    if left is not None and plan.saves is not None:
        saves = "1 more save, after" if plan.saves == 1 else f"{plan.saves} more saves, every"
        print(plan.warning or f"in the {duration(left)} left: {saves} {duration(plan.interval_seconds)} of training")
    return Result({**asdict(costs), "wall_per_useful": wall, "plan": asdict(plan)})


app = make_group(
    "checkpoint",
    "Look at checkpoints, check and compare them; when to save.",
    {
        inspect: "Show what is in a checkpoint, without its tensors.",
        verify: "Compute every checksum again.",
        verify_resume: "Interrupt a training, resume it, compare every step.",
        diff: "Compare two checkpoints, tensor by tensor.",
        convert: "Write a checkpoint in another format.",
        interval: "How often to save, and what that costs.",
    },
)
