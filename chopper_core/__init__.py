"""Chopper's Python API: `open` a run, take its kernels and frames, `diff` two runs, compare `runs`.

    import chopper_core as chopper

    run = chopper.open("runs/today")
    run.frame("gpu=5/iteration=11?view=kernels").to_pandas()

See docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chopper_core.api import OpenRun, ResultFrame, diff, open, runs  # noqa: A004

__all__ = ["OpenRun", "ResultFrame", "diff", "open", "runs"]


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chopper_core import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*__all__]
