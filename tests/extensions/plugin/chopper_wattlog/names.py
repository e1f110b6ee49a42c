"""An export: the names of the kernels, a line each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.model.run import Run
from chopper_core.render.exports import ExportOptions, new_file
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "the names of the kernels, a line each"
TAKES: Final = ()


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    """Write the names; returns nothing that was left out."""
    with new_file(path) as fresh:
        fresh.write_text("".join(f"{name}\n" for name in run.table.names))
    return []
