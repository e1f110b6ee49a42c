"""A run: one profiled job, aligned, with its kernel table, sources and signals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from time import monotonic
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.accounting import is_between_programs
from chopper_core.model.column_names import COUNTS_PER_US, SAMPLED, is_part
from chopper_core.model.cubes import Cubes
from chopper_core.model.doubts import Doubt, merged_doubts
from chopper_core.model.groups import Groups, pieces_of
from chopper_core.model.hardware import CounterInfo, Hardware, hardware_of, is_file
from chopper_core.model.inputs import (
    NO_DEVICE,
    PREDICTED,
    RECONSTRUCTED,
    TIMES_NOTES,
    CounterSource,
    Gpu,
    HostClock,
    Identity,
    RecordingSummary,
    Source,
    TelemetrySource,
)
from chopper_core.model.memo import WORTH_KEEPING_S, DerivedValues, LazyMap, Memo
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.parallel import (
    DIMENSIONS,
    FROM_DIRECTORY,
    FROM_SETTINGS,
    Parallel,
    ProcessGroup,
    layout_of_settings,
    parallel_of_groups,
    parallel_of_layout,
    parallel_of_names,
    parse_layout,
)
from chopper_core.model.recent import RecentSamples
from chopper_core.model.settings import Setting
from chopper_core.model.side_table import (
    MEMORY_SIGNALS,
    HostSteps,
    MemoryEvents,
    SideTables,
    T,
    empty,
)
from chopper_core.model.signals import (
    PART,
    BusyCurve,
    CpuSamples,
    IntegralCurve,
    NodeSamples,
    Sampled,
    Signal,
    TimeSpans,
    share_running,
)
from chopper_core.model.table import LEVELS, NO_LABEL, NO_TIME, KernelTable, Kind, Selection
from chopper_core.model.training import LogSource, TrainedSteps
from chopper_core.model.tree import Tree
from chopper_core.model.units import Unit
from chopper_core.model.view import ALL_TIME, Interval, View, resolved
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    counted,
    counts_of,
    distinct,
    first_equal,
    grouped_by,
    median_of,
    ratios,
    run_maxima,
    run_minima,
    run_sums,
    sums_of,
)
from chopper_core.util.naming import one_named

_RUNNING: Final = {
    "busy_pct": ("busy", tuple(Kind)),
    "compute_pct": ("compute", (Kind.COMPUTE,)),
    "comm_pct": ("comm", (Kind.COMM,)),
}
"""Signals from the trace alone: the share of time in which activities of the kinds ran."""
_FEWEST_OTHERS: Final = 3
"""Complete iterations, beyond the first of each window, that tell how long one takes."""
_NAMED_RANKS: Final = 8
Value = TypeVar("Value")
Stored = TypeVar("Stored")
_WARM_UP: Final = 1.5
"""A first iteration of a window that takes more times as long as the others warms up."""


class SideSource(StrEnum):
    """The kinds of source that are read next to traces, and join their run once it is on screen."""

    COUNTERS = "hardware counters"
    TELEMETRY = "telemetry"
    CPU = "CPU samples"
    TRAINER = "trainer log"


class Run(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """An aligned run."""

    name: str
    table: KernelTable
    gpus: tuple[Gpu, ...]
    sources: tuple[Source, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """(file, reason) of files that are not traces."""
    failed: tuple[tuple[str, str], ...] = ()
    """(file, reason) of traces, counters and telemetry that failed to load."""
    generated: str | None = None
    """The generator of synthetic data; None for measured data."""
    partial_iterations: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """GPU → iterations truncated by the profiling window."""
    described_hardware: Hardware | None = None
    """The specification of the GPUs as described by a profiler, if any."""
    counters: tuple[CounterSource, ...] = ()
    counter_info: Mapping[str, CounterInfo] = field(default_factory=dict)
    """Counter → its description by the profiler."""
    telemetry: tuple[TelemetrySource, ...] = ()
    hosts: tuple[HostClock, ...] = ()
    """The clocks of the ranks, the first rank's first."""
    identities: tuple[Identity, ...] = ()
    """The devices of counters and telemetry."""
    overrides: Overrides = NO_OVERRIDES
    """User overrides for the sources."""
    measured: Mapping[str, Signal] = field(default_factory=dict)
    """Signals from telemetry, on the run's clock."""
    cpu: tuple[CpuSamples, ...] = ()
    """Samples of the hosts' processors."""
    logs: tuple[LogSource, ...] = ()
    """The trainer's logs, whose steps are a side table."""
    side_tables: SideTables = field(default_factory=dict)
    """Rows next to the kernels, such as allocations, by their kind; `side` gives one."""
    others: Mapping[str, Run] = field(default_factory=dict)
    """Runs to compare with, by name; opened together with this one."""
    cubes: Cubes | None = None
    """Precomputed sums of exactly this table, if any."""
    sampled: Sampled = field(default_factory=dict)
    """The samples of each signal of each GPU in a few figures, from telemetry with times."""
    of_nodes: tuple[NodeSamples, ...] = ()
    """The same of figures of whole nodes."""
    status: str = ""
    """Why the run is known to be incomplete: out of memory, or stopped; '' if it isn't."""
    slots: Mapping[int, str] = field(default_factory=dict)
    """Number of a GPU in its node → its slot, such as `front`, from slots.csv."""
    layout: str = ""
    """The layout of the ranks by the manifest or the job's configuration next to the files."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The settings of the job: in the name of its directory, next to its files, or given."""
    groups: tuple[ProcessGroup, ...] = ()
    """The process groups that the traces name, but for those of one rank or of all."""
    recent: RecentSamples | None = None
    """The latest samples of its GPUs, where the run is followed."""
    world: int = 0
    """The number of ranks that the traces name, 0 without any."""
    recordings: tuple[RecordingSummary, ...] = ()
    """How `chopper record` made it, if it did."""
    awaited: frozenset[SideSource] = frozenset()
    """The kinds of source that join it later: tables that will have their columns keep their place,
    and nothing says that the run lacks them."""
    derived: DerivedValues | None = None
    """What was worked out of it before; None: nothing of it is kept."""

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """What of its data is missing or contradicts itself, the worst first."""
        of_traces = (
            replace(doubt, ranks=doubt.ranks or (source.rank,))
            for source in self.sources
            for doubt in source.doubts
        )
        of_counters = (doubt for source in self.counters for doubt in source.doubts)
        of_samples = (doubt for source in self.telemetry for doubt in source.doubts)
        every = (*of_traces, *of_counters, *of_samples, *self._missing_ranks())
        return merged_doubts(every)

    def _missing_ranks(self) -> Iterator[Doubt]:
        """Ranks that are missing among most of a job's; fewer may have been chosen."""
        ranks, world = self.ranks, self.world
        if len(ranks) < 2 or not self.sources:
            return
        every = range(world) if world > ranks[-1] else range(ranks[0], ranks[-1] + 1)
        there = frozenset(ranks)
        missing = [str(rank) for rank in every if rank not in there]
        if 0 < len(missing) < len(ranks):
            more = f" and {len(missing) - _NAMED_RANKS} more" if missing[_NAMED_RANKS:] else ""
            detail = ", ".join(missing[:_NAMED_RANKS]) + more
            yield Doubt("ranks", len(missing), len(every), detail)

    @cached_property
    def doubted(self) -> frozenset[str]:
        """The columns whose figures a doubt touches."""
        return frozenset(column for doubt in self.doubts for column in doubt.columns)

    def still_reading(self, kind: SideSource) -> str:
        """Why what a kind of source tells isn't known yet; empty where none joins it later."""
        return f"still reading the run's {kind.value}" if kind in self.awaited else ""

    def check_read(self, kind: SideSource) -> None:
        """Raises NothingToShow while a kind of source is read that joins the run later."""
        if why := self.still_reading(kind):
            raise NothingToShow(why)

    def mark(self, column: str) -> str:
        """What stands before a figure of the column in a sentence: `~` where a doubt touches it."""
        return "~" if column in self.doubted else ""

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({gpu.rank for gpu in self.gpus}))

    @cached_property
    def rank_of(self) -> Mapping[int, int]:
        """Number of a GPU → its rank."""
        return {gpu.index: gpu.rank for gpu in self.gpus}

    @cached_property
    def parallel(self) -> Parallel | None:
        """The coordinates of the ranks, None where unknown.

        The user's layout wins over process groups, these over the settings next to the files, and
        these over the names of the files. Raises UsageError if the user's doesn't fit the ranks.
        """
        world = max(self.world, max(self.ranks, default=-1) + 1)
        is_stated = self.world == world
        if self.overrides.parallel:
            layout = parse_layout(self.overrides.parallel)
            return parallel_of_layout(layout, self.ranks, world, is_stated=is_stated)
        found = parallel_of_groups(self.groups, self.ranks, world)
        if found is None and not self.layout:
            found = parallel_of_names({each.rank: each.path for each in self.sources}, world)
        if found is not None:
            return found
        sizes = {name: size for name, size in self.settings.items() if name in DIMENSIONS}
        stated = parse_layout(self.layout) if self.layout else layout_of_settings(sizes)
        if stated is None:
            return None
        origin = FROM_SETTINGS if self.layout else FROM_DIRECTORY
        try:
            return parallel_of_layout(stated, self.ranks, world, origin, is_stated=is_stated)
        except UsageError:
            return None  # The settings describe another number of ranks.

    @cached_property
    def _products(self) -> frozenset[str]:
        named = (gpu for gpu in self.gpus if gpu.device != NO_DEVICE or gpu.hardware)
        return frozenset(gpu.hardware for gpu in named)

    @property
    def hardware(self) -> Hardware | None:
        """The specification of the run's GPUs, None if it is unknown or they differ."""
        described, named = self.described_hardware, self.overrides.hardware
        # A file's specification was read when the run was opened.
        given = hardware_of(named) if named and not is_file(named) else None
        if described is not None and (given is None or given.name == described.name):
            return described
        if given is not None:
            return given
        known = {hardware_of(product) for product in self._products}
        return known.pop() if len(known) == 1 else None

    @property
    def is_reconstructed(self) -> bool:
        return self.times_mark == RECONSTRUCTED

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that distinguish the run's figures from measured ones, for every screen."""
        generated = ("generated",) if self.generated is not None else ()
        return (*generated, *((self.times_mark,) if self.times_mark else ()))

    @cached_property
    def times_mark(self) -> str:
        """`reconstructed`, `simulated` or `predicted` where times were not measured, else ''."""
        if self.overrides.predicted:
            return PREDICTED
        clocks = {source.clock for source in self.sources}  # Those of ten thousand are few.
        return next((mark for mark in TIMES_NOTES for each in clocks if each.startswith(mark)), "")

    @cached_property
    def origin_ns(self) -> int:
        if self.is_sampled_only:
            return self.sampled_ns[0]
        return int(self.tree().node(()).min("start_ns")[0])

    @cached_property
    def sampled_ns(self) -> tuple[int, int]:
        """The first and the last sample of its GPUs; (0, 0) without any."""
        found = [each for gpus in self.sampled.values() for each in gpus.values()]
        if not found:
            return 0, 0
        return min(each.first_ns for each in found), max(each.last_ns for each in found)

    @cached_property
    def end_ns(self) -> int:
        """The end of the run's last activity; of telemetry alone, its last sample."""
        if self.is_sampled_only:
            return self.sampled_ns[1]
        return int(self.tree().node(()).max("end_ns")[0])

    @cached_property
    def communicates(self) -> bool:
        """Whether any activity of it communicates between GPUs."""
        return bool(len(self.table)) and bool(self.tree().node(()).sum("collectives")[0])

    @property
    def is_sampled_only(self) -> bool:
        """Whether it has telemetry alone: no activity of any GPU.

        The rows of its table are the intervals between the samples of a GPU.
        """
        return not len(self.table) or self.table.is_sampled

    @property
    def is_logged_only(self) -> bool:
        """Whether it has the logs of a trainer alone: no activity of any GPU, and no samples."""
        return not len(self.table) and not self.measured and len(self.side(TrainedSteps)) > 0

    @property
    def is_snapshot(self) -> bool:
        """Whether its memory is by snapshots of the allocator: it has no activity of any GPU."""
        return not len(self.table) and len(self.side(MemoryEvents)) > 0

    @cached_property
    def traced(self) -> frozenset[int]:
        if self.is_sampled_only:
            return frozenset()
        return frozenset(self.tree().codes_of("gpu").tolist())

    def side(self, kind: type[T]) -> T:
        found = self.side_tables.get(kind)
        return found if isinstance(found, kind) else empty(kind)

    @cached_property
    def memo(self) -> Memo:
        """Values computed once for this run: `run.memo(key, make)`."""
        table = self.table
        columns = [getattr(table, name) for name in table.__struct_fields__]
        measured = (*table.measured.values(), *self.measured.values())
        return Memo((self, table, self.cubes, self.sources, *columns, *measured))

    def kept(
        self,
        key: tuple[Hashable, ...],
        kind: type[Stored],
        make: Callable[[], Value],
        stored: Callable[[Value], Stored],
        restored: Callable[[Stored], Value],
        *,
        is_costly: bool = False,
    ) -> Value:
        """A value that is worked out once for the run's files, whatever process asks for it.

        It is kept as `kind`, which `stored` makes of it, and `restored` takes back; ValueError of
        either: it isn't kept, or isn't used. What takes no time isn't kept, unless it `is_costly`:
        what it was made of may have been remembered.
        """
        recalled = self.recalled(key, kind, restored)
        if recalled is not None:
            return recalled
        begun_s, place = monotonic(), self._kept_at()
        value = make()
        if place is not None and (is_costly or monotonic() - begun_s >= WORTH_KEEPING_S):
            place.keep(key, lambda: stored(value))
        return value

    def recalled(
        self, key: tuple[Hashable, ...], kind: type[Stored], restored: Callable[[Stored], Value]
    ) -> Value | None:
        """A value that was kept with the run's files; None without."""
        place = self._kept_at()
        known = None if place is None else place.recall(key, kind)
        with suppress(ValueError):
            return None if known is None else restored(known)
        return None

    def knows(
        self, key: tuple[Hashable, ...], kind: type[Stored], restored: Callable[[Stored], Value]
    ) -> bool:
        """Whether a value is remembered, as what was kept with the run's files is from here on."""
        if self.memo.has(key):
            return True
        known = self.recalled(key, kind, restored)
        if known is None:
            return False
        self.memo(key, lambda: known)
        return True

    def _kept_at(self) -> DerivedValues | None:
        """Where values of this run are kept: nowhere, once something of it was replaced."""
        return self.derived if self.derived is not None and self.derived.is_of(self) else None

    def tree(self, order: tuple[str, ...] = LEVELS, left_out: tuple[int, ...] = ()) -> Tree:
        """The tree in an order of the levels, without some iterations, made once.

        Raises UsageError for a parallel dimension that the run's ranks don't have.
        """

        def made() -> Tree:
            known = self.table.coordinates
            if unknown := [each for each in order if each in DIMENSIONS and each not in known]:
                why = f"differ in {', '.join(known)}" if known else "have no known layout"
                raise UsageError(
                    f"{self.name} has no level {unknown[0]}: its ranks {why}; "
                    "--parallel tp=2,pp=4 gives one"
                )
            if left_out:
                return self.tree(order).without(left_out)
            return Tree(self.table, order, self.cubes)

        return self.memo(("tree", order, left_out), made)

    def tree_of(self, view: View) -> Tree:
        """The tree that the figures of a view are computed from: truncated iterations take no
        part in it unless the view asks for them, nor does what runs outside of iterations."""
        return self.tree(view.order, self.uncounted(view))

    @property
    def pairs(self) -> Groups:
        """The activities by GPU and iteration."""
        return self.memo(("pairs",), lambda: self.tree().split((), ("gpu", "iteration")))

    @cached_property
    def cut_iterations(self) -> frozenset[int]:
        """The iterations that take no part in means: those that the profiling window truncates,
        that a GPU lacks, or that warm up."""
        return self._incomplete | self.warm_up

    @cached_property
    def _incomplete(self) -> frozenset[int]:
        return frozenset().union(*self.partial_iterations.values(), self.lacking)

    @cached_property
    def warm_up(self) -> frozenset[int]:
        """The first complete iteration of each window of the profiler that takes far longer than
        the others: over `_WARM_UP` times the median of all but the first ones."""
        if not len(self.table) or not self.table.has_times:
            return frozenset()
        numbers = self.pairs.codes("iteration").astype(np.int64)
        there = distinct(numbers[numbers != NO_LABEL])
        if len(there) <= _FEWEST_OTHERS:
            return frozenset()
        place = first_equal(there, numbers)
        own = np.flatnonzero(place >= 0)
        elapsed_ns = sums_of(self.pairs.elapsed_ns[own], place[own], len(there))
        took = ratios(elapsed_ns, counts_of(place[own], len(there)))
        complete = np.flatnonzero(~np.isin(there, sorted(self._incomplete)))
        window = np.cumsum(np.append(True, np.diff(there) != 1))[complete]
        is_first = np.append(True, window[1:] != window[:-1])[: len(complete)]
        others = took[complete[~is_first]]
        if len(others) < _FEWEST_OTHERS:
            return frozenset()
        is_long = is_first & (took[complete] > _WARM_UP * median_of(others))
        return frozenset(there[complete[is_long]].tolist())

    @cached_property
    def lacking(self) -> Mapping[int, tuple[int, ...]]:
        """The iterations that some GPUs with iterations lack → these GPUs."""
        if not len(self.table):
            return {}
        gpus, numbers = (self.pairs.codes(level) for level in ("gpu", "iteration"))
        gpus, numbers = gpus[numbers != NO_LABEL], numbers[numbers != NO_LABEL]
        every, (found, counts) = distinct(gpus), counted(numbers)
        return {
            number: tuple(sorted({*every.tolist()} - {*gpus[numbers == number].tolist()}))
            for number in found[counts < len(every)].tolist()
        }

    def takes_truncated(self, view: View) -> bool:
        """Whether truncated iterations take part in the figures of a view; raises NoSuchNode.

        They do if it takes them in (`cut=1`) or names an iteration, and where its node has no
        complete one.
        """
        if view.cut or "iteration" in dict(view.scope) or not len(self.table):
            return True
        return self._iterations(view) <= self.cut_of(view)

    def left_out(self, view: View) -> tuple[int, ...]:
        """The truncated iterations that take no part in the figures of a view, in rising order.

        Raises NoSuchNode.
        """
        return () if self.takes_truncated(view) else self.truncated(view)

    def uncounted(self, view: View) -> tuple[int, ...]:
        """The codes of iterations that take no part, with NO_LABEL for what is of none: that does
        where it is asked for, or where the view's node has no iteration."""
        is_asked = view.is_total or view.cut or "iteration" in dict(view.scope)
        if is_asked or not len(self.table) or not self._iterations(view):
            return self.left_out(view)
        is_there = NO_LABEL in self.pairs.codes("iteration")
        return (*((NO_LABEL,) if is_there else ()), *self.left_out(view))

    def truncated(self, view: View) -> tuple[int, ...]:
        """The truncated iterations of a view's node, in rising order; raises NoSuchNode."""
        if not self.cut_of(view):
            return ()
        return tuple(sorted(self.cut_of(view) & self._iterations(view)))

    def cut_of(self, view: View) -> frozenset[int]:
        """Totals have whatever is whole on a GPU; a step is one of all GPUs."""
        if view.is_total:
            return frozenset().union(*self.partial_iterations.values())
        return self.cut_iterations

    def _iterations(self, view: View) -> Set[int]:
        def found() -> Set[int]:
            groups = self.pairs
            if view.path:
                groups = self.tree(view.order).split(view.path, ("iteration",))
            return frozenset(groups.codes("iteration").tolist()) - {NO_LABEL}

        return self.memo(("iterations", view.order, view.path), found)

    def baseline_run(self, name: str) -> Run:
        if name not in self.others:
            raise UsageError(f"the baseline {name} is not open; start Chopper with it")
        return self.others[name]

    @property
    def has_telemetry(self) -> bool:
        """Whether a signal is telemetry's; others are counters sampled over time."""
        return any(not name.startswith((COUNTS_PER_US, SAMPLED)) for name in self.measured)

    @property
    def signal_names(self) -> tuple[str, ...]:
        """The names of the signals, the most informative first, those of parts last."""
        parts = [name for name in self.measured if is_part(name)]
        memory = MEMORY_SIGNALS if len(self.side(MemoryEvents)) else ()
        whole = (name for name in self.measured if name not in parts)
        return (*whole, *_RUNNING, *memory, *parts)

    def curve(self, name: str, gpu: int) -> IntegralCurve | None:
        """A signal of telemetry of a GPU; None where the GPU lacks it."""
        return self.measured[name].curves.get(gpu) if name in self.measured else None

    def signals(self, names: str) -> tuple[Signal, ...]:
        """The signals of names with commas between them; by default the first one of the run.

        Raises UsageError for an unknown one.
        """
        found = dict.fromkeys(filter(None, map(str.strip, names.split(","))))
        return tuple(map(self.signal, found)) or (self.signal(),)

    def signal(self, name: str = "") -> Signal:
        """A signal, created once; by default the first. Raises UsageError for an unknown one."""
        name = name or self.signal_names[0]
        if name in self.measured:
            return self.measured[name]
        memory = self.side(MemoryEvents)
        if name in MEMORY_SIGNALS and len(memory):
            signals: Mapping[str, Signal] = self.memo(("memory signals",), memory.signals)
            return signals[name]
        counted = any(each.startswith(COUNTS_PER_US) for each in self.measured)
        if counted and name.startswith(f"{SAMPLED}."):
            if self.hardware is None:
                why = "the product of the GPUs, which the files lack: --hardware MI300X gives it"
            else:
                why = "counters that this run has no samples of at the same times"
            raise UsageError(f"the signal {name!r} needs {why}")
        if name not in _RUNNING:
            return self.signal(one_named("signal", name, self.signal_names))
        title, kinds = _RUNNING[name]
        return self.memo(("signal", name), lambda: self._share_running(name, title, kinds))

    def _share_running(self, name: str, title: str, kinds: tuple[Kind, ...]) -> Signal:
        def curve(gpu: int) -> IntegralCurve:
            if kinds != (Kind.COMM,):
                return self._busy_curve(gpu, kinds)
            node, table = self.tree().node((str(gpu),)), self.table
            rows, span = node.selection, self._span_of(gpu)
            own = np.flatnonzero(table.kind[rows] == Kind.COMM)
            start, duration = table.start_ns[rows][own], table.duration_ns[rows][own]
            return share_running(start, duration, span, self._unseen(gpu))

        gpus = self.traced if self.table.has_times else ()
        own = tuple(gpu.index for gpu in self.gpus if gpu.index in gpus)
        return Signal(name, title, Unit.PERCENT, LazyMap(own, curve), 0.0, 100.0)

    def _span_of(self, gpu: int) -> tuple[int, int]:
        """A GPU's span: from its first activity or step to its last."""
        node, steps = self.tree().node((str(gpu),)), self.side(HostSteps).spans(gpu)
        begin, end = int(node.min("start_ns")[0]), int(node.max("end_ns")[0])
        return int(steps.start_ns.min(initial=begin)), int(steps.end_ns.max(initial=end))

    def _busy_curve(self, gpu: int, kinds: tuple[Kind, ...]) -> BusyCurve:
        node, table, is_idle = self.tree().node((str(gpu),)), self.table, len(kinds) == len(Kind)
        rows, states = node.selection, ("idle_ns",) if is_idle else ("compute_ns", "overlap_ns")

        def activities(own: Selection) -> tuple[Int64, Int64, Int64]:
            starts = table.start_ns[own]
            ends = starts + table.duration_ns[own]
            if not is_idle:
                # What doesn't compute takes no time.
                ends = np.where(table.kind[own] == kinds[0], ends, starts)
            charged = np.sum([table.column(state)[own] for state in states], axis=0)
            return starts, ends, charged - table.idle_after_ns[own] if is_idle else charged

        def at(places: Index) -> tuple[Int64, Int64, Int64]:
            return activities(places + rows.start if isinstance(rows, slice) else rows[places])

        starts, ends, charged = activities(rows)
        first, span = np.arange(0, len(starts), PART), self._span_of(gpu)
        parts = run_minima(starts, first), run_maxima(ends, first), run_sums(charged, first)
        edges = np.array(span, np.int64)
        known = (edges - edges[0]).astype(np.float64)
        unseen, after = self._unseen(gpu), table.idle_after_ns[rows]
        last = np.flatnonzero(after)
        spans = self.side(HostSteps).spans(gpu)
        until = spans.ends_of(table.iteration[rows][last], starts[last])
        last, until = last[until != NO_TIME], until[until != NO_TIME]
        in_turn = np.argsort(until)
        rests = TimeSpans((until - after[last])[in_turn], until[in_turn])
        return BusyCurve(
            edges,
            np.zeros(2),
            known,
            parts=parts,
            activities=at,
            count=len(starts),
            is_idle=is_idle,
            unseen=unseen,
            rests=rests,
        )

    @cached_property
    def _traces_of(self) -> Mapping[int | None, list[Source]]:
        return grouped_by(self.sources, lambda each: each.rank)

    def _unseen(self, gpu: int) -> TimeSpans:
        """The time of a GPU between two windows of the profiler, as far as they reach."""
        traces = self._traces_of.get(self.rank_of[gpu], ())
        begins = sorted(each.span_ns[0] for each in traces)[1:]
        rows = self.tree().node((str(gpu),)).selection
        if not begins:
            begin_ns, end_ns = between_programs(self, gpu)
            is_gap = end_ns > begin_ns
            return TimeSpans(
                *np.array([[begin_ns] if is_gap else [], [end_ns] if is_gap else []], np.int64)
            )
        start, steps = self.table.start_ns[rows], self.side(HostSteps).spans(gpu)
        end = np.append(start + self.table.duration_ns[rows], steps.end_ns)
        # A step begins before its first activity, and ends after it.
        of = np.append(start, steps.end_ns - 1)
        start = np.append(start, steps.start_ns)
        last = [int(end[of < begin].max()) for begin in begins]
        first = [int(start[of >= begin].min()) for begin in begins]
        return TimeSpans(np.array(last, np.int64), np.array(first, np.int64))


