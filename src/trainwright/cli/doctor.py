"""`trainwright doctor [DIR]`: what is installed, what is missing, and how to fix it."""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from trainwright import __version__
from trainwright.cli.command import Argument, Result
from trainwright.engine.doctor.examination import Finding, examine

__all__ = ["doctor"]

_HEADINGS = {
    "installed": "Installed",
    "extras": "Extras, and what those that are missing would give",
    "devices": "Devices and limits",
    "engines": "Engines and launchers",
    "folder": "The folder of studies",
}
_MARKS = {"fine": "ok", "absent": "-", "poor": "!", "broken": "X"}


def doctor(directory: Annotated[Path, Argument(help="Where studies are to lie.")] = Path()) -> Result:
    """Show what is installed, which devices and engines work, and whether a folder is fit for studies."""
    found = examine(directory)
    sound = all(finding.state != "broken" for finding in found)
    content = {"version": __version__, "sound": sound, "findings": [asdict(finding) for finding in found]}
    return Result(content, lambda: _show_findings(found), status=0 if sound else 1)


def _show_findings(found: Sequence[Finding]) -> None:
    print(f"trainwright {__version__}")
    for area, heading in _HEADINGS.items():
        print(f"\n{heading}")
        for finding in found:
            if finding.area == area:
                _show_finding(finding)
    print(f"\n{_describe_verdict(found)}")


def _show_finding(finding: Finding) -> None:
    # What a finding says is wrapped below itself, not below its name.
    width = max(60, shutil.get_terminal_size().columns)
    lead = f"  {_MARKS[finding.state]:<2}  {finding.name:<13} "
    print(textwrap.fill(finding.says, width, initial_indent=lead, subsequent_indent=" " * len(lead)))
    if finding.mend:
        print(f"{' ' * len(lead)}-> {finding.mend}")


def _describe_verdict(found: Sequence[Finding]) -> str:
    broken, poor = ([each for each in found if each.state == state] for state in ("broken", "poor"))
    content = ". ".join(
        f"{word}: {', '.join(each.name for each in findings)}"
        for word, findings in (("Worth a look (!)", poor), ("Broken (X)", broken))
        if findings
    )
    if broken:
        return f"Something essential is broken. {content}."
    return f"All that is essential works. {content}." if content else "All that is essential works."
