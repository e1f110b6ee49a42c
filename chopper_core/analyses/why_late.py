"""Why a straggler is late, in words."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.host_causes import cause_beyond, place_beyond
from chopper_core.analyses.leads import LOW_CLOCK_RATIO, RankLeads, Straggler
from chopper_core.columns import heat_of
from chopper_core.model.groups import knows_sizes
from chopper_core.model.phrases import by_number, listed, longer_by, percent, time, with_article
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import beyond_others, combined, isin, sums_of

ONE_PLACE_SHARE: Final = 0.6
"""The share of the longer time from which on the place that has it is named."""
_MAX_OPERATIONS: Final = 3
_ALSO: Final = 0.25
"""Of the host's time, from which on copies are named with it."""
_SAME_EXTRA: Final = 0.3
"""Of the largest excess of a layer; layers with as much are named."""
_ODDS: Final = 4.0
"""How many times slower than all else the place is at least."""
_WAITS: Final = {
    "host": "is held back by its host{where}: before launch calls it is idle for {taken} longer "
    "than {than}",
    "launch": "starts kernels late after their launch: between launch and start it is idle for "
    "{taken} longer than {than}",
    "idle": "is idle (no launch record shows why) for {taken} longer than {than}",
    "copies": "copies with nothing else running for {taken} longer than {than}",
}
UNKNOWN_IDLE: Final = "idle before activities without a launch record"


def idle_kind(stand: RankLeads, place: int) -> str:
    """What most of a GPU's idle time after launch calls is, or that without any."""
    nodes = stand.split("gpu")
    at = nodes.codes("gpu").tolist().index(stand.gpus[place])
    latency, after, unknown = (
        nodes.sum(f"idle_{name}_ns")[at] for name in ("latency", "launch", "unknown")
    )
    kinds = {"launch-bound": latency, "waits in queue": after - latency, UNKNOWN_IDLE: unknown}
    return max(kinds, key=lambda kind: kinds[kind])


def cause_shown(stand: RankLeads, late: Straggler) -> str | None:
    """The cause of a straggler as far as the run shows it: without launch records, a GPU that
    starts kernels late is `idle`."""
    if late.cause == "launch" and idle_kind(stand, late.place) == UNKNOWN_IDLE:
        return "idle"
    return late.cause


def late_in_short(stand: RankLeads, late: Straggler) -> str:
    """What a straggler does, in a few words that follow `GPU 5`; empty without a cause."""
    if late.cause is None:
        return ""
    at, place = list(late.when), late.place
    if late.cause in ("clock", "kernels"):
        slower = percent(slower_share(stand, late)[0])
        if late.cause == "kernels":
            if not knows_sizes(stand.table):
                return f"'s kernels take {slower} longer"
            return f" runs the same kernels {slower} slower"
        beyond, _ = stand.hotter(place, at)
        if beyond >= 1:
            heat = heat_of(stand.table)
            degrees = float(stand.metric(heat, at)[place]) if heat else np.nan
            return f" is hot ({degrees:.0f} °C) and {slower} slower"
        mhz = stand.metric("gfx_mhz", at)
        lower = 1 - float(mhz[place] / stand.peers_median(mhz)[place])
        return f" runs at {with_article(percent(lower))} lower clock"
    taken = time(_beyond_peers(stand, late, late.cause))
    if late.cause == "work":
        what = stand.more_of(place, at)
        return f" has {what or 'more work'}"
    if late.cause == "host":
        when = [stand.iterations[step] for step in at]
        where = cause_beyond(stand.run, stand.gpus[place], stand.peers_of(place).gpus, when)
        taken = time(_beyond_peers(stand, late, "host") + _also_copied(stand, late))
        return f"'s host is {taken} late{where.partition(' (')[0]}"
    if late.cause == "copies":
        return f" copies for {taken} more than its peers"
    if cause_shown(stand, late) == "idle":
        return f" is idle for {taken} more than its peers"
    return f" starts kernels {taken} late after their launch"


