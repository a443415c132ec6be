"""`trainwright status DIR`: the progress of a study."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from trainwright.cli.command import Argument, Option, Result
from trainwright.cli.submit import queue_states
from trainwright.errors import InputError
from trainwright.ledger.writers import state_counts
from trainwright.report.formatting import count, duration
from trainwright.report.overview import Overview
from trainwright.study import Study
from trainwright.ui.study_details import trial_page

__all__ = ["status"]

_WHY = {
    "running": "",
    "silent": ": nothing heard of its worker; others resume it if that lasts",
    "lost": ": its worker is gone; run the study again to resume it",
}


def status(
    where: Annotated[str, Argument(help="The study's directory, or its URL.")],
    *,
    strict: Annotated[bool, Option("--strict", help="Exit 1 if the ledger has damaged records.")] = False,
    trial: Annotated[int | None, Option(help="What happened to this trial, and why.")] = None,
) -> Result:
    """Show counts by state, devices in use, the best trial, and damaged records."""
    with Study.open(where) as study:
        if trial is not None:
            story = trial_page(Overview(study.state, study.under_way), trial)
            if story is None:
                raise InputError(f"--trial: got {trial}; allowed: a trial of the study, which has {len(study.trials)}")
            return Result(story, lambda: _show_trial(story))
        for line in study.dropped:
            print(f"dropped: {line}")
        content = _collect_content(study)
        interrupted = sum(trial.preempted for trial in study.trials)
        failed = strict and bool(study.dropped)
    return Result(content, lambda: _show_status(where, content, interrupted), status=int(failed))


def _collect_content(study: Any) -> dict[str, Any]:
    # Trials recorded as running may have lost their worker; its `Liveness` tells.
    words = study.under_way
    # With one objective the front is the best trial alone.
    front = [
        {"trial": trial.number, "params": dict(trial.params), "values": dict(trial.values)} for trial in study.front
    ]
    if front and len(parts := study.lineage(front[0]["trial"])) > 1:
        front[0]["lineage"] = [part._asdict() for part in parts]
    grants = [
        {
            "trial": number,
            "state": word,
            "devices": list(trial.leases[trial.lease].devices),
            "epoch": trial.epoch,
            "holder": trial.holder,
        }
        for number, word in words.items()
        if (trial := study.state.trials[number])
    ]
    content = {
        "trials": state_counts(study.state, words),
        "best": front[0] if front else None,
        **({"feasible": len(study.feasible)} if any(map(math.isfinite, study.state.limits)) else {}),
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in study.objectives],
        "dropped_records": len(study.dropped),
        **({"grants": grants} if grants else {}),
        **({"jobs": jobs} if study.directory is not None and (jobs := queue_states(study.directory)) else {}),
    }
    return content if len(study.objectives) == 1 else {**content, "front": front}


def _show_trial(story: Mapping[str, Any]) -> None:
    word = story["state"]
    print(f"trial {story['trial']}: {word}, {count(story['epochs'], 'epoch')}")
    for number, first, last in story["lineage"][:-1]:
        print(f"epochs {first} to {last} in trial {number}")
    for run in story["attempts"]:
        devices = f" on {', '.join(run['devices'])}" if run["devices"] else ""
        end = run["end"] or {"running": "goes on"}.get(word, word)
        why = f" ({run['why']})" if run["why"] else ""
        print(f"run {run['lease']}{devices} from epoch {run['from_epoch']}: {duration(run['seconds'])}, {end}{why}")
    for d in story["decisions"]:
        because = ", ".join(f"{name} {d[name]:.6g}" for name in ("value", "threshold") if d[name] is not None)
        print(f"epoch {d['epoch']}: {d['verdict']} by {d['rule']}" + (f" ({because})" if because else ""))
    failure = story["failure"]
    if failure is not None:
        print(failure["traceback"].rstrip() or f"failed: {failure['message']}")


def _show_status(where: str, content: Mapping[str, Any], interrupted: int) -> None:
    goals = ", ".join(f"{o['direction']} {o['metric']}" for o in content["objectives"])
    words = {state: f"{count} {state}" for state, count in content["trials"].items() if count}
    # They are not at a rung, as the others are: the next run continues them.
    if interrupted:
        words["paused"] += f" ({interrupted} interrupted)"
    counts = ", ".join(words.values()) or "no trials yet"
    print(f"{where}: {goals}")
    print(f"trials: {counts}")
    if jobs := content.get("jobs"):
        states = [state for state in ("running", "queued", "submitted", "ended") if state in jobs.values()]
        named = {state: [job for job, its in jobs.items() if its == state] for state in states}
        # Those that have ended may be many.
        told = [
            f"{len(each)} {state}" + (f" ({', '.join(each)})" if state != "ended" else "")
            for state, each in named.items()
        ]
        print(f"jobs: {', '.join(told)}")
    for grant in content.get("grants", []):
        devices = ", ".join(grant["devices"]) or "the devices of its worker"
        print(f"{grant['state']}: trial {grant['trial']} on {devices}, epoch {grant['epoch']}{_WHY[grant['state']]}")
    if content.get("feasible") == 0 and content["best"]:
        print("none of the results keeps all bounds and constraints")
    if content["best"]:
        # Each parameter on a line of its own: there may be dozens.
        best = content["best"]
        values = ", ".join(f"{name}={value:.6g}" for name, value in best["values"].items())
        # Of several objectives no trial is the best in all.
        front = content.get("front", [])
        which = f"on the Pareto front: {count(len(front), 'trial')}; the first is" if front else "best:"
        print(f"{which} trial {best['trial']} with {values}")
        for name, value in best["params"].items():
            print(f"  {name} = {value}")
        for part in best.get("lineage", [])[:-1]:
            print(f"  epochs {part['first']} to {part['last']} in trial {part['trial']}")
