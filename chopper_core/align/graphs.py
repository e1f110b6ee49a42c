"""Kernels that a graph replays, and the launches that were captured into it."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

import numpy as np

from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import Points
from chopper_core.model.table import Category
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct

_BEGIN: Final = re.compile(r"StreamBeginCapture")
_END: Final = re.compile(r"StreamEndCapture")
_REPLAY: Final = re.compile(r"GraphLaunch")


def captured_points(host: Host, links: Links) -> Points:
    """The launch of each activity, for kernels of a graph the launch that was captured.

    A replay belongs to the one earlier capture with as many launches as it has kernels; where
    several captures or several streams leave the order open, the launch of the graph stays.
    """
    captures = _captures(host, links)
    replays = _replays(host, links)
    if not captures or not replays:
        return links.points
    thread, time_ns = links.points.thread.copy(), links.points.time_ns.copy()
    launches, activities = host.trace.launches, host.trace.activities
    for launch, rows in replays.items():
        fitting = [
            calls
            for calls in captures
            if len(calls) == len(rows) and launches.start_ns[calls[-1]] < launches.start_ns[launch]
        ]
        if len(fitting) != 1 or len(distinct(activities.stream[rows])) > 1:
            continue
        calls = fitting[0]
        thread[rows], time_ns[rows] = launches.thread[calls], launches.start_ns[calls]
    return Points(thread, time_ns)


def _captures(host: Host, links: Links) -> list[Index]:
    """The launch calls of each capture, in order: they started nothing themselves."""
    launches = host.trace.launches
    begins = np.flatnonzero(host.by_launch(lambda name: _BEGIN.search(name) is not None))
    ends = np.flatnonzero(host.by_launch(lambda name: _END.search(name) is not None))
    is_replay = host.by_launch(lambda name: _REPLAY.search(name) is not None) > 0
    orphans = links.orphans[~is_replay[links.orphans]]
    found = []
    for begin in begins[np.argsort(launches.start_ns[begins])].tolist():
        thread, start = launches.thread[begin], launches.start_ns[begin]
        after = ends[(launches.thread[ends] == thread) & (launches.start_ns[ends] > start)]
        if not len(after):
            continue
        end = launches.start_ns[after].min()
        times = launches.start_ns[orphans]
        own = orphans[(launches.thread[orphans] == thread) & (times > start) & (times < end)]
        if len(own):
            found.append(own[np.argsort(launches.start_ns[own], kind="stable")])
    return found


def _replays(host: Host, links: Links) -> dict[int, Index]:
    """The kernels of each launch of a graph, in order of their start."""
    activities = host.trace.activities
    is_replay = host.by_launch(lambda name: _REPLAY.search(name) is not None) > 0
    of_graph = (links.launch >= 0) & (activities.category == Category.KERNEL)
    rows = np.flatnonzero(of_graph)
    rows = rows[is_replay[links.launch[rows]]]
    rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
    found: dict[int, list[int]] = defaultdict(list)
    for row, launch in zip(rows.tolist(), links.launch[rows].tolist(), strict=True):
        found[launch].append(row)
    return {launch: np.array(own, np.intp) for launch, own in found.items()}
