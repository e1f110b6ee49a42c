"""CPU: which of the host's processors are busy, logical and physical."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import Metric, Values, column, numbered
from chopper_core.model.charts import Chart, HeatMap, LineChart, Series
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import distinct, median_of, ranked, sums_of
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="cpu",
    title="CPU",
    question="How many of the host's processors are busy, logical and physical, and which?",
    by=("iteration", "cpu", "core"),
    of="above:PERCENT or file:NAME",
    no_statistic="shows means over samples of all processors",
)


_OPTION: Final = re.compile(r"(above):(\d{1,3}(?:\.\d+)?)|(file):([^,:]+)")
_NO_SAMPLES: Final = (
    "no CPU samples on the run's clock; docs/telemetry.md describes the file format and has a "
    "sampler"
)
_MAX_POINTS: Final = 240
_MAX_BINS: Final = 120
_MAX_CORES: Final = 24
_SINCE: Final = "Samples taken within the scope's time on any GPU."
_NO_CORES: Final = "the file doesn't give the physical core of every logical processor"

ACTIVE: Final = column(f"""active_cpus | | active
    Logical processors above the level (of=above:PERCENT, 0 by default), mean. {_SINCE}
    missing: no sample in the row's time
    source: CPU samples""")
MOST: Final = column(f"""max_active_cpus | | max
    The largest number of logical processors above the level in a sample.
    missing: {ACTIVE.missing_because}
    source: CPU samples""")
WORK: Final = column(f"""cpu_work | | work
    Sum of the processors' shares of time, mean over the samples: the number of processors
    that, fully loaded, would do the same work; the original's C_min.
    missing: {ACTIVE.missing_because}
    source: CPU samples; UnaryLab/chopper cpu_active_cores.py""")
LOGICAL: Final = column(f"""logical_pct | % | logical
    Median over the samples of the share of logical processors above the level.
    missing: {ACTIVE.missing_because}
    source: CPU samples; UnaryLab/chopper cpu_phys_log.py""")
CORES: Final = column(f"""active_cores | | cores
    Physical cores with a logical processor above the level, mean over the samples.
    missing: {ACTIVE.missing_because}, or {_NO_CORES}
    source: CPU samples""")
PHYSICAL: Final = column(f"""physical_pct | % | physical
    Median over the samples of the share of physical cores with a logical processor above the
    level.
    missing: {CORES.missing_because}
    source: CPU samples; UnaryLab/chopper cpu_phys_log.py""")
SHARED: Final = column(f"""shared_cores | | shared
    Physical cores with two or more logical processors above the level, mean.
    missing: {CORES.missing_because}
    source: CPU samples""")
SAMPLES: Final = column("""cpu_samples | | samples
    Samples in the row's time.
    source: CPU samples""")
BUSY: Final = column(f"""cpu_busy_pct | % | busy
    Mean share of time in which the processor was busy; of a core the sum of its processors'.
    missing: {ACTIVE.missing_because}
    source: CPU samples""")
ACTIVE_SHARE: Final = column(f"""active_pct | % | active
    Share of the samples in which the processor, or one of the core's, is above the level.
    missing: {ACTIVE.missing_because}
    source: CPU samples""")
CORE: Final = column(f"""core | | core
    The physical core.
    missing: {_NO_CORES}
    source: CPU samples""")
THREADS: Final = column(f"""busy_threads | | threads
    Logical processors of the core above the level, mean over the samples.
    missing: {ACTIVE.missing_because}
    source: CPU samples""")


class Use(Struct, frozen=True, eq=False):
    """The samples of one host in a span of time, and which are above the level."""

    cpus: Int64
    cores: Int64
    """The place of each processor's core in `core_names`; empty where cores aren't known."""
    core_names: Int64
    times_ns: Int64
    percent: Float64
    active: Mask

    def within(self, chosen: Mask) -> Use:
        """Some of the samples."""
        return Use(
            self.cpus,
            self.cores,
            self.core_names,
            self.times_ns[chosen],
            self.percent[chosen],
            self.active[chosen],
        )

    @property
    def busy_threads(self) -> Float64:
        """How many processors of each core are above the level: samples x cores."""
        threads = np.zeros((len(self.times_ns), len(self.core_names)))
        for cpu, core in enumerate(self.cores.tolist()):
            threads[:, core] += self.active[:, cpu]
        return threads

    @property
    def work(self) -> Float64:
        """The sum of the shares of time in each sample, in processors."""
        return np.asarray(np.nansum(self.percent, axis=1) / 100.0, np.float64)


def answer(run: Run, view: View) -> ViewResult:
    """The use of the processors by iteration, by logical processor or by physical core."""
    level, samples = _chosen(run, view.of)
    by = view.by or "iteration"
    begin, end = _span(run, view)
    whole = _use(samples, level)
    use = whole.within((whole.times_ns >= begin) & (whole.times_ns <= end))
    rows = {"iteration": _by_iteration, "cpu": _by_cpu, "core": _by_core}[by]
    labels, own = rows(run, view, use)
    known = tuple(metric.name for metric, values in own if values.present().any())
    return ViewResult(
        level=by,
        labels=labels,
        columns=tuple(own),
        opens=lambda row: child_of(view, "iteration", labels[row]) if by == "iteration" else view,
        total=_total(own, use) if by == "iteration" else {},
        sort="" if by == "iteration" else "-cpu_busy_pct",
        shown=known,
        headline=_headline(use, level),
        notes=_notes(run, samples, use, level),
        charts=_charts(run, use),
    )


def _chosen(run: Run, text: str) -> tuple[float, CpuSamples]:
    """The level of activity and the file of an address; raises UsageError."""
    placed = [samples for samples in run.cpu if samples.offset_ns is not None]
    if not placed:
        reasons = "; ".join(f"{Path(each.path).name}: {each.method}" for each in run.cpu)
        raise NothingToShow(f"{_NO_SAMPLES}{f' ({reasons})' if reasons else ''}")
    level, name = 0.0, ""
    for part in filter(None, text.split(",")):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise UsageError(
                "the view cpu takes of=above:PERCENT (what counts as active) and file:NAME (of "
                f"several files), with a comma between them, not {text!r}"
            )
        level, name = (float(match[2]), name) if match[1] else (level, match[4])
    found = [samples for samples in placed if name in samples.path]
    if not found:
        there = ", ".join(Path(samples.path).name for samples in placed)
        raise UsageError(f"no CPU samples in a file {name!r}; the files are {there}")
    return level, found[0]


def _span(run: Run, view: View) -> tuple[int, int]:
    node = run.tree_of(view).node(view.path)
    return int(node.min("start_ns")[0]), int(node.max("end_ns")[0])


def _use(samples: CpuSamples, level: float) -> Use:
    names, cores = ranked(samples.cores)
    if not samples.has_cores:
        names, cores = np.empty(0, np.int64), np.empty(0, np.int64)
    with np.errstate(invalid="ignore"):
        active = samples.percent > level
    return Use(samples.cpus, cores, names, samples.times_ns, samples.percent, np.asarray(active))


Own = list[tuple[Metric, Values]]


def _by_iteration(run: Run, view: View, use: Use) -> tuple[list[str], Own]:
    steps = run.tree_of(view).split(view.path, ("iteration",))
    codes = [int(code) for code in steps.codes("iteration")]
    starts, ends = steps.min("start_ns"), steps.max("end_ns")
    kept = [place for place, code in enumerate(codes) if code != NO_LABEL]
    parts = [
        use.within((use.times_ns >= starts[place]) & (use.times_ns <= ends[place]))
        for place in kept
    ]
    figures = [_figures(part) for part in parts]
    labels = [str(codes[place]) for place in kept]
    return labels, [
        (metric, _column([figure[place] for figure in figures], metric in (MOST, SAMPLES)))
        for place, metric in enumerate(_FIGURES)
    ]


def _column(figures: list[float], counts: bool) -> Values:
    """Figures as a column, counts as whole numbers; NaN is missing."""
    found = np.array(figures, np.float64)
    missing = ~np.isfinite(found)
    if not counts:
        return Values(found, missing)
    return Values(np.where(missing, 0, found).astype(np.int64), missing)


_FIGURES: Final = (ACTIVE, MOST, WORK, LOGICAL, CORES, PHYSICAL, SHARED, SAMPLES)


def _figures(use: Use) -> tuple[float, ...]:
    """The figures of `_FIGURES`; NaN where not known."""
    count = len(use.times_ns)
    if not count:
        return (*(np.nan,) * 7, 0.0)
    active = use.active.sum(axis=1)
    found = [
        float(active.mean()),
        float(active.max()),
        float(use.work.mean()),
        100.0 * median_of(active) / len(use.cpus),
    ]
    if not len(use.core_names):
        return (*found, np.nan, np.nan, np.nan, float(count))
    threads = use.busy_threads
    cores = (threads > 0).sum(axis=1)
    found += [
        float(cores.mean()),
        100.0 * median_of(cores) / len(use.core_names),
        float((threads > 1).sum(axis=1).mean()),
        float(count),
    ]
    return tuple(found)


def _total(own: Own, use: Use) -> dict[str, int | float]:
    figures = zip(own, _figures(use), strict=True)
    return {
        metric.name: int(figure) if metric in (MOST, SAMPLES) else figure
        for (metric, _), figure in figures
        if np.isfinite(figure)
    }


def _means(values: Float64) -> Float64:
    """Means over the known samples; NaN without any."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=0) / count, np.float64)


