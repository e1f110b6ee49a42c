"""Samples of a signal within spans of time: means, quantiles, rolling quantiles, bursts.

And the figures of GPUs that telemetry alone describes, over the time that its samples cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.lib.stride_tricks import sliding_window_view

from chopper_core.align.telemetry import POWERS, power_of
from chopper_core.analyses.rows import Own
from chopper_core.analyses.step_times import StepWindows, step_windows, untraced_in
from chopper_core.columns import METRICS, Metric, Reduces, Scope, computed_column, numbered
from chopper_core.graph.process_groups import nodes_of
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve, TimeSpans, while_busy
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Rows
from chopper_core.util.grouping import distinct, median_of, places_by, quantiles_along, ratios

_MAX_ROLLED: Final = 1 << 16
"""With more values, rolling quantiles use evenly chosen windows."""
MAX_POINTS: Final = 240
"""With more samples, evenly chosen ones are drawn."""
_TRAFFIC: Final = {"ib_read_bytes": "received", "ib_write_bytes": "sent"}
LOW_CLOCK: Final = 0.97
"""A clock below this part of the GPU's highest is low."""
BUSY_PCT: Final = 90.0
"""Only while the GPU is used this much does a low clock mean that something limits it."""


class Sampled(Rows, frozen=True, eq=False):
    """The samples of a signal within spans of time."""

    begins_ns: Int64
    ends_ns: Int64
    """For which time each sample stands, beyond the stretches too."""
    values: Float64
    weights_ns: Int64
    """How much of that time is within the stretches; never 0."""

    @property
    def middles_ns(self) -> Int64:
        return self.begins_ns + (self.ends_ns - self.begins_ns) // 2

    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights_ns)) if len(self) else np.nan

    def most(self) -> float:
        return float(self.values.max()) if len(self) else np.nan

    def least(self) -> float:
        return float(self.values.min()) if len(self) else np.nan

    def deviation(self) -> float:
        if not len(self):
            return np.nan
        squares = (self.values - self.mean()) ** 2
        return float(np.sqrt(np.average(squares, weights=self.weights_ns)))

    def quantile(self, share: float) -> float:
        """The least value that isn't exceeded in at least this share of the time."""
        return float(self.quantiles((share,))[0])

    def quantiles(self, shares: Sequence[float]) -> Float64:
        """Such values of several shares; NaN without samples."""
        if not len(self):
            return np.full(len(shares), np.nan)
        order = np.argsort(self.values, kind="stable")
        time = np.cumsum(self.weights_ns[order])
        places = np.searchsorted(time, np.asarray(shares) * time[-1], "left")
        found: Float64 = self.values[order][np.minimum(places, len(order) - 1)]
        return found

    def period_ns(self) -> float:
        return median_of(np.diff(self.middles_ns)) if len(self) > 1 else np.nan

    def window(self, window_ns: float) -> int:
        """How many samples a window of this length has, at least one."""
        period = self.period_ns()
        return max(round(window_ns / period), 1) if period > 0 else 1

    def rolling(self, window_ns: float, share: float) -> tuple[Int64, Float64]:
        """The quantile over each window of neighbouring samples, and the ends of the windows.

        As pandas' rolling(n).quantile(): windows of n samples, those that have all of them.
        """
        size = self.window(window_ns)
        if len(self) < size or not len(self):
            return np.empty(0, np.int64), np.empty(0)
        step = max((len(self) - size + 1) * size // _MAX_ROLLED, 1)
        windows = sliding_window_view(self.values, size)[::step]
        return self.ends_ns[size - 1 :][::step], quantiles_along(windows.T, (share,))[0]

    def above(self, level: float) -> tuple[int, int, int]:
        """Runs of neighbouring samples above a level: how many, their time, the longest one's."""
        over = np.concatenate([[False], self.values > level, [False]])
        edges = np.flatnonzero(over[1:] != over[:-1])
        if not len(edges):
            return 0, 0, 0
        time = np.concatenate([[0], np.cumsum(self.weights_ns)])
        lengths = time[edges[1::2]] - time[edges[::2]]
        return len(lengths), int(lengths.sum()), int(lengths.max())


_NOTHING: Final = np.empty(0, np.int64)
NO_SAMPLES: Final = Sampled(_NOTHING, _NOTHING, np.empty(0), _NOTHING)


def even_places(count: int) -> Index:
    """The places of at most `MAX_POINTS` of so many samples, evenly."""
    return distinct(np.linspace(0, count - 1, min(count, MAX_POINTS)).round().astype(np.intp))


def gpus_of(run: Run) -> list[int]:
    return [gpu.index for gpu in run.gpus]


def spans_of_samples(run: Run) -> dict[int, TimeSpans]:
    """The time of each GPU's samples; of a GPU without any, that of the run's."""

    spans = {}
    for gpu in gpus_of(run):
        own = [by_gpu[gpu] for by_gpu in run.sampled.values() if gpu in by_gpu]
        begin = min((each.first_ns for each in own), default=run.sampled_ns[0])
        end = max((each.last_ns for each in own), default=run.sampled_ns[1])
        spans[gpu] = TimeSpans(np.array([begin], np.int64), np.array([end], np.int64))
    return spans


def spans_of(run: Run, view: View) -> dict[int, TimeSpans]:
    """The time of a view's scope on each of its GPUs.

    Of GPUs and steps the span from the first start to the last end; of deeper levels the
    time in which any of its activities runs.
    """
    if run.is_sampled_only:
        return spans_of_samples(run)
    tree = run.tree_of(view)
    levels = {level for level, _ in view.scope}
    if levels <= {"gpu", "iteration"}:
        groups = tree.split(view.path, ("gpu",))
        starts, ends = groups.min("start_ns"), groups.max("end_ns")
        return {
            int(gpu): TimeSpans(starts[place : place + 1], ends[place : place + 1])
            for place, gpu in enumerate(groups.codes("gpu").tolist())
        }
    node = tree.node(view.path)
    gpu_of, start, duration = (node.values(name) for name in ("gpu", "start_ns", "duration_ns"))
    return {
        gpu: TimeSpans.running(start[own], duration[own]) for gpu, own in places_by(gpu_of).items()
    }


def sampled(curve: IntegralCurve, stretches: TimeSpans) -> Sampled:
    """The samples of a curve that stand for some of the stretches' time."""
    low = 2 * (int(np.searchsorted(curve.edges_ns, stretches.starts_ns[0], "left")) // 2)
    high = 2 * ((int(np.searchsorted(curve.edges_ns, stretches.ends_ns[-1], "right")) + 1) // 2)
    begins, ends = curve.edges_ns[low:high].reshape(-1, 2).T
    weights = stretches.within(begins, ends)
    covered, area = (
        np.diff(values[low:high].reshape(-1, 2), axis=1)[:, 0]
        for values in (curve.covered_ns, curve.integral)
    )
    kept = (covered > 0) & (weights > 0)
    return Sampled(begins[kept], ends[kept], area[kept] / covered[kept], weights[kept])


def busy_curve(run: Run, gpu: int, curve: IntegralCurve) -> IntegralCurve:
    """The samples of a GPU's signal that were taken while its activities ran."""
    rows = run.tree().node((str(gpu),)).selection
    return while_busy(curve, run.table.start_ns[rows], run.table.duration_ns[rows])


def clock_while_busy(run: Run, gpu: int, stretches: TimeSpans) -> Sampled:
    """The samples of a GPU's clock while it is busy: by its activities, else by its utilization."""
    clock, use = (run.curve(name, gpu) for name in ("gfx_mhz", "gfx_util_pct"))
    if clock is None:
        return NO_SAMPLES
    if gpu in run.traced and not run.is_sampled_only:
        return sampled(busy_curve(run, gpu, clock), stretches)
    own = sampled(clock, stretches)
    return own.take(means_during(own, use) >= BUSY_PCT)


def powers_of(run: Run, view: View) -> dict[int, float]:
    """The mean power of each GPU of a scope, in W; NaN where unknown.

    Energy over the time that it is charged for, so that power is step energy over step time; of a
    GPU whose telemetry covers only a part of that time, the mean of the samples. A GPU without a
    trace has the steps of the others.
    """
    # Of steps, also where sums are of all that ran.
    plain = replace(view, sort="", filter="", columns=(), is_total=False)
    return run.memo(("powers", plain), lambda: _powers_of(run, plain))


def _powers_of(run: Run, view: View) -> dict[int, float]:
    nodes = None if run.is_sampled_only else run.tree_of(view).split(view.path, ("gpu",))
    found = {} if nodes is None else dict.fromkeys(nodes.codes("gpu").tolist(), np.nan)
    # Of ten thousand GPUs without telemetry their spans take longer than all that follows.
    is_needed = nodes is None or "power_w" in run.measured
    for gpu, own in spans_of(run, view).items() if is_needed else ():
        curve = run.curve("power_w", gpu)
        found[gpu] = np.nan if curve is None else sampled(curve, own).mean()
    if nodes is None:
        return found
    joules = METRICS["energy_j"].compute(Scope.of(run, nodes)).known()
    watts = ratios(1e9 * joules, nodes.elapsed_ns)
    charged = np.isfinite(watts)
    found |= zip(nodes.codes("gpu")[charged].tolist(), watts[charged].tolist(), strict=True)
    if untraced := untraced_in(run, view):
        joules, _ = energy_of_windows(run, view, untraced)
        mean = ratios(1e9 * joules.sum(axis=1), step_windows(run, view).mean_ns.sum())
        spans = spans_of_windows(step_windows(run, view))
        for gpu, watt in zip(untraced, mean.tolist(), strict=True):
            curve = run.curve("power_w", gpu)
            known = curve is None or np.isfinite(watt)
            found[gpu] = watt if known or curve is None else sampled(curve, spans).mean()
    return dict(sorted(found.items()))


def spans_of_windows(windows: StepWindows) -> TimeSpans:
    return TimeSpans.running(windows.begins_ns, windows.ends_ns - windows.begins_ns)


def energy_of_windows(run: Run, view: View, gpus: Sequence[int]) -> tuple[Float64, Mask]:
    """The energy of GPUs without a trace in each step of a scope, in J, as GPUs x steps, and
    whether a sample counts for up to a period beyond the samples.

    Their mean power while the others are in the step, for the mean time of it on these; NaN where
    telemetry doesn't cover it.
    """
    windows = step_windows(run, view)
    found = np.full((len(gpus), len(windows.begins_ns)), np.nan)
    is_held = np.zeros(found.shape, np.bool_)
    powers = [run.measured[name] for name in POWERS if name in run.measured]
    for place, gpu in enumerate(gpus):
        if not any(gpu in power.curves for power in powers):
            continue
        area, known, is_held[place] = amounts_in(power_of(powers, gpu), windows)
        found[place] = 1e-9 * ratios(area, known) * windows.mean_ns
    return found, is_held & np.isfinite(found)


def amounts_in(curve: IntegralCurve, windows: StepWindows) -> tuple[Float64, Float64, Mask]:
    """A curve's integral over each step, NaN where it isn't known for all of it; for which time it
    is known, and whether only since a sample counts for up to a period beyond the samples."""
    bounds = np.stack([windows.begins_ns, windows.ends_ns])
    length = bounds[1] - bounds[0]
    is_held = np.diff(curve.integrals(bounds)[1], axis=0)[0] < length
    amount, known = (
        np.diff(each, axis=0)[0] for each in curve.held_for_a_period().integrals(bounds)
    )
    return np.where(known >= length, amount, np.nan), known, is_held


def mean_powers(run: Run, view: View) -> Float64:
    """The mean power of each GPU of a scope that has a trace, in W."""
    others = {*untraced_in(run, view)}
    return np.array([watt for gpu, watt in powers_of(run, view).items() if gpu not in others])


def total_power(run: Run, view: View) -> float | None:
    """The power of all GPUs of a scope together, in W; None where that of any is unknown."""
    return sum_if_known(np.array([*powers_of(run, view).values()]))


def sum_if_known(figures: Float64) -> float | None:
    """The sum over all GPUs; None where that of any is unknown."""
    return float(figures.sum()) if len(figures) and np.isfinite(figures).all() else None


def paired_with(one: Sampled, other: IntegralCurve | None) -> tuple[Float64, Float64]:
    """The samples for whose time another signal is known, and its means over their times."""
    means = means_during(one, other)
    known = np.isfinite(means)
    return one.values[known], means[known]


def means_during(one: Sampled, other: IntegralCurve | None) -> Float64:
    """The mean of another signal over the time of each sample; NaN where it is unknown."""
    if other is None or not len(one):
        return np.full(len(one), np.nan)
    area, covered = other.integrals(np.stack([one.begins_ns, one.ends_ns]))
    return ratios(area[1] - area[0], covered[1] - covered[0])


class SampledFigure(Struct, frozen=True):
    """A column that is a field of samples' summaries, of the first of its signals on a GPU."""

    name: str
    field: str
    signals: Sequence[str]
    own: Metric | None
    """None: it is a column of every view, over the time that the samples cover."""

    @property
    def metric(self) -> Metric:
        return self.own or METRICS[self.name]

    @property
    def adds_up(self) -> bool:
        """Whether figures of GPUs have a sum: powers and amounts do, clocks and heat don't."""
        return self.field in ("area", "amount") or (
            self.field == "mean" and self.metric.unit is Unit.WATTS
        )


def _column(name: str, unit: str, title: str, text: str) -> Metric:
    missing = "no such telemetry of the GPU"
    return computed_column(name, unit, title, text, source="telemetry", missing_because=missing)


_KNOWN: Final = {
    "mean_power_w": ("mean", "power_w"),
    "peak_power_w": ("high", "power_w"),
    "mean_gfx_mhz": ("mean", "gfx_mhz"),
    "lowest_gfx_mhz": ("low", "gfx_mhz"),
    "mean_hot_c": ("mean", "hotspot_c edge_c"),
    "hottest_c": ("high", "hotspot_c edge_c"),
    "mean_mem_c": ("mean", "mem_c"),
    "mean_mem_mhz": ("mean", "mem_mhz"),
}
"""Columns of every view: the field of the summaries and the signals of each."""
_DECLARED: Final = """
sampled_energy_j | J | energy | area | power_w | Integral of the power
counted_energy_j | J | counted energy | amount | energy_j | Energy
mean_gfx_util_pct | % | mean util | mean | gfx_util_pct | utilization of the compute units
mean_throttle_pct | % | mean throttled | mean | throttle_pct | share of the time under a limiter
mean_mem_power_w | W | mem power | mean | mem_power_w | power of the memory, a part of the socket's
pcie_in_bytes | B | PCIe in | amount | pcie_bytes.rx | Bytes received over PCIe
pcie_out_bytes | B | PCIe out | amount | pcie_bytes.tx | Bytes sent over PCIe
nvlink_in_bytes | B | NVLink in | amount | nvlink_read_bytes | Bytes received over NVLink
nvlink_out_bytes | B | NVLink out | amount | nvlink_write_bytes | Bytes sent over NVLink
xgmi_in_bytes | B | xGMI in | amount | xgmi_read_bytes | Bytes read over xGMI
xgmi_out_bytes | B | xGMI out | amount | xgmi_write_bytes | Bytes written over xGMI
window_ns | ns | window | span_ns | power_w gfx_mhz hotspot_c edge_c gfx_util_pct |
"""
"""Name, unit, title, field of the summaries, signals, and what the definition is about; of those
that only samples have."""
_ORDER: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "counted_energy_j", "mean_gfx_mhz"),
    *("lowest_gfx_mhz", "mean_hot_c", "hottest_c", "mean_mem_c", "mean_gfx_util_pct"),
    *("mean_throttle_pct", "mean_mem_power_w", "mean_mem_mhz"),
)
"""The first columns; bytes and the window follow."""
_DEFINITIONS: Final = {
    "mean": "Mean {}, over the time of the GPU's samples, each of which holds until the next.",
    "high": "The largest sample of the {}.",
    "low": "The least sample of the {}.",
    "area": "{} from the first to the last sample, by the trapezoidal rule.",
    "amount": "{} from the first to the last sample, by the device's counter.",
    "span_ns": "From the first to the last sample of the power.",
}
NODE_FIGURES: Final = {
    f"ib_{way}_bytes": _column(
        f"ib_{way}_bytes",
        "B",
        f"InfiniBand {way}",
        f"Bytes {done} over InfiniBand by the GPU's node, from the first to the last sample.",
    )
    for way, done in (("in", "received"), ("out", "sent"))
}
"""Figures of nodes, the same on each of their GPUs: no total adds them up."""
_NODE_SIGNALS: Final = {"ib_in_bytes": "ib_read_bytes", "ib_out_bytes": "ib_write_bytes"}
_OF_SPANS: Final = ("area", "amount", "span_ns")
"""Fields that a single sample doesn't give."""
_OF_TIMES: Final = ("area", "span_ns")
"""Fields that samples without times don't give."""


def _figures() -> Iterator[SampledFigure]:
    for name, (field, signals) in _KNOWN.items():
        yield SampledFigure(name, field, signals.split(), None)
    for line in _DECLARED.strip().splitlines():
        name, unit, title, field, signals, what = map(str.strip, line.split("|"))
        text = _DEFINITIONS[field].format(what)
        figure = SampledFigure(name, field, signals.split(), _column(name, unit, title, text))
        reduces = Reduces.SUM if figure.adds_up else Reduces.NONE
        yield replace(figure, own=replace(figure.metric, reduces=reduces))


_BY_NAME: Final = {each.name: each for each in _figures()}
FIGURES: Final = {name: _BY_NAME[name] for name in dict.fromkeys((*_ORDER, *_BY_NAME))}
THROTTLED: Final = _column(
    "low_clock_pct",
    "%",
    "at low clock",
    f"Share of the time in which the compute units' clock is below {100 * LOW_CLOCK:.0f} % of the "
    f"GPU's highest while they are used for {BUSY_PCT:.0f} % or more.",
)
"""Our definition of throttling, for telemetry without limiters."""


def figure(run: Run, name: str) -> Float64:
    """A figure of `FIGURES` of each GPU; NaN where it is unknown."""
    wanted, found = FIGURES[name], []
    for gpu in gpus_of(run):
        own = [run.sampled[each].get(gpu) for each in wanted.signals if each in run.sampled]
        summary = next((each for each in own if each is not None), None)
        is_known = summary is not None
        if summary is not None and wanted.field in _OF_SPANS:
            is_known = summary.span_ns > 0 and (summary.is_timed or wanted.field not in _OF_TIMES)
        found.append(float(getattr(summary, wanted.field)) if is_known else np.nan)
    return np.array(found)


def doubted_gpus(run: Run, column: str) -> frozenset[int]:
    """The GPUs whose figures of a column a doubt touches; none where it may touch all."""
    names = {column, *(FIGURES[column].signals if column in FIGURES else ())}
    touching = [each for each in run.doubts if names & {*each.columns}]
    if not all(each.gpus for each in touching):
        return frozenset()
    return frozenset(gpu for each in touching for gpu in each.gpus)


def doubted_columns(run: Run) -> frozenset[str]:
    """The columns whose figures a doubt touches: those of samples by their signals."""

    def found() -> frozenset[str]:
        of_samples = {name for name, each in FIGURES.items() if run.doubted & {*each.signals}}
        return run.doubted | of_samples

    return run.memo(("doubted columns",), found) if run.doubted else frozenset()


def node_amounts(run: Run, name: str) -> dict[str, float]:
    """A figure of `NODE_FIGURES` of each node that counts it."""
    nodes = nodes_of(run, [gpu.index for gpu in run.gpus])[0]
    of_rank = {gpu.rank: node for gpu, node in zip(run.gpus, nodes, strict=True)}
    found: dict[str, float] = {}
    for each in run.of_nodes:
        if each.signal == _NODE_SIGNALS[name] and each.rank in of_rank:
            node = of_rank[each.rank]
            found[node] = found.get(node, 0.0) + each.summary.amount
    return found


def _node_figure(run: Run, name: str) -> Float64:
    known = node_amounts(run, name)
    return np.array([known.get(node, np.nan) for node in nodes_of(run, gpus_of(run))[0]])


def low_clock_pct(run: Run) -> Float64:
    """The share of each GPU's time with a low clock though it is used; NaN where unknown."""
    shares = []
    for gpu, span in spans_of_samples(run).items():
        clock, use = (run.curve(name, gpu) for name in ("gfx_mhz", "gfx_util_pct"))
        own = NO_SAMPLES if clock is None else sampled(clock, span)
        values, used = paired_with(own, use)
        if not len(values) or len(values) != len(own):
            shares.append(np.nan)
            continue
        is_low = (values < LOW_CLOCK * values.max()) & (used >= BUSY_PCT)
        shares.append(100.0 * float(own.weights_ns[is_low].sum()) / float(own.weights_ns.sum()))
    return np.array(shares)


def sampled_columns(run: Run) -> Own:
    own = [(each.metric, numbered(figure(run, name))) for name, each in FIGURES.items()]
    own += [(each, numbered(_node_figure(run, name))) for name, each in NODE_FIGURES.items()]
    if "throttle_pct" not in run.sampled:
        own.append((THROTTLED, numbered(low_clock_pct(run))))
    return [(metric, values) for metric, values in own if values.present().any()]


def totals_of(own: Own) -> dict[str, int | float]:
    """The total row: sums where every GPU has the figure, means of means, extremes."""
    total: dict[str, int | float] = {}
    for metric, values in own:
        known = values.numbers[values.present()]
        if not len(known) or metric.name in NODE_FIGURES:
            continue
        if metric.name in FIGURES and FIGURES[metric.name].adds_up:
            if values.present().all():
                total[metric.name] = known.sum().item()
        elif metric.name.startswith("lowest"):
            total[metric.name] = known.min().item()
        elif metric.name.startswith(("peak", "hottest", "window")):
            total[metric.name] = known.max().item()
        else:
            total[metric.name] = known.mean().item()
    return total


def without_totals(own: Own) -> tuple[str, ...]:
    """A note on the figures that have no total, since some GPUs lack them."""
    lacking: dict[int, list[str]] = {}
    for metric, values in own:
        known = int(values.present().sum())
        if metric.name in FIGURES and FIGURES[metric.name].adds_up and 0 < known < len(values):
            lacking.setdefault(known, []).append(metric.title)
    return tuple(
        f"{', '.join(titles)}: no total, since only {known} of {len(own[0][1])} GPUs have it"
        for known, titles in lacking.items()
    )


def sampled_notes(run: Run) -> tuple[str, ...]:
    notes = ["no trace: time is the window of the samples, and no step is known"]
    own = [each for by_gpu in run.sampled.values() for each in by_gpu.values()]
    if own and not own[0].is_timed:
        notes.append(
            "the samples have no times, so they are numbered, one a second: energy and the window "
            "are unknown"
        )
    lacking = [
        str(gpu) for gpu in gpus_of(run) if not any(gpu in own for own in run.sampled.values())
    ]
    if lacking:
        notes.append(f"no samples of GPU {', '.join(lacking)}")
    return (*notes, *_of_nodes(run))


def _of_nodes(run: Run) -> list[str]:
    notes = []
    for rank in sorted({node.rank for node in run.of_nodes}):
        own = [node for node in run.of_nodes if node.rank == rank]
        sentences = []
        for signal, how in _TRAFFIC.items():
            amounts = [node.summary.amount for node in own if node.signal == signal]
            if amounts:
                scale = Unit.BYTES.scale(sum(amounts), False)
                sentences.append(
                    f"{sum(amounts) / scale.divisor:.4g} {scale.text} {how} over InfiniBand"
                )
        hot = [node.summary.high for node in own if node.signal == "cpu_c"]
        sentences += [f"processors up to {max(hot):.0f} °C"] if hot else []
        if sentences:
            notes.append(f"node of rank {rank}: {', '.join(sentences)}")
    return notes
