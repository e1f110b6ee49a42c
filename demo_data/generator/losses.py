"""What a profiler loses beyond the few launches of every run: whole stretches of its records."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from generator.config import Config
from generator.records import Activity

_T = TypeVar("_T")


def in_stretches(config: Config, rank: int, activities: Sequence[Activity]) -> list[Activity]:
    """The activities whose launches are lost, in the order of the launches."""
    random = Random(f"{config.seed}:lost stretches:{rank}")
    launched = sorted(activities, key=lambda activity: activity.call.start_ns)
    return [
        launched[place]
        for place in places(random, len(launched), config.lost_share, config.lost_stretches)
    ]


def of_dispatches(
    config: Config, rank: int, index: int, dispatches: Sequence[_T]
) -> tuple[_T, ...]:
    """The dispatches that a counter pass keeps; one that it loses leaves a gap in the ids."""
    random = Random(f"{config.seed}:lost by pass {index}:{rank}")
    return tuple(each for each in dispatches if random.random() >= config.lost_dispatches)


def places(random: Random, count: int, share: float, stretches: int) -> list[int]:
    """So large a share of the places up to the count, in so many stretches at random."""
    left = int(share * count + random.random())
    each = -(-left // stretches)
    found: set[int] = set()
    while len(found) < left:
        begin = random.randrange(count)
        found.update(range(begin, min(begin + min(each, left - len(found)), count)))
    return sorted(found)


def scatter_ends(config: Config, rank: int, activities: Sequence[Activity]) -> None:
    """Let the rank leave each collective a little later, but before its stream's next activity."""
    if not config.end_scatter_ns:
        return
    random = Random(f"{config.seed}:ends:{rank}")
    following: dict[int, int] = {}
    for activity in sorted(activities, key=lambda activity: -activity.start_ns):
        if activity.is_comm:
            latest = following.get(activity.stream, activity.end_ns + config.end_scatter_ns)
            room = min(config.end_scatter_ns, latest - activity.end_ns)
            activity.end_ns += random.randint(0, max(room, 0))
        following[activity.stream] = activity.start_ns