def located(run: Run, layout: str = "") -> Run:
    """The run with the coordinates of its GPUs as labels of its table, by a layout if given.

    Raises UsageError if the layout doesn't fit the ranks.
    """
    if layout:
        run = replace(run, overrides=replace(run.overrides, parallel=layout), derived=None)
    try:
        if run.parallel is None:
            return run
    except UsageError as error:
        raise UsageError(f"{run.name}: {error}") from error
    numbers = max(gpu.index for gpu in run.gpus) + 1
    coordinates = {name: np.full(numbers, NO_LABEL, np.int32) for name in run.parallel.sizes}
    for gpu in run.gpus:
        for name, place in run.parallel.coordinates.get(gpu.rank, {}).items():
            coordinates[name][gpu.index] = place
    table = replace(run.table, coordinates=coordinates)
    cubes = None if run.cubes is None else replace(run.cubes, table=table)
    return replace(run, table=table, cubes=cubes)


def scope_of(run: Run, view: View) -> tuple[int, int]:
    """First start and last end of a view's node, in ns since the run's first start.

    Truncated iterations are part of the time, whether or not they count.
    """
    if run.is_sampled_only and not (view.path and len(run.table)):
        return 0, run.sampled_ns[1] - run.sampled_ns[0]
    node = run.tree(view.order).node(view.path)
    start, end = int(node.min("start_ns")[0]), int(node.max("end_ns")[0])
    return start - run.origin_ns, end - run.origin_ns