def longer_in_all_ns(stand: RankLeads, late: Straggler) -> float:
    """How much longer than its peers a straggler takes in all, mean over the steps with its cause,
    but for what it is late for by another cause; 0 without a cause."""
    if late.cause is None:
        return 0.0
    extra = {word: _beyond_peers(stand, late, word) for word in stand.words_of(late)}
    kernels = extra.pop("kernels", 0.0)
    # What it takes longer for counts in full, though its kernels may be faster than slow peers'.
    total = kernels + sum(max(own, 0.0) for own in extra.values())
    return max(total, extra.get(late.cause, 0.0))


def why_late(
    stand: RankLeads, late: Straggler, each: str, *, with_time: bool = True, with_base: bool = True
) -> str:
    """What a straggler does in the steps with its cause, as the end of a sentence; empty without a
    cause.

    Without its time, a sentence about kernels has their share alone; without its base, clocks don't
    say of which time.
    """
    if late.cause is None:
        return ""
    at, place = list(late.when), late.place
    if late.cause in ("clock", "kernels"):
        slower = _slower(stand, late, each if with_time else None, " while busy" * with_base)
        return f"{slower}{place_slower(stand, late)}"
    longer = time(_beyond_peers(stand, late, late.cause))
    if late.cause == "work":
        what = stand.more_of(place, at)
        return (
            f"has more work{what and f', {what}'}: its compute takes {longer}{each} longer"
            f"{more_work_at(stand, late).text}"
        )
    peers = stand.peers_of(place).gpus
    where = ""
    if late.cause == "host":
        when = [stand.iterations[step] for step in at]
        where = cause_beyond(stand.run, stand.gpus[place], peers, when)
        where += place_late(stand, late)
    than = "the other GPU" if len(peers) == 2 else "the others' median"
    text = _WAITS[cause_shown(stand, late) or late.cause].format(
        where=where, taken=f"{longer}{each}", than=than
    )
    which = _copies(stand, late) if late.cause == "copies" else ""
    if copied := _also_copied(stand, late):
        which = f", and it copies for {time(copied)} more"
    return f"{text}{which}"


def _beyond_peers(stand: RankLeads, late: Straggler, word: str) -> float:
    """How much longer than its peers a straggler takes for a thing in its steps; 0 if unknown."""
    return float(np.nan_to_num(stand.extra(word, late.when)[late.place]))


def _also_copied(stand: RankLeads, late: Straggler) -> float:
    """How much longer than its peers a GPU copies whose host is late, where it is much: as while
    it saves a checkpoint. 0 elsewhere."""
    if late.cause != "host":
        return 0.0
    host, copied = (_beyond_peers(stand, late, word) for word in ("host", "copies"))
    return copied if copied > _ALSO * host else 0.0


def slower_ns(stand: RankLeads, late: Straggler) -> float:
    """How much longer a straggler takes for its cause, mean over all steps: as `why_late`
    says it."""
    if late.cause is None:
        return 0.0
    word = "same" if late.cause in ("clock", "kernels") else late.cause
    return _beyond_peers(stand, late, word) * len(late.when) / len(stand.iterations)


def place_late(stand: RankLeads, late: Straggler) -> str:
    """Where in the step the host of a straggler is late, if at one place: ` in layer 3`."""
    if late.cause != "host":
        return ""
    when = [stand.iterations[step] for step in late.when]
    return place_beyond(stand.run, stand.gpus[late.place], stand.peers_of(late.place).gpus, when)


class MoreWorkAt(Struct, frozen=True):
    """Where most of a straggler's additional compute is."""

    operations: tuple[str, ...] = ()
    """The one that has most of it, else those of the layers, the largest first; none: it is
    everywhere."""
    layers: tuple[int, ...] = ()
    """None: in all layers, or outside of them."""

    @property
    def text(self) -> str:
        """The end of a phrase; empty where it is everywhere."""
        if not self.operations:
            return ""
        if not self.layers:
            return f", mostly {listed(self.operations)}"
        layers = by_number("layer", self.layers)
        if len(self.operations) == 1:
            return f", mostly {self.operations[0]} in {layers}"
        return f", mostly in {layers} ({listed(self.operations)})"


