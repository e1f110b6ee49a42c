"""The demo run that comes with Chopper, and its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.util.errors import DataError

DEMO: Final = "demo"
"""The name of the demo run wherever a run is named, unless there is a file or directory of it."""
_FOLDER: Final = Path("demo_data")
MEMORY: Final = "memory"
"""The demo run whose traces have events of memory."""


def demo_path(name: str = "fsdp2") -> Path:
    """The path of a demo run: in a checkout next to the packages, else inside a package.

    Raises DataError where it is missing.
    """
    root = Path(__file__).resolve().parents[2]
    for path in (root / _FOLDER / name, root / "chopper_tui" / _FOLDER / name):
        if path.is_dir():
            here = Path.cwd()
            return path.relative_to(here) if path.is_relative_to(here) else path
    raise DataError(f"the demo run is missing: no {_FOLDER / name} next to or inside {root}")


def is_demo(name: str) -> bool:
    """Whether a run's name is that of a demo run, or its path."""
    if name == DEMO:
        return True
    try:
        return any(Path(name).resolve() == demo_path(each).resolve() for each in ("fsdp2", MEMORY))
    except (DataError, OSError, ValueError):
        return False
