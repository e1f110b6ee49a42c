"""The file of a crash: the address, the keys that were typed, the traceback.

It holds nothing of the environment or the machine but the path of the run. Its keys are as `--play`
takes them, with the rest in comments.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from chopper_core.render.cells import escape_each
from chopper_core.util.atomic import make_private
from chopper_tui.config import state_directory

_MAX_FILES: Final = 20
_REPEATED: Final = "chopper ADDRESS --play FILE repeats the keys"


def write_crash(crash: BaseException, address: str = "", keys: Iterable[str] = ()) -> Path | None:
    """Write the file of a crash, for its owner alone; None where it can't be written.

    A command has neither an address nor keys.
    """
    folder = state_directory()
    path = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S.%f}-{os.getpid()}.log"
    notes = [
        f"{summary(crash)}",
        f"Python {platform.python_version()}, {sys.platform}",
        *([f"address: {address}", _REPEATED] if address else []),
        *"".join(traceback.format_exception(crash)).splitlines(),
    ]
    text = escape_each(f"# {line}" for line in notes)
    try:
        make_private(folder)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "".join(f"{key}\n" for key in keys))
        for old in sorted(folder.glob("crash-*.log"))[:-_MAX_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def typed(text: str) -> str:
    """A typed or pasted text as a line of keys."""
    return f"text {json.dumps(text)}"


def summary(crash: BaseException) -> str:
    """The error in a line."""
    return f"{type(crash).__name__}: {crash}".splitlines()[0][:200]