def more_work_at(stand: RankLeads, late: Straggler) -> MoreWorkAt:
    """The operation, and its layers, that most of the additional compute is in, or the layers and
    their operations."""
    table, peers = stand.table, stand.peers_of(late.place).gpus
    rows = stand.node.rows
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    rows = rows[isin(table.gpu[rows], peers)]
    rows = rows[isin(table.iteration[rows], [stand.iterations[step] for step in late.when])]
    names, name = combined([table.operation[rows], table.layer[rows]])
    gpu = np.searchsorted(peers, table.gpu[rows])
    sums = sums_of(table.duration_ns[rows], gpu * len(names) + name, len(peers) * len(names))
    beyond = beyond_others(sums.reshape(len(peers), -1).astype(np.float64))
    extra = np.maximum(beyond[peers.index(stand.gpus[late.place])], 0.0)
    whole = float(extra.sum())
    if whole <= 0:
        return MoreWorkAt()
    (operations, of_operation), (layers, of_layer) = (combined([each]) for each in names.T)
    by_operation = sums_of(extra, of_operation, len(operations))
    most = int(by_operation.argmax())
    if by_operation[most] >= ONE_PLACE_SHARE * whole:
        own = np.flatnonzero(of_operation == most)
        large = own[extra[own] > _SAME_EXTRA * extra[own].max()]
        known = [layer for layer in names[large, 1].tolist() if layer != NO_LABEL]
        name_of = table.text_of("operation", int(operations[most, 0]))
        return MoreWorkAt((name_of,), () if len(large) == len(own) else tuple(known))
    by_layer = sums_of(extra, of_layer, len(layers))
    # Kernels whose launch records are lost belong to one of the layers.
    large = np.flatnonzero((by_layer > _SAME_EXTRA * by_layer.max()) & (layers[:, 0] != NO_LABEL))
    numbers = layers[large, 0].tolist()
    is_most = by_layer[large].sum() >= ONE_PLACE_SHARE * whole
    if not is_most or 2 * len(large) > len(layers):
        return MoreWorkAt()
    there = sums_of(extra * isin(of_layer, large), of_operation, len(operations))
    first = [at for at in np.argsort(-there)[:_MAX_OPERATIONS].tolist() if there[at] > 0]
    named = tuple(table.text_of("operation", int(operations[at, 0])) for at in first)
    return MoreWorkAt(named, tuple(numbers))


def _copies(stand: RankLeads, late: Straggler) -> str:
    """The copies that a GPU spends most of the time on beyond its peers', by kind and by what
    launched them, as the end of a phrase.

    Where the host is during a copy says nothing about the copy: it has long been launched.
    """
    table, peers = stand.table, stand.peers_of(late.place).gpus
    numbers = [stand.iterations[step] for step in late.when]
    rows = stand.node.rows
    rows = rows[(table.kind[rows] == Kind.COPY) & (table.exposed_copy_ns[rows] > 0)]
    rows = rows[isin(table.gpu[rows], peers) & isin(table.iteration[rows], numbers)]
    names, name = combined(
        [table.column(level)[rows] for level in ("kernel", "operation", "phase")]
    )
    gpu = np.searchsorted(peers, table.gpu[rows])
    sums = sums_of(table.exposed_copy_ns[rows], gpu * len(names) + name, len(peers) * len(names))
    beyond = beyond_others(sums.reshape(len(peers), -1).astype(np.float64))
    most = int(beyond[peers.index(stand.gpus[late.place])].argmax())
    kernel, operation, phase = names[most].tolist()
    launched = ""
    if operation != NO_LABEL:
        launched = f", launched by {table.text_of('operation', operation)}"
        launched += f" in {table.text_of('phase', phase)}" if phase != NO_LABEL else ""
    return f": mostly {table.text_of('kernel', kernel)}{launched}"


def slower_share(stand: RankLeads, late: Straggler) -> tuple[float, float]:
    """How much longer a straggler's kernels take than the same ones of its peers: as a share, and
    in ns."""
    at, place = list(late.when), late.place
    longer = float(np.nan_to_num(stand.extra("same", at)[place]))
    return longer / max(float(stand.mean("same", at)[place]) - longer, 1.0), longer


