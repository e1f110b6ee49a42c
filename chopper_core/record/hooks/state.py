"""What a process knows of itself, and files that other processes read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CHOPPER_RECORD"
"""Holds the options of a recording, as JSON."""
PROCESSES: Final = "processes"
LOADED: Final = ".loaded"
"""An empty file among the states: the hooks were loaded in some process."""
PYTHON: Final = ".python"
"""Another one: some Python has started with `inject/sitecustomize.py`."""
TRIGGER: Final = "trigger.json"
PRIVATE: Final = ".chopper-"
EXPORTS: Final = "script"
"""Directories of traces that the script exports itself are numbered after it."""
RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANKS: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
WORLDS: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def host_name() -> str:
    """This host's name, as part of names of files."""
    return re.sub(r"[^\w.-]", "_", os.uname().nodename.partition(".")[0]) or "host"


def number_in(names: tuple[str, ...]) -> int | None:
    """The number in the first of some variables that has one."""
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), None)


def write_json(path: str, content: object) -> None:
    """Write a file under a temporary name and rename it; raises OSError."""
    fresh = f"{path}.{os.getpid()}-{threading.get_ident()}.new"
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(json.dumps(content))
        os.replace(fresh, path)
    except OSError:
        remove(fresh)
        raise


def remove(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            os.remove(path)


def private_folder(folder: str) -> str:
    """Make a folder for the trace of a window until it is in the run; raises OSError.

    Only its owner can enter it, and nobody knows its name before: containers that share a folder
    have processes of the same number, and others may put links there.
    """
    return tempfile.mkdtemp(prefix=PRIVATE, dir=folder)


def device_of(torch: Any) -> dict[str, Any] | None:
    """The GPU of this process as torch describes it; None where torch hasn't used one."""
    cuda = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return None
    index = cuda.current_device()
    about = cuda.get_device_properties(index)
    found = {"index": index, "name": str(about.name), "uuid": str(getattr(about, "uuid", ""))}
    with suppress(AttributeError):
        domain, bus, device = about.pci_domain_id, about.pci_bus_id, about.pci_device_id
        found["pci"] = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    return found


def start_sampler(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a sampler in a session of its own, without hooks; raises OSError."""
    own = str(Path(__file__).parents[1] / "inject")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != own]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop(VARIABLE, None)
    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True
    )
