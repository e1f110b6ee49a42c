"""Compute beside communication: how much longer matched kernels take by what ran beside them.

Beside the kernels of GPUs that wait for a later one, a collective waits too and slows them, but
not those of the later one. To compare kernels, the time of each is put down to what ran beside
it: a collective that waits for later GPUs, or one that transfers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.signals import time_within, union
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import ranked
from chopper_core.views.shared.collectives import Collectives
from chopper_core.views.shared.matched_kernels import Occurrences

_MIN_VARIATION: Final = 0.005
"""The least variance of a share that shows how communication slows a kernel."""
_MAX_RATE: Final = 0.7
"""Twice as slow: more is not the communication."""


def shares_beside_comm(found: Occurrences, column: int, collectives: Collectives | None) -> Float64:
    """The shares of each occurrence on a GPU beside waiting and beside other communication."""
    table, rows = found.table, found.rows[:, column]
    took = np.maximum(table.duration_ns[rows], 1)
    whole = np.minimum(table.overlap_ns[rows], took)
    waiting = np.zeros(len(rows), np.int64)
    if collectives is not None:
        members = collectives.members.rows
        waits = collectives.member_wait_ns
        own = np.flatnonzero((table.gpu[members] == found.gpus[column]) & (waits > 0))
        if len(own):
            windows = union(table.start_ns[members[own]], waits[own])
            start = table.start_ns[rows]
            waiting = time_within(*windows, start + took) - time_within(*windows, start)
    waiting = np.minimum(waiting, whole)
    return np.stack([waiting, whole - waiting]) / took


def slowdown_beside_comm(found: Occurrences, beside: list[Float64]) -> tuple[Index, Float64]:
    """The operation of each occurrence, and how either kind of communication slows it.

    Rates are differences of logarithms, operations x kinds: least squares of the logarithm of
    the duration over the shares beside communication, with a constant per occurrence and one per
    GPU and operation. 0 where the shares don't differ enough.
    """
    code = ranked(found.table.operation[found.rows[:, 0]])[1]
    count = np.bincount(code)
    values = [
        [np.log(np.maximum(took, 1)), *shares]
        for took, shares in zip(found.durations_ns(), beside, strict=True)
    ]
    means = [sum(column) / len(values) for column in zip(*values, strict=True)]
    products = np.zeros((3, 3, len(count)))
    for own in values:
        centred = []
        for value, mean in zip(own, means, strict=True):
            apart = value - mean
            centred.append(apart - (np.bincount(code, weights=apart) / count)[code])
        for one in range(3):
            for other in range(one, 3):
                products[one, other] += np.bincount(code, weights=centred[one] * centred[other])
    rates = np.zeros((len(count), 2))
    enough = _MIN_VARIATION * count * len(values)
    for operation in range(len(count)):
        squares = products[[1, 2], [1, 2], operation]
        used = np.flatnonzero(squares > enough[operation])
        if not len(used):
            continue
        normal = np.triu(products[1:, 1:, operation])
        normal = (normal + np.triu(normal, 1).T)[np.ix_(used, used)]
        found_rates = np.linalg.lstsq(normal, products[0, 1 + used, operation], rcond=1e-3)[0]
        rates[operation, used] = np.clip(found_rates, 0.0, _MAX_RATE)
    return code, rates