def _slower(stand: RankLeads, late: Straggler, each: str | None, base: str) -> str:
    at, place = list(late.when), late.place
    share, longer = slower_share(stand, late)
    which = "the same kernels" if knows_sizes(stand.table) else "kernels of the same names"
    same = f"{which} take {longer_by(1 + share)}"
    same += "" if each is None else f", {time(longer)}{each}"
    is_clock = late.cause == "clock"
    what, name = ("clock", "gfx_mhz") if is_clock else ("memory clock", "mem_mhz")
    mhz = stand.metric(name, at)
    own, usual = float(mhz[place]), float(stand.peers_median(mhz)[place])
    if not (is_clock or own < LOW_CLOCK_RATIO * usual):
        clock = " at the same clock" if np.isfinite(stand.metric("gfx_mhz", at)[place]) else ""
        return f"has slower kernels{clock}: {same}"
    lower = with_article(percent(1 - own / usual))
    text = f"runs at {lower} lower {what} ({own:,.0f} vs {usual:,.0f} MHz{base})"
    beyond, where = stand.hotter(place, at)
    warmer = f" and is {beyond:.0f} °C hotter{where}" if is_clock and beyond >= 1 else ""
    return f"{text}{warmer}: {same}"


def place_slower(stand: RankLeads, late: Straggler) -> str:
    """The operation or phase, and the layers, that have most of the longer time, as the end of a
    phrase."""
    layers, (where, share) = layers_slower(stand, late), part_slower(stand, late)
    if where:
        return f", {percent(share)} of that in {where}{layers and ',' + layers[3:]}"
    return f", mostly{layers}" if layers else ""


def part_slower(stand: RankLeads, late: Straggler) -> tuple[str, float]:
    """The operation or phase that has most of the time that a straggler's kernels take longer, and
    its share of that; empty without one."""
    if late.cause not in ("clock", "kernels"):
        return "", 0.0
    for levels in (("phase", "operation"), ("phase",)):
        labels, extra, usual = _extra_by(stand, late, levels)
        most = int(extra.argmax())
        if _is_place(float(extra[most]), float(usual[most])):
            phase, *operation = labels[most].tolist()
            is_known = phase != NO_LABEL
            where = stand.table.text_of("phase", phase) if is_known else "the unlabelled part"
            if operation and operation[0] != NO_LABEL:
                name = stand.table.text_of("operation", operation[0])
                where = where if name == where else f"{name} in {where}"
            return where, float(extra[most])
    return "", 0.0


def layers_slower(stand: RankLeads, late: Straggler) -> str:
    """The few layers that have most of the time that a straggler's kernels take longer: ` in layer
    2`; empty without."""
    if late.cause not in ("clock", "kernels"):
        return ""
    labels, extra, usual = _extra_by(stand, late, ("layer",))
    large = np.flatnonzero((extra > _SAME_EXTRA * extra.max()) & (labels[:, 0] != NO_LABEL))
    is_few = 2 * len(large) < len(labels)
    if not is_few or not _is_place(float(extra[large].sum()), float(usual[large].sum())):
        return ""
    known = labels[large, 0].tolist()
    return f" in {by_number('layer', known)}"


def _extra_by(
    stand: RankLeads, late: Straggler, levels: tuple[str, ...]
) -> tuple[Int64, Float64, Float64]:
    """Places by some levels, the share of each of the time that a straggler's kernels take longer,
    and of the time that they take."""
    own = stand.peers_of(late.place)
    labels, usual, beyond = stand.same_by_place(own, late.when, levels)
    extra = np.maximum(beyond[:, own.gpus.index(stand.gpus[late.place])], 0.0)
    return labels, extra / max(float(extra.sum()), 1.0), usual


def _is_place(share: float, usual: float) -> bool:
    """Whether a place has most of the longer time. It means nothing for one that takes most of the
    time anyway."""
    return share >= ONE_PLACE_SHARE and share * (1 - usual) > _ODDS * usual * (1 - share)
