"""Recording a run: hooks in its processes, samplers, counter passes, and the manifest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chopper_core.record.session import Session


def profile(
    run: str | PathLike[str], *, skip: int = 10, steps: int = 3, every: int = 0
) -> AbstractContextManager[Session]:
    """Record steps of a training loop into a directory, all ranks into the same one.

    The loop calls `step()` of what it gets at the end of each step: `skip` steps pass before the
    `steps` that are recorded, once or `every` so many steps.
    """
    from pathlib import Path

    from chopper_core.record.command import RecordOptions
    from chopper_core.record.session import recorded

    return recorded(RecordOptions(Path(run), skip, steps, every))
