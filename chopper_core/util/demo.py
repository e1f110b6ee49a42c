"""The demo run that comes with Chopper, and its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.util.errors import DataError

DEMO: Final = "demo"
"""The name of the demo run wherever a run is named, unless there is a file or directory of it."""
_FOLDER: Final = Path("demo_data", "fsdp2")


def demo_path() -> Path:
    """The path of the demo run: in a checkout next to the packages, else inside a package.

    Raises DataError where it is missing.
    """
    root = Path(__file__).resolve().parents[2]
    for path in (root / _FOLDER, root / "chopper_tui" / _FOLDER):
        if path.is_dir():
            here = Path.cwd()
            return path.relative_to(here) if path.is_relative_to(here) else path
    raise DataError(f"the demo run is missing: no {_FOLDER} next to or inside {root}")


def is_demo(name: str) -> bool:
    """Whether a run's name is that of the demo run, or its path."""
    try:
        return name == DEMO or Path(name).resolve() == demo_path().resolve()
    except (DataError, OSError, ValueError):
        return False
