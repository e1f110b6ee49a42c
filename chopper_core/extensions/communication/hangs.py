"""Who keeps a job waiting, by the last collectives of each rank.

A group is stuck at its first collective that not all members have finished. A member that has not
called it, and waits in no other collective either, is where the job hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chopper_core.model.units import utc_text
from chopper_core.render.info import numbers_text

COMPLETED: Final = "completed"
_NS_PER_S: Final = 1_000_000_000
_MAX_TEXTS: Final = 3
_SINCE: Final = range(_NS_PER_S, 2**62)


class Called(Struct, frozen=True):
    """A collective that a rank has called."""

    group: str
    """The label of its process group."""
    number: int
    """Its sequence number in the group."""
    name: str
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of its inputs, where all members give the same; () otherwise."""
    state: str
    since_ns: int
    """When it was called, since 1970; 0 where that isn't known."""


class Message(Struct, frozen=True):
    """A send or receive that a rank has called and that has not ended."""

    name: str
    """`recv 3<-0`, by the ranks of its group."""
    group: str
    peer: int
    """The rank at the other end."""
    since_ns: int


class _Stuck(Struct, frozen=True):
    """The first collective of a group that not all members have finished."""

    group: str
    number: int
    waiting: Mapping[int, Called]
    """Rank → its call."""
    missing: tuple[int, ...]
    """Members with a dump that have not called it."""
    unseen: tuple[int, ...]
    """Members without a dump."""


def hang_of(
    calls: Mapping[int, Sequence[Called]],
    members: Mapping[str, Sequence[int]],
    messages: Mapping[int, Sequence[Message]],
) -> tuple[str, int]:
    """A sentence on where a job hangs and the number of ranks that wait; '' and 0 if none does.

    `calls` has the calls of each rank that left a dump, `members` the ranks of each group,
    `messages` those of each rank that have not ended.
    """
    of_group: dict[str, dict[int, dict[int, Called]]] = {}
    for rank, own in calls.items():
        for call in own:
            of_group.setdefault(call.group, {}).setdefault(rank, {})[call.number] = call
    stuck = [
        found
        for group, ranks in members.items()
        if (found := _stuck(group, of_group.get(group, {}), ranks, calls.keys()))
    ]
    waiting = {rank for one in stuck for rank in one.waiting}
    waiting |= {rank for rank, own in messages.items() if own}
    if not waiting:
        return "", 0
    by_start = sorted(stuck, key=lambda one: min(call.since_ns for call in one.waiting.values()))
    texts = [
        *(_different(one) for one in by_start),
        *(_absent(one, calls, waiting) for one in by_start),
        _unmet(messages, calls, waiting),
        *(_unseen(one) for one in by_start),
        *(_together(one) for one in by_start),
    ]
    if text := next(filter(None, texts), ""):
        return text, len(waiting)
    if len(by_start) < 2:
        return _in_messages(messages, by_start), len(waiting)
    first = by_start[0]
    others = "; ".join(
        f"{_ranks([*one.waiting])} in {_called(one)}, for {_ranks(one.missing)}"
        for one in by_start[:2]
    )
    return f"ranks wait for each other: {others}{_since(first)}", len(waiting)


def _stuck(
    group: str,
    calls: Mapping[int, Mapping[int, Called]],
    members: Sequence[int],
    dumped: Collection[int],
) -> _Stuck | None:
    """`calls` has the calls of the group by rank and number."""
    own = {rank: calls.get(rank, {}) for rank in members if rank in dumped}
    open_ = [
        number
        for of_rank in own.values()
        for number, call in of_rank.items()
        if call.state != COMPLETED
    ]
    if not open_:
        return None
    number = min(open_)
    waiting = {
        rank: of_rank[number]
        for rank, of_rank in own.items()
        if number in of_rank and of_rank[number].state != COMPLETED
    }
    # What a rank's recorder has lost is before what it has.
    missing = [rank for rank, of_rank in own.items() if max(of_rank, default=-1) < number]
    unseen = [rank for rank in members if rank not in dumped]
    return _Stuck(group, number, waiting, tuple(missing), tuple(unseen))