def interval_of(run: Run, view: View) -> Interval:
    """The time range of a view: its window, by default its scope.

    Raises NoSuchNode, and UsageError where the window contains no time of the run.
    """
    end = run.end_ns - run.origin_ns
    scope = scope_of(run, view)
    if not view.path and view.window == ALL_TIME:
        ends = longer_program(run, *(run.origin_ns + time for time in scope))
        scope = (ends[0] - run.origin_ns, ends[1] - run.origin_ns)
    return resolved(view.window, scope, end)


def between_programs(run: Run, gpu: int) -> tuple[int, int]:
    """Begin and end of the idle time, in ns, that is most of a GPU's without steps, and so long
    that two programs ran one after another; (0, 0) without any. No GPU is charged with its own.
    """

    def found() -> tuple[int, int]:
        rows = run.tree().node((str(gpu),)).selection
        has_steps = bool((run.table.iteration[rows] != NO_LABEL).any())
        return (0, 0) if has_steps else _between_programs(run.table, rows)

    return run.memo(("between programs", gpu), found)


def _between_programs(table: KernelTable, rows: Selection) -> tuple[int, int]:
    parts = [(table.start_ns[own], table.duration_ns[own]) for own in pieces_of(rows)]
    if not parts:
        return 0, 0
    first = min(int(start.min()) for start, _ in parts)
    last = max(int((start + duration).max()) for start, duration in parts)
    # Idle time of more than half of the span has the middle of it inside.
    middle, left, right = first + (last - first) // 2, first, last
    for start, duration in parts:
        is_before = start <= middle
        left = max(left, int((start + duration).max(initial=first, where=is_before)))
        right = min(right, int(start.min(initial=last, where=~is_before)))
        if left >= right:
            return 0, 0  # Something runs there, as in nearly every run.
    is_gap = is_between_programs(np.array([right - left]), last - first).any()
    return (left, right) if is_gap else (0, 0)


def longer_program(run: Run, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Of the time of two programs that of the longer one; else all of it. A trace that spans the
    idle time between them is of one program, if it has steps."""
    left_ns, next_ns = run.memo(
        ("between all programs",), lambda: _between_programs(run.table, slice(0, len(run.table)))
    )
    if left_ns >= next_ns:
        return begin_ns, end_ns
    spans = (each.span_ns for each in run.sources)
    is_one = any(begin <= left_ns and next_ns <= end for begin, end in spans)
    if is_one and (run.table.iteration != NO_LABEL).any():
        return begin_ns, end_ns
    return max((begin_ns, left_ns), (next_ns, end_ns), key=lambda part: part[1] - part[0])
