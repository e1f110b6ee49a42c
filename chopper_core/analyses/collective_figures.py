"""Columns of single collectives, which of them are outliers, and what a scope's come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopper_core.analyses.base import Base
from chopper_core.analyses.collective_columns import UNSEEN
from chopper_core.columns import Metric, Values, column
from chopper_core.graph.collectives import PAIRWISE, Collectives, collectives_of
from chopper_core.model.phrases import amount, facts, percent
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT
from chopper_core.model.units import time_text
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import (
    counted,
    counts_of,
    first_equal,
    sums_of,
)
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE


def _of_all(text: str) -> Metric:
    """A column of collectives of which the traces have all ranks."""
    return column(f"{text}\n    missing: {UNSEEN}")


KIND: Final = column("""collective_kind | | kind
    The kind of the collective: all_reduce, all_gather …""")
PROCESS_GROUP: Final = column("""process_group | | process group
    The process group of a collective: name, description and size.
    missing: the trace has no process groups""")
SEEN: Final = column("""ranks_seen | | ranks
    Number of ranks whose kernels are in the traces.""")
SIZE: Final = column("""message_bytes | B | size
    The message: the larger of a rank's input and output, the largest of the ranks.
    missing: the trace gives no sizes""")
TIME: Final = column("""collective_ns | ns | time
    From the first arrival (kernel start) to the last end.""")
SKEW: Final = _of_all("""skew_ns | ns | skew
    Arrival skew: the last kernel start minus the first.""")
TRANSFER: Final = _of_all("""transfer_ns | ns | transfer
    From the last arrival to the last end: the time it takes once all ranks have arrived.""")
TIMES: Final = _of_all("""times_median | x | x median
    transfer_ns over the median of the run's collectives of the same kind, group and size.""")
OUTLIER: Final = column("""outlier | | outlier
    `slow` or `fast` where transfer_ns lies outside of its kind, group and size by the rule of
    the outliers (3.5 x 1.4826 x MAD from the median).
    missing: it is no outlier, or too few are of its kind, group and size""")
LAG: Final = _of_all("""arrival_lag_ns | ns | arrival lag
    How much later than the first GPU it arrives; of several collectives the median.""")


Own = list[tuple[Metric, Values]]


def known(found: Collectives, values: Int64) -> Values:
    """A figure of collectives that is known only where all ranks are."""
    return Values(values, ~found.complete)


def kind_text(found: Collectives, code: int) -> str:
    return UNKNOWN_COLLECTIVE if code == NO_LABEL else found.table.operations[code]


def collectives_headline(
    found: Collectives, base: Base, exposed_ms: Mapping[str, float]
) -> tuple[str, ...]:
    """What is exposed, before which operation, and who waits for whom."""
    kinds, complete = found.kind[found.member_set], found.complete
    codes, times = counted(kinds)
    most = np.lexsort((first_equal(kinds, codes), -times))[:4].tolist()
    number = amount(base.each(len(found.rows)))
    number += f" collective{'s' if number != '1' else ''}"
    second = f"{number}{base.words}: "
    second += ", ".join(
        f"{amount(base.each(int(times[place])))} {kind_text(found, int(codes[place]))}"
        for place in most
    )
    exposed, first = int(found.table.exposed_comm_ns[found.rows].sum()), ""
    if exposed and not found.is_scheduled:
        name, ms = next(iter(exposed_ms.items()), (NO_LABEL_TEXT, 0.0))
        before = f"{time_text(1e6 * ms)} before {name}" if name != NO_LABEL_TEXT else ""
        first = facts(f"{time_text(base.each(exposed))} exposed{base.words}", before)
    if complete.any() and (total := int(found.member_wait_ns.sum())):
        wait = sums_of(found.member_wait_ns, found.member_set, len(found))
        worst = int(sums_of(wait[complete], found.last_gpu[complete]).argmax())
        own = complete & (found.last_gpu == worst)
        there = complete[found.member_set]
        lasted = int(found.table.duration_ns[found.rows][there].sum())
        share = f" ({percent(total / lasted)} of communication)" if lasted else ""
        second = facts(
            f"{time_text(base.each(total))} waiting{share}",
            f"{100 * wait[own].sum() / total:.0f} % for GPU {worst}, last at "
            f"{100 * own.sum() / complete.sum():.0f} % of {number}",
        )
    return tuple(filter(None, (first, second)))


def collective_notes(run: Run, found: Collectives) -> tuple[str, ...]:
    """Collectives that aren't matched or lack a size, and the accuracy of the GPUs' clocks."""
    whole, texts = collectives_of(run), []
    assert whole is not None
    single = counts_of(whole.member_set)[found.number] == 1
    pairs = int((found.of_kind(PAIRWISE) & single).sum())
    lacking = int((~found.complete).sum()) - pairs
    unknown = int(found.of_kind(UNKNOWN_COLLECTIVE).sum())
    unsized = int((found.bytes < 0).sum())
    if found.is_scheduled:
        texts.append("reconstructed times don't tell when ranks met: skew and waits are unknown")
    elif lacking:
        texts.append(
            f"{lacking} of {len(found)} collectives lack ranks in the traces: their skew, "
            "transfer time and last arrival are unknown"
        )
    if pairs:
        texts.append(f"{pairs} {PAIRWISE} are between pairs of ranks and aren't matched")
    if unknown:
        texts.append(f"the trace doesn't give the kind of {unknown} collectives")
    if unsized:
        texts.append(
            f"the trace doesn't give the size of {unsized} collectives: their bandwidth is unknown"
        )
    if found.shared_labels:
        names = ", ".join(found.shared_labels[:3])
        texts.append(f"process groups {names} have more GPUs than ranks and aren't matched")
    if found.spread_ns is not None:
        texts.append(f"{ends_within(found.spread_ns)}: arrivals are no more accurate than that")
    return tuple(texts)


def ends_within(spread_ns: int) -> str:
    return (
        f"the ends of a synchronous collective differ by {spread_ns / 1e3:.1f} µs on the traces' "
        "clocks (median)"
    )
