"""Generated runs together with the simulation behind them: which dispatch is whose, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chopper_core.align.counters import CounterMatch, match_counters
from chopper_core.align.launches import UNMATCHED, Dispatched
from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import Match
from chopper_core.model.run import Run
from chopper_core.sources.dispatches import DispatchRun
from tests.align.generated import DEMO, load_generator
from tests.sources.counters.counter_writers import read_counters

__all__ = ["DEMO", "SMALL", "Activity", "Place", "Simulated", "simulate"]

Index = NDArray[np.intp]
Place = tuple[int, int]
"""(iteration of the counter run, position in the program of an iteration)."""

SMALL: dict[str, Any] = {"ranks": 2, "iterations": 2, "layers": 4}
FIRST_NODE = 2
WINDOWS = 2
"""The counter run executes a warm-up iteration and a full one."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A compute kernel of the trace: where it stands, and what we matched it with."""

    row: int
    """Of the kernel table."""
    name: str
    iteration: int
    position: int
    """In the program of its iteration, in the order of the launches."""
    own_window: int
    """The iteration of the counter run that is its own, counted from the end; below 0: none."""
    match: Match
    dispatch: int
    """Row of the GPU's dispatches, or UNMATCHED."""
    place: Place | None
    """The true place of that dispatch; None also for one that belongs to no iteration."""

    @property
    def is_right(self) -> bool:
        """Whether the dispatch is that of the same position of an iteration."""
        return self.place is not None and self.place[1] == self.position

    def says(self) -> str:
        """What was matched, for a failing test's message."""
        return (
            f"iteration {self.iteration} position {self.position} -> {self.place} "
            f"{self.match.name} {self.name[:60]}"
        )


@dataclass(frozen=True)
class Simulated:
    """A generated run, opened, with its simulation."""

    folder: Path
    run: Run
    simulation: Any

    @cached_property
    def counter_run(self) -> DispatchRun:
        """The counter run, its passes joined."""
        (found,) = read_counters([self.folder])
        return found

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs with counters."""
        gpus: tuple[int, ...] = tuple(self.simulation.config.counter_ranks)
        return gpus

    def rows(self, gpu: int) -> Index:
        """The rows of a GPU in the kernel table."""
        return np.flatnonzero(self.run.table.gpu == gpu)

    def dispatches(self, gpu: int) -> Index:
        """The rows of a GPU's dispatches."""
        agents = [
            number
            for number, agent in enumerate(self.counter_run.agents)
            if agent.node_id == FIRST_NODE + gpu
        ]
        return np.flatnonzero(np.isin(self.counter_run.dispatches.gpu, agents))

    def places(self, gpu: int) -> list[Place | None]:
        """The true place of each of a GPU's dispatches."""
        return self.places_of(gpu, 0)

    def places_of(self, gpu: int, number: int) -> list[Place | None]:
        """The true places by the dispatch ids of a pass, the first of those joined."""
        from generator.serialised import profile

        one = profile(self.simulation.config, self.simulation.gpus[gpu])[number]
        of_number = {dispatch.number: dispatch.place for dispatch in one.dispatches}
        ids = self.counter_run.dispatches.dispatch_id[self.dispatches(gpu)]
        return [of_number[int(each)] for each in ids]

    def match(self, gpu: int) -> CounterMatch:
        """What we match the GPU's activities with."""
        return match_counters(self.run.table, self.rows(gpu), self.dispatched(gpu))

    def dispatched(self, gpu: int) -> Dispatched:
        """The GPU's dispatches as the matching sees them."""
        return Dispatched.of(self.counter_run, self.dispatches(gpu))

    def activities(self, gpu: int, found: CounterMatch | None = None) -> Iterator[Activity]:
        """The compute kernels of the trace of a GPU with what we match them with."""
        from generator.kineto import BASE_NS, RUN_START_NS
        from generator.serialised import program

        found = found or self.match(gpu)
        table = self.run.table
        rows = self.rows(gpu)
        key = {
            (int(table.start_ns[row]), table.names[table.kernel[row]]): at
            for at, row in enumerate(rows)
        }
        places = self.places(gpu)
        shown = set(self.simulation.traces[gpu].activities)
        iterations = sorted({activity.label.iteration for activity in shown})
        for iteration in iterations:
            history = self.simulation.gpus[gpu]
            for position, activity in enumerate(program(history, iteration)):
                if (
                    activity not in shown
                    or activity.is_comm
                    or activity.kernel.category != "kernel"
                ):
                    continue
                start_ns = activity.start_ns + BASE_NS + RUN_START_NS
                at = key[start_ns, activity.kernel.name]
                dispatch = int(found.dispatch[at])
                yield Activity(
                    row=int(rows[at]),
                    name=activity.kernel.name,
                    iteration=iteration,
                    position=position,
                    own_window=WINDOWS - 1 - (iterations[-1] - iteration),
                    match=Match(int(found.match[at])),
                    dispatch=dispatch,
                    place=None if dispatch == UNMATCHED else places[dispatch],
                )

    def measured_positions(self, gpu: int) -> Counter[int]:
        """How many iterations of the counter run have a dispatch of each position."""
        return Counter(place[1] for place in self.places(gpu) if place is not None)


def simulate(folder: Path, **options: Any) -> Simulated:
    """Generate a run into a folder, open it, and simulate it once more."""
    generator = load_generator()
    options = SMALL | options
    generator.generate(folder, **options)
    return Simulated(
        folder,
        open_run(str(folder), jobs=1),
        generator.simulate(generator.Config(**options)),
    )