def _by_cpu(run: Run, view: View, use: Use) -> tuple[list[str], Own]:
    no_cores = not len(use.core_names)
    cores = np.zeros(len(use.cpus), np.int64) if no_cores else use.core_names[use.cores]
    known = np.isfinite(use.percent)
    shares = _means(np.where(known, 100.0 * use.active, np.nan))
    return [str(cpu) for cpu in use.cpus.tolist()], [
        (BUSY, numbered(_means(use.percent))),
        (ACTIVE_SHARE, numbered(shares)),
        (CORE, Values(cores, np.full(len(cores), no_cores))),
    ]


def _by_core(run: Run, view: View, use: Use) -> tuple[list[str], Own]:
    if not len(use.core_names):
        raise NothingToShow(f"no rows by core: {_NO_CORES}")
    threads = use.busy_threads
    busy = sums_of(np.nan_to_num(_means(use.percent)), use.cores, len(use.core_names))
    some = threads > 0
    return [str(core) for core in use.core_names.tolist()], [
        (BUSY, numbered(busy if len(threads) else busy * np.nan)),
        (ACTIVE_SHARE, numbered(_means(np.where(some, 100.0, 0.0)))),
        (THREADS, numbered(_means(threads))),
    ]


def _headline(use: Use, level: float) -> tuple[str, ...]:
    active, most, work, logical, cores, physical, shared, count = _figures(use)
    if not count:
        return ("no CPU sample in the scope's time",)
    above = f"above {level:g} %" if level else "active"
    text = (
        f"{active:.1f} of {len(use.cpus)} logical processors are {above} on average, at most "
        f"{most:.0f}; together they do the work of {work:.1f} (median {logical:.1f} % in use)"
    )
    if not np.isfinite(cores):
        return (text,)
    return (
        text,
        f"they are on {cores:.1f} of {len(use.core_names)} physical cores (median "
        f"{physical:.1f} %); on {shared:.1f} cores both share it",
    )


