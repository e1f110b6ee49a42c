"""Answers as tables: the findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.arrow import frame_table
from chopper_core.render.tables import table
from chopper_core.views.query import frame_of

if TYPE_CHECKING:
    import pyarrow as pa


@table("findings")
def findings(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A finding: its sentence, its saving, and the view that shows its evidence."""
    return frame_table(frame_of(run, View(run.name, name="findings")))
