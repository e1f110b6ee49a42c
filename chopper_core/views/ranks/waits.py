"""Who waits in collectives, and for whom, of the GPUs of a scope."""

from __future__ import annotations

from typing import Final

import numpy as np

import chopper_core.views.shared.collective_columns as collective_columns
from chopper_core.metrics import Metric, Values
from chopper_core.model.charts import Chart, HeatMap
from chopper_core.util.arrays import Int64, Numbers
from chopper_core.views.shared.leads import RankLeads

Own = list[tuple[Metric, Values]]

_LARGEST_MAP: Final = 64


def waits(stand: RankLeads) -> Own:
    """Per GPU, how long it waits for later ones, the others for it, and without compute."""
    gpus, chosen = np.array(stand.gpus), stand.collectives
    heads = (
        collective_columns.WAIT,
        collective_columns.CAUSED,
        collective_columns.EXPOSED_WAIT,
        collective_columns.CAUSED_EXPOSED,
    )
    if chosen is None or not chosen.complete.any():
        missing = Values(np.zeros(len(gpus), np.int64), np.ones(len(gpus), np.bool_))
        return [(head, missing) for head in heads]
    waiter, last = _who(stand)

    def summed(places: Int64, waits: Int64) -> Values:
        total = np.bincount(places, weights=waits, minlength=len(gpus) + 1)
        return Values(total[:-1].astype(np.int64))

    waits = (chosen.wait_ns, chosen.exposed_ns)
    return list(
        zip(heads, (summed(who, wait) for wait in waits for who in (waiter, last)), strict=True)
    )


def _who(stand: RankLeads) -> tuple[Int64, Int64]:
    """Of each collective's kernel the places of its GPU and of the one that arrives last."""
    chosen, gpus = stand.collectives, np.array(stand.gpus)
    assert chosen is not None
    places = np.full(max(int(stand.table.gpu.max()), int(gpus.max())) + 1, len(gpus))
    places[gpus] = np.arange(len(gpus))
    last = chosen.all.last_gpu[chosen.sets][chosen.owner]
    return places[stand.table.gpu[chosen.rows]], places[last]


def waits_by(stand: RankLeads, codes: Int64, codes_of_rows: Numbers) -> Own:
    """Waits within the rows: of all GPUs, and for the GPU behind in the scope."""
    chosen, count = stand.collectives, len(codes)
    if chosen is None or not chosen.complete.any():
        missing = Values(np.zeros(count, np.int64), np.ones(count, np.bool_))
        return [(collective_columns.WAIT, missing), (collective_columns.CAUSED, missing)]
    place = np.searchsorted(codes, np.asarray(codes_of_rows)[chosen.rows])
    _, last = _who(stand)
    mine = last == stand.behind
    wait = np.bincount(place, weights=chosen.wait_ns, minlength=count)
    caused = np.bincount(place[mine], weights=chosen.wait_ns[mine], minlength=count)
    unseen = np.bincount(place[chosen.complete[chosen.owner]], minlength=count) == 0
    return [
        (collective_columns.WAIT, Values(wait.astype(np.int64), unseen)),
        (collective_columns.CAUSED, Values(caused.astype(np.int64), unseen)),
    ]


def waits_map(stand: RankLeads) -> tuple[Chart, ...]:
    """Who waits for whom, in ms."""
    chosen, size = stand.collectives, len(stand.gpus)
    if chosen is None or not chosen.complete.any() or size > _LARGEST_MAP:
        return ()
    waiter, last = _who(stand)
    pairs = np.bincount(
        waiter * (size + 1) + last, weights=chosen.wait_ns, minlength=(size + 1) ** 2
    )
    names = tuple(f"GPU {gpu}" for gpu in stand.gpus)
    return (
        HeatMap(
            "who waits (rows) for whom (columns)",
            "ms",
            names,
            names,
            "last to arrive",
            pairs.reshape(size + 1, size + 1)[:size, :size] / 1e6,
        ),
    )