def _notes(run: Run, samples: CpuSamples, use: Use, level: float) -> tuple[str, ...]:
    name = Path(samples.path).name
    notes = [f"{name}: a sample every {samples.period_ns / 1e6:.3g} ms; {samples.method}"]
    others = [Path(each.path).name for each in run.cpu if each is not samples]
    if others:
        notes.append(f"of=file:NAME takes another file: {', '.join(others)}")
    if not len(use.core_names):
        notes.append(f"physical cores are unknown: {_NO_CORES}")
    if not level:
        notes.append(
            "a processor counts as active with any load above 0 %, as in the original; "
            "of=above:5 counts those above 5 %"
        )
    return tuple(notes)


def _charts(run: Run, use: Use) -> tuple[Chart, ...]:
    count = len(use.times_ns)
    if not count:
        return ()
    some = distinct(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.intp))
    times = (use.times_ns[some] - run.origin_ns) / 1e6
    lines = [
        Series("logical active", use.active.sum(axis=1)[some].astype(np.float64)),
        Series("work", use.work[some]),
    ]
    heat: tuple[Chart, ...] = ()
    if len(use.core_names):
        threads = use.busy_threads
        lines.insert(1, Series("physical active", (threads > 0).sum(axis=1)[some].astype(float)))
        heat = (_heat(run, use, threads),)
    chart = LineChart("active processors", "", "time", "ms", (times,) * len(lines), tuple(lines))
    return (chart, *heat)


def _heat(run: Run, use: Use, threads: Float64) -> HeatMap:
    """Busy processors of the busiest cores over time."""
    busy = np.flatnonzero(threads.any(axis=0))
    most = busy[np.argsort(-threads[:, busy].mean(axis=0), kind="stable")[:_MAX_CORES]]
    shown = np.sort(most)
    edges = np.linspace(0, len(use.times_ns), min(len(use.times_ns), _MAX_BINS) + 1).astype(np.intp)
    means = np.add.reduceat(threads[:, shown], edges[:-1], axis=0) / np.diff(edges)[:, None]
    starts = (use.times_ns[edges[:-1]] - run.origin_ns) / 1e6
    return HeatMap(
        "busy logical processors of each physical core",
        "",
        tuple(f"core {core}" for core in use.core_names[shown].tolist()),
        tuple(f"{start:.0f}" for start in starts.tolist()),
        "ms",
        means.T,
    )
