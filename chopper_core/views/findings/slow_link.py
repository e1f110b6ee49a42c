"""Process groups whose collectives transfer slower than like ones of other groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.util.grouping import distinct, median_of, ranked, sums_of
from chopper_core.views.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.shared.collective_figures import chosen_in
from chopper_core.views.shared.collectives import PAIRWISE, collectives_of
from chopper_core.views.shared.phrases import by_number, percent, time

SLOWER: Final = Threshold(
    "slower transfer",
    15.0,
    "% longer than in like groups",
    "links of one kind differ by a few percent",
)
COST: Final = Threshold(
    "cost of a slow link", 1.0, "% of the iteration", "the same as for a straggler"
)


class SlowLink(Struct, frozen=True):
    """A process group whose collectives transfer slower."""

    gpus: tuple[int, ...]
    kind: str
    """Its operation with the largest loss."""
    slower: float
    """How much longer its transfers take, as a share."""
    exposed_ns: float
    """Exposed communication that it adds on each of its GPUs, per iteration."""
    transfer_ns: float
    """Longer transfers, per iteration."""


@rule(
    "slow-link",
    saving="the exposed part of the longer transfers of the group",
    holds=(0.5, 1.5),
    needs="several process groups with like collectives",
    thresholds=(SLOWER, COST),
)
def slow_link(context: FindingsContext) -> Iterator[Finding]:
    """A process group whose collectives transfer slower than like ones of other groups."""
    for link in slow_links(context):
        if context.share(link.transfer_ns) < COST.share:
            continue
        count = len(context.iterations)
        yield Finding(
            sentence=(
                f"the link of {by_number('GPU', link.gpus)} is slow: {link.kind} takes "
                f"{percent(link.slower)} longer to transfer there than in like groups, "
                f"{time(link.transfer_ns)}{context.each}, {time(link.exposed_ns)} of that exposed"
            ),
            evidence=context.with_view("comms", "group", sort="bus_gbps"),
            confidence=confidence(measured=True, repeated=count > 1),
            saving_ns=link.exposed_ns,
            high_ns=1.5 * link.transfer_ns,
            total_ns=link.exposed_ns * len(link.gpus) * count,
            cost=Cost.COMMUNICATION,
        )


def slow_links(context: FindingsContext) -> list[SlowLink]:
    """The slow groups of the scope, worked out once."""
    key = ("slow links", context.view.path, context.view.order)
    return context.run.memo(key, lambda: _slow_links(context), keep=1)


def _slow_links(context: FindingsContext) -> list[SlowLink]:
    collectives = collectives_of(context.run)
    chosen = None if collectives is None else chosen_in(context.run, collectives, context.node)
    if collectives is None or chosen is None:
        return []
    table = context.table
    of_set = np.flatnonzero(chosen.complete & ~chosen.of_kind(PAIRWISE))
    sets = chosen.sets[of_set]
    group, transfer = collectives.group[sets], collectives.transfer_ns[sets].astype(np.float64)
    like = ranked(collectives.kind[sets])[1]
    for column in (collectives.bytes[sets], collectives.size[sets]):
        values, code = ranked(column)
        like = ranked(like * len(values) + code)[1]
    if len(distinct(group)) < 2:
        return []
    waiting = sums_of(chosen.exposed_ns, chosen.owner, len(chosen.sets))
    exposed = sums_of(table.exposed_comm_ns[chosen.rows], chosen.owner, len(chosen.sets))
    per_gpu = (exposed - waiting)[of_set] / np.maximum(collectives.size[sets], 1)
    found = []
    for code in distinct(group[group >= 0]).tolist():
        own = group == code
        usual, usual_exposed = np.full(len(sets), np.nan), np.full(len(sets), np.nan)
        for one in distinct(like[own]).tolist():
            others = (like == one) & ~own
            if others.any():
                here = own & (like == one)
                usual[here] = median_of(transfer[others])
                usual_exposed[here] = per_gpu[others].mean()
        slower = own & (transfer > (1 + SLOWER.share) * usual)
        compared = own & np.isfinite(usual)
        # Most of its collectives are slow, not one by chance.
        if 2 * slower.sum() <= max(int(compared.sum()), 1):
            continue
        lost = np.where(compared, transfer - usual, 0.0)
        sums = sums_of(lost, collectives.kind[sets])
        beyond = np.where(compared, per_gpu - usual_exposed, 0.0)
        count = len(context.iterations)
        members = chosen.all.members
        rows = members.rows[np.isin(chosen.all.member_set, sets[own])]
        found.append(
            SlowLink(
                tuple(distinct(table.gpu[rows]).tolist()),
                table.operations[int(sums.argmax())],
                float(transfer[compared].sum() / usual[compared].sum() - 1),
                max(float(beyond.sum()), 0.0) / count,
                float(lost.sum()) / count,
            )
        )
    return found
