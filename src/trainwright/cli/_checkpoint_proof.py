"""`trainwright checkpoint verify-resume SCRIPT|MODULE:FUNCTION`: the proof that a training resumes exactly."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.checkpoint.tools.proof import Proof
from trainwright.checkpoint.tools.proof import verify_resume as prove
from trainwright.cli.command import Result
from trainwright.engine.process.proof import verify_trial
from trainwright.errors import InputError

__all__ = ["verify_resume"]


def verify_resume(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT|MODULE:FUNCTION",
            help="A training script with a Manager, restore and step; or the function that trains a study's trials.",
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="A script's arguments, after --.")] = None,
    *,
    steps: Annotated[
        int | None,
        typer.Option(help="How many before the interruption; of a script as many after it. A trial's are drawn."),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Interrupt a script by SIGKILL, not after a clean end. Trials always are.")
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option(help="An item, or rng, not to restore, to see that it is needed.")
    ] = None,
    ranks: Annotated[int, typer.Option(help="Processes of each run, as torchrun starts them.")] = 1,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the trial, NAME=VALUE; text, or else JSON.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The full length of the trial.")] = None,
    seed: Annotated[int, typer.Option(help="Of the trial, and of the step that is drawn for it.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that one run may take.")] = 3600.0,
) -> Result:
    """Interrupt a training, resume it in a new process, and compare it bit by bit with one that was not interrupted.

    It runs four times as it is; its own checkpoints are not touched. Exit 1 if anything differs.
    """
    # A path may have a colon in it; a file that exists is a script.
    trial = ":" in target and not Path(target).exists()
    values = {"--param": param, "--epochs": epochs} if not trial else {"--": arguments}
    foreign = next((option for option, value in values.items() if value), None)
    if foreign is not None:
        raise InputError(
            f"verify-resume {target}: {foreign} is for {'scripts' if trial else 'the functions of trials'}; leave it "
            f"out, or give {'a script' if trial else 'MODULE:FUNCTION'}"
        )
    if trial:
        sys.path.insert(0, str(Path.cwd()))
        proof = verify_trial(
            target,
            dict(_parse_parameter(text) for text in param or ()),
            epochs=epochs,
            steps=steps,
            seed=seed,
            drop=drop or (),
            ranks=ranks,
            timeout_seconds=timeout,
        )
    else:
        if steps is None:
            raise InputError("verify-resume: --steps is missing; give how many steps of the script to interrupt after")
        proof = prove(
            target,
            steps=steps,
            arguments=arguments or (),
            kill=kill,
            drop=drop or (),
            ranks=ranks,
            timeout_seconds=timeout,
        )
    how = "killed" if kill or trial else "interrupted"
    print(_describe_proof(proof, target, how))
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


def _describe_proof(proof: "Proof", what: str, how: str) -> str:
    if proof.equal:
        return (
            f"{what}: {how} at step {proof.steps} and resumed{_ranks_words(proof)}, it is equal to the last bit\n"
            f"  {proof.compared:,} digests of batches, losses and state compared, {_until(proof)}"
        )
    others = f" and {proof.others} more items" if proof.others else ""
    first = f"first difference at step {proof.step}: {proof.item}{others}"
    difference = (
        f"; parameters are apart by up to {proof.max_difference:.2g} in the end" if proof.max_difference else ""
    )
    if not proof.repeatable:
        return f"{what}: two runs without interruption differ\n  {first}{difference}\n  {proof.suspect}"
    suspect = f"\n  suspect: {proof.suspect}" if proof.suspect else ""
    resumed = f"{how} at step {proof.steps} and resumed{_ranks_words(proof)}"
    return f"{what}: {resumed}, it is NOT equal\n  {first}{difference}{suspect}"


def _ranks_words(proof: "Proof") -> str:
    return "" if proof.resumed_from is None else f" from step {proof.resumed_from}"


def _until(proof: "Proof") -> str:
    return f"up to step {2 * proof.steps}" if proof.resumed_from is None else "up to its end"
