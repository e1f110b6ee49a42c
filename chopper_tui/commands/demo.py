"""`chopper demo`: the explorer on the bundled demo run."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from chopper_core.util.errors import DataError
from chopper_tui.commands.explore import explore
from chopper_tui.commands.options import EXPLORING as OPTIONS

__all__ = ["DESCRIPTION", "OPTIONS", "run"]

DESCRIPTION: Final = "Explore the generated demo run."
_DEMO: Final = Path("demo_data", "fsdp2")


def run(options: Namespace) -> int:
    return explore(str(demo_path()), options)


def demo_path() -> Path:
    """The path of the demo run: in a checkout next to the packages, else inside the package."""
    package = Path(__file__).resolve().parents[1]
    for path in (package.parent / _DEMO, package / _DEMO):
        if path.is_dir():
            here = Path.cwd()
            return path.relative_to(here) if path.is_relative_to(here) else path
    raise DataError(f"the demo run is missing: no {_DEMO} next to or inside {package}")
