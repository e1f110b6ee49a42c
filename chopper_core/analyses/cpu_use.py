"""How busy a host's processors are, logical and physical, by samples of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.rows import FigureRows
from chopper_core.columns import Values, numbered, row_columns
from chopper_core.columns.metric import absent, quotient
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import median_of, ranked, sums_of

_NO_SAMPLE: Final = "no sample in the row's time"
NO_CORES: Final = "the file doesn't give the physical core of every logical processor"

CPU_STEP_ROWS: Final = "CPU samples by step"
PROCESSOR_ROWS: Final = "processors of a host"
OF_STEPS: Final = row_columns(
    CPU_STEP_ROWS,
    f"""
    active_cpus | | active
        Logical processors above the level (of=above:PERCENT, 0 by default), mean. Samples taken
        within the scope's time on any GPU.
    max_active_cpus | | max
        The largest number of logical processors above the level in a sample.
    cpu_work | | work
        Sum of the processors' shares of time, mean over the samples: the number of processors
        that, fully loaded, would do the same work; the original's C_min.
        source: CPU samples; UnaryLab/chopper cpu_active_cores.py
    logical_pct | % | logical
        Median over the samples of the share of logical processors above the level.
        source: CPU samples; UnaryLab/chopper cpu_phys_log.py
    active_cores | | cores
        Physical cores with a logical processor above the level, mean over the samples.
        missing: {_NO_SAMPLE}, or {NO_CORES}
    physical_pct | % | physical
        Median over the samples of the share of physical cores with a logical processor above the
        level.
        missing: {_NO_SAMPLE}, or {NO_CORES}
        source: CPU samples; UnaryLab/chopper cpu_phys_log.py
    shared_cores | | shared
        Physical cores with two or more logical processors above the level, mean.
        missing: {_NO_SAMPLE}, or {NO_CORES}
    cpu_samples | | samples
        Samples in the row's time.
        missing:
""",
    missing=_NO_SAMPLE,
    source="CPU samples",
)
row_columns(
    PROCESSOR_ROWS,
    f"""
    cpu_busy_pct | % | busy
        Mean share of time in which the processor was busy; of a core the sum of its processors'.
    active_pct | % | active
        Share of the samples in which the processor, or one of the core's, is above the level.
    core | | core
        The physical core.
        missing: {NO_CORES}
    busy_threads | | threads
        Logical processors of the core above the level, mean over the samples.
""",
    missing=_NO_SAMPLE,
    source="CPU samples",
)


class CpuUse(Struct, frozen=True, eq=False):
    """The samples of one host in a span of time, and which are above the level."""

    samples: CpuSamples
    percent: Float64
    times_ns: Int64
    active: Mask
    cores: Int64
    """The place of each processor's core in `core_names`; empty where cores aren't known."""
    core_names: Int64

    @classmethod
    def of(cls, samples: CpuSamples, level: float) -> CpuUse:
        names, cores = ranked(samples.cores if samples.has_cores else np.empty(0, np.int64))
        with np.errstate(invalid="ignore"):
            active = np.asarray(samples.percent > level)
        return cls(samples, samples.percent, samples.times_ns, active, cores, names)

    def between(self, begin_ns: int, end_ns: int) -> CpuUse:
        own = (self.times_ns >= begin_ns) & (self.times_ns <= end_ns)
        times, percent, active = (each[own] for each in (self.times_ns, self.percent, self.active))
        return replace(self, times_ns=times, percent=percent, active=active)

    @property
    def busy_threads(self) -> Float64:
        """Samples x cores: how many of a core's processors are above the level."""
        threads = np.zeros((len(self.times_ns), len(self.core_names)))
        for cpu, core in enumerate(self.cores.tolist()):
            threads[:, core] += self.active[:, cpu]
        return threads

    @property
    def work(self) -> Float64:
        return np.asarray(np.nansum(self.percent, axis=1) / 100.0, np.float64)

    def figures(self) -> dict[str, float]:
        """The figures of `OF_STEPS`; NaN where not known."""
        found = dict.fromkeys(OF_STEPS, np.nan)
        found["cpu_samples"] = count = float(len(self.times_ns))
        if count:
            active = self.active.sum(axis=1)
            found["active_cpus"] = float(active.mean())
            found["max_active_cpus"] = float(active.max())
            found["cpu_work"] = float(self.work.mean())
            found["logical_pct"] = 100.0 * median_of(active) / self.active.shape[1]
        if count and len(self.core_names):
            threads = self.busy_threads
            cores = (threads > 0).sum(axis=1)
            found["active_cores"] = float(cores.mean())
            found["physical_pct"] = 100.0 * median_of(cores) / len(self.core_names)
            found["shared_cores"] = float((threads > 1).sum(axis=1).mean())
        return found


def cpu_by_step(run: Run, view: View, use: CpuUse) -> FigureRows:
    steps = run.tree_of(view).split(view.path, ("iteration",))
    codes, starts, ends = steps.codes("iteration"), steps.min("start_ns"), steps.max("end_ns")
    kept = np.flatnonzero(codes != NO_LABEL).tolist()
    figures = _figures([use.between(starts[place], ends[place]) for place in kept])
    return FigureRows("iteration", [str(codes[place]) for place in kept], figures, _figures([use]))


def _figures(uses: Sequence[CpuUse]) -> dict[str, Values]:
    figures = [use.figures() for use in uses]
    own = {name: numbered([each[name] for each in figures]) for name in OF_STEPS}
    for name in ("max_active_cpus", "cpu_samples"):
        own[name] = Values(own[name].known(0.0).astype(np.int64), own[name].missing)
    return own


def _means(values: Float64) -> Values:
    """Means over the known samples; missing without any."""
    known = np.isfinite(values)
    return quotient(np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0))


def by_processor(use: CpuUse) -> FigureRows:
    cores = use.core_names[use.cores]
    figures = {
        "cpu_busy_pct": _means(use.percent),
        "active_pct": _means(np.where(np.isfinite(use.percent), 100.0 * use.active, np.nan)),
        "core": Values(cores) if len(cores) else absent(len(use.samples.cpus), 0),
    }
    return FigureRows("cpu", list(map(str, use.samples.cpus.tolist())), figures)


def by_core(use: CpuUse) -> FigureRows:
    """Raises NothingToShow where the cores aren't known."""
    if not len(use.core_names):
        raise NothingToShow(f"no rows by core: {NO_CORES}")
    threads = use.busy_threads
    busy = sums_of(_means(use.percent).known(0.0), use.cores, len(use.core_names))
    figures = {
        "cpu_busy_pct": Values(busy) if len(threads) else absent(len(busy)),
        "active_pct": _means(np.where(threads > 0, 100.0, 0.0)),
        "busy_threads": _means(threads),
    }
    return FigureRows("core", list(map(str, use.core_names.tolist())), figures)
