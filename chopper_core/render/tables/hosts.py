"""Operators and runtime calls of the host threads that launch each GPU's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.columns import parse_columns
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostKind, HostLane, HostSteps
from chopper_core.render.arrow import labels_array, table_of, words_array
from chopper_core.render.tables import table
from chopper_core.render.tables.activities import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_OWN: Final = parse_columns("""
    name | | name
        Name of the operator or call.
""")


@table("host_operators", is_large=True)
def host_operators(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """An operator or a runtime call of a host thread, on the GPU that the thread launches for."""
    from chopper_core.tables.arrow_files import array_of

    lane, steps = run.side(HostLane), run.side(HostSteps)
    rows = np.arange(len(lane))
    if gpus is not None:
        rows = rows[np.isin(lane.gpu, gpus)]
    gpu, start = lane.gpu[rows], lane.start_ns[rows]
    return table_of(
        [
            (COLUMNS["gpu"], array_of(gpu.astype(np.int64))),
            (COLUMNS["iteration"], labels_array(steps.at(gpu, start))),
            (
                COLUMNS["kind"],
                words_array(lane.kind[rows], [each.name.lower() for each in HostKind]),
            ),
            (_OWN["name"], words_array(lane.name[rows], lane.names)),
            (COLUMNS["start_ns"], array_of(start - run.origin_ns)),
            (COLUMNS["duration_ns"], array_of(lane.duration_ns[rows])),
        ]
    )
