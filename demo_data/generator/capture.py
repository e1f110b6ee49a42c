"""What the profiler keeps of a simulated rank: all that began after it started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from generator import constants as c
from generator import losses
from generator.config import Config
from generator.host import Host
from generator.memory import Allocator
from generator.records import Activity, MemoryEvent, RankTrace


def capture(config: Config, host: Host) -> RankTrace:
    """Cuts a rank's records at the profiler's start and plants its losses."""
    start_ns = host.profiler_start_ns
    activities = sorted(
        (activity for activity in host.activities if activity.start_ns >= start_ns),
        key=lambda activity: (activity.end_ns, activity.call.correlation),
    )
    for activity in activities:
        activity.has_launch = activity.call.start_ns >= start_ns
        activity.has_collective_args = activity.has_launch and activity.is_comm
    random = Random(f"{config.seed}:lost:{host.rank}")
    complete = [a for a in activities if a.label.iteration > c.FIRST_ITERATION]
    in_layers = [a for a in complete if a.is_compute and a.label.layer is not None]
    for activity in _spread(random, in_layers, config.lost_launches):
        activity.has_launch = False
    for activity in _spread(random, [a for a in complete if a.is_comm], c.COLLECTIVES_WITHOUT_ARGS):
        activity.has_collective_args = False
    for activity in losses.in_stretches(config, host.rank, activities):
        activity.has_launch = activity.has_collective_args = False
    losses.scatter_ends(config, host.rank, activities)
    late_ns = config.gpu_late_ns[host.rank]
    for activity in activities if late_ns else ():
        activity.start_ns += late_ns
        activity.end_ns += late_ns
    return RankTrace(
        rank=host.rank,
        start_ns=start_ns,
        end_ns=host.now_ns + 50_000,
        main_thread=host.main_thread,
        autograd_thread=host.autograd_thread,
        ranges=tuple(record for record in host.ranges if record.start_ns >= start_ns),
        calls=tuple(
            call
            for call in host.calls
            if call.start_ns >= start_ns and (call.activity is None or call.activity.has_launch)
        ),
        activities=tuple(activities),
        memory=tuple(_memory(config, host)) if config.memory else (),
    )


def _memory(config: Config, host: Host) -> Iterator[MemoryEvent]:
    allocator = Allocator(host.activities, config.layers, config.ranks)
    return allocator.events(host.profiler_start_ns)


def _spread(random: Random, activities: Sequence[Activity], count: int) -> list[Activity]:
    """Draws `count` activities, one from each equal part of the sequence."""
    places = [int((part + random.random()) / count * len(activities)) for part in range(count)]
    return [activities[place] for place in places]
