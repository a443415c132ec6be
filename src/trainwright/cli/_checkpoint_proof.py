"""`trainwright checkpoint verify-resume SCRIPT`: the proof, on a training of one's own, that a resume is exact."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli._json import print_json

if TYPE_CHECKING:
    from trainwright.checkpoint.proof import Proof

__all__ = ["verify_resume"]


def verify_resume(
    script: Annotated[Path, typer.Argument(help="A training script with a Manager, restore and step.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments, after --.")] = None,
    *,
    steps: Annotated[int, typer.Option("--steps", help="How many before the interruption, and as many after it.")],
    kill: Annotated[bool, typer.Option("--kill", help="Interrupt by SIGKILL, not after a clean end.")] = False,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="An item, or rng, not to restore, to see that it is needed.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Processes of each run, as torchrun starts them.")] = 1,
    resume_ranks: Annotated[
        int | None, typer.Option("--resume-ranks", help="Another number of them after the interruption.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that one run of the script may take.")] = 3600.0,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Interrupt a script, resume it in a new process, and compare it bit by bit with one that was not interrupted.

    The script runs four times as it is; its own checkpoints are not touched. Exit 1 if anything differs.
    """
    from trainwright.checkpoint.proof import verify_resume as prove

    proof = prove(
        script,
        steps=steps,
        arguments=arguments or (),
        kill=kill,
        drop=drop or (),
        ranks=ranks,
        resume_ranks=resume_ranks,
        timeout_seconds=timeout,
    )
    resized = resume_ranks is not None and resume_ranks != ranks
    print(_told(proof, script, "killed" if kill else "interrupted", (ranks, resume_ranks) if resized else None))
    if json:
        print_json(asdict(proof))
    if not proof.equal:
        raise typer.Exit(1)


def _told(proof: "Proof", script: Path, how: str, resized: tuple[int, int | None] | None) -> str:
    if proof.equal and resized is not None:
        return (
            f"{script}: {how} at step {proof.steps} with {resized[0]} ranks and resumed with {resized[1]}: the "
            "restored state and the samples after it are equal\n"
            f"  parameters at step {2 * proof.steps} are apart by up to {proof.max_difference:.2g}: sums over other "
            "ranks round otherwise, and each rank has its own random draws"
        )
    if proof.equal:
        return (
            f"{script}: {how} at step {proof.steps} and resumed, it is equal to the last bit\n"
            f"  {proof.compared:,} digests of batches, losses and state compared, up to step {2 * proof.steps}"
        )
    others = f" and {proof.others} more items" if proof.others else ""
    first = f"first difference at step {proof.step}: {proof.item}{others}"
    apart = f"; parameters are apart by up to {proof.max_difference:.2g} in the end" if proof.max_difference else ""
    if not proof.repeatable:
        return f"{script}: two runs without interruption differ\n  {first}{apart}\n  {proof.suspect}"
    suspect = f"\n  suspect: {proof.suspect}" if proof.suspect else ""
    return f"{script}: {how} at step {proof.steps} and resumed, it is NOT equal\n  {first}{apart}{suspect}"