def _different(one: _Stuck) -> str:
    """Members that call another collective, or another size, at the same place."""
    kinds: dict[tuple[str, tuple[tuple[int, ...], ...]], list[int]] = {}
    for rank, call in sorted(one.waiting.items()):
        kinds.setdefault((call.name, call.sizes), []).append(rank)
    if len(kinds) < 2:
        return ""
    texts = [
        f"{name}{f' of {[*map(list, sizes)]}' if sizes else ''} on {_ranks(ranks)}"
        for (name, sizes), ranks in sorted(kinds.items(), key=lambda item: -len(item[1]))
    ]
    return (
        f"collective {one.number} of group {one.group} differs between its ranks: "
        f"{', '.join(texts[:3])}{_since(one)}"
    )


def _absent(one: _Stuck, calls: Mapping[int, Sequence[Called]], waiting: set[int]) -> str:
    """Members that have not called it and wait in nothing else."""
    absent = [rank for rank in one.missing if rank not in waiting]
    if not absent:
        return ""
    last = max(calls[absent[0]], key=lambda call: call.since_ns, default=None)
    was = ""
    if last is not None:
        whose = "its" if len(absent) == 1 else f"rank {absent[0]}'s"
        was = f"; {whose} last call was {last.name} {last.number} of group {last.group}"
    return (
        f"{_ranks(absent)} never called {_called(one)}, in which {_ranks([*one.waiting])} "
        f"wait{'s' if len(one.waiting) == 1 else ''}{_since(one)}{was}"
    )


def _unmet(
    messages: Mapping[int, Sequence[Message]],
    calls: Mapping[int, Sequence[Called]],
    waiting: set[int],
) -> str:
    """A message whose other end waits in nothing itself, or left no dump."""
    open_ = [(each.since_ns, rank, each) for rank, own in messages.items() for each in own]
    for _, rank, each in sorted(open_, key=lambda item: item[:2]):
        where = f"{each.name} of group {each.group}"
        since = _time_of(each.since_ns)
        if each.peer not in calls:
            return f"rank {rank} waits in {where}{since}; rank {each.peer} left no dump"
        if each.peer not in waiting:
            verb = "sent" if each.name.startswith("recv") else "received"
            return f"rank {each.peer} never {verb} what rank {rank} waits for in {where}{since}"
    return ""


def _in_messages(messages: Mapping[int, Sequence[Message]], stuck: Sequence[_Stuck]) -> str:
    """Ranks that all wait, some of them for messages."""
    texts = [
        f"rank {rank} in {own[0].name} of group {own[0].group}"
        for rank, own in sorted(messages.items())
        if own
    ]
    texts += [f"{_ranks([*one.waiting])} in {_called(one)}" for one in stuck]
    more = "; …" if len(texts) > _MAX_TEXTS else ""
    return f"ranks wait for each other: {'; '.join(texts[:_MAX_TEXTS])}{more}"


def _unseen(one: _Stuck) -> str:
    if not one.unseen or one.missing:
        return ""
    return (
        f"{_ranks([*one.waiting])} wait{'s' if len(one.waiting) == 1 else ''} in {_called(one)}"
        f"{_since(one)}; {_ranks(one.unseen)} left no dump"
    )


def _together(one: _Stuck) -> str:
    if one.missing or one.unseen:
        return ""
    return (
        f"{_called(one)} never ends on {_ranks([*one.waiting])}, though all its ranks called it"
        f"{_since(one)}: look at the network and at what runs next to it"
    )


def _called(one: _Stuck) -> str:
    return f"{next(iter(one.waiting.values())).name} {one.number} of group {one.group}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {numbers_text(sorted(ranks))}"


def _since(one: _Stuck) -> str:
    return _time_of(min(call.since_ns for call in one.waiting.values()))


def _time_of(since_ns: int) -> str:
    if since_ns not in _SINCE:
        return ""
    return f" since {utc_text(since_ns)}"
