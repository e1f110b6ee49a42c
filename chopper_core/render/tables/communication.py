"""Collectives as their ranks have them: when each arrives, begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses import collective_columns as collective_columns
from chopper_core.analyses.collective_figures import PROCESS_GROUP, SIZE
from chopper_core.columns import METRICS, parse_columns
from chopper_core.graph.collectives import Collectives, collectives_of
from chopper_core.graph.process_groups import split_groups
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import PHASES, KernelTable
from chopper_core.render.arrow import flags_array, labels_array, table_of, words_array
from chopper_core.render.tables import table
from chopper_core.render.tables.activities import COLUMNS, ranks_array

if TYPE_CHECKING:
    import pyarrow as pa

_OWN: Final = parse_columns("""
    collective | | collective
        Number of the collective in the run, in the order of first arrival: the same on all ranks.
    arrive_ns | ns | arrives
        When this rank's kernel starts, since the first activity of the run.
    begin_ns | ns | begins
        When the last rank arrives, so that data can move; null unless all ranks are seen.
    ranks | | ranks
        How many ranks take part; null where that isn't known.
    is_complete | | complete
        Whether the kernels of all its ranks are in the run.
    is_last | | last
        Whether this GPU arrives last of those seen.
""")


@table("collectives", is_large=True)
def collectives(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A collective on one rank: its kernel, matched with those of the other ranks."""
    from chopper_core.tables.arrow_files import array_of

    every = run.table
    found = collectives_of(run) or _none(every)
    own = np.arange(len(found.rows))
    if gpus is not None:
        own = np.flatnonzero(np.isin(every.gpu[found.rows], gpus))
    rows, owner = found.rows[own], found.member_set[own]
    sent, size, complete = found.bytes[owner], found.size[owner], found.complete[owner]
    gpu, origin = every.gpu[rows].astype(np.int64), run.origin_ns
    start, end = every.start_ns[rows], every.start_ns[rows] + every.duration_ns[rows]
    made = [
        (_OWN["collective"], array_of(found.number[owner].astype(np.int64))),
        (COLUMNS["operation"], words_array(found.kind[owner], every.operations)),
        (PROCESS_GROUP, words_array(found.group[owner], split_groups(run).names)),
        (COLUMNS["gpu"], array_of(gpu)),
        (COLUMNS["rank"], ranks_array(run, gpu)),
        (COLUMNS["iteration"], labels_array(every.iteration[rows])),
        (COLUMNS["phase"], words_array(every.phase[rows], PHASES)),
        (COLUMNS["layer"], labels_array(every.layer[rows])),
        (_OWN["arrive_ns"], array_of(start - origin)),
        (_OWN["begin_ns"], array_of(found.last_start_ns[owner] - origin, complete)),
        (COLUMNS["end_ns"], array_of(end - origin)),
        (METRICS["wait_ns"], array_of(found.member_wait_ns[own], complete)),
        (METRICS["exposed_wait_ns"], array_of(found.member_exposed_ns[own], complete)),
        (replace(SIZE, name="bytes"), array_of(sent, sent >= 0)),
        (_OWN["ranks"], array_of(size, size > 0)),
        (_OWN["is_complete"], flags_array(complete)),
        (_OWN["is_last"], flags_array(gpu == found.last_gpu[owner])),
    ]
    return table_of(made)


def _none(every: KernelTable) -> Collectives:
    nothing = np.empty(0, np.int64)
    arrays: dict[str, Any] = dict.fromkeys(Collectives.__struct_fields__[1:-4], nothing)
    arrays["complete"] = np.empty(0, np.bool_)
    return Collectives(
        Groups(every, nothing, nothing),
        **arrays,
        spread_ns=None,
        shared_labels=(),
        is_scheduled=False,
    )
