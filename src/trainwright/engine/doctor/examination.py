"""The examination of `trainwright doctor`: packages, devices, engines, and the folder of studies."""

from pathlib import Path

from trainwright.engine.doctor.devices import examine_devices
from trainwright.engine.doctor.engines import examine_engines
from trainwright.engine.doctor.finding import Area, Examination, Finding, Grade
from trainwright.engine.doctor.folder import examine_folder
from trainwright.engine.doctor.machine import CommandResult, FreeSpace, Machine
from trainwright.engine.doctor.packages import examine_packages, imported
from trainwright.errors import InputError

__all__ = ["Area", "CommandResult", "Examination", "Finding", "FreeSpace", "Grade", "Machine", "examine"]


def examine(folder: str | Path = ".", *, host: Machine | None = None) -> Examination:
    """Look at this machine, or at `host`, and at a folder for studies; takes seconds, most of them importing torch."""
    if not Path(folder).is_dir():
        raise InputError(f"doctor: got {str(folder)!r}; allowed: a directory that is there; make it, or name another")
    host = host if host is not None else Machine()
    probed = imported(host)
    return Examination(
        findings=(
            *examine_packages(host, probed),
            *examine_devices(host, probed.get("torch", {})),
            *examine_engines(host),
            *examine_folder(host, Path(folder)),
        )
    )
