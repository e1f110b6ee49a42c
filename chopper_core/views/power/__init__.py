"""Power: the GPUs' power, clocks, temperatures and limiters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Values, is_measured, numbered
from chopper_core.metrics.metric import quotient
from chopper_core.model.column_names import EDGE, HEAT
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import median_of
from chopper_core.views.power import power_columns as c
from chopper_core.views.power.charts import (
    DIES,
    LIMITER,
    SIGNALS,
    GpuSamples,
    charts,
    correlations,
    energy_bars,
    samples_of,
)
from chopper_core.views.power.power_columns import step_energy, token_energy
from chopper_core.views.shared.phrases import differs
from chopper_core.views.shared.samples import (
    ENERGY,
    WINDOW,
    Sampled,
    TimeSpans,
    columns_of,
    figure,
    gpus_of,
    result_of_samples,
    sampled_notes,
    totals_of,
)
from chopper_core.views.shared.table_view import LabelledRows, Partition, child_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="power",
    title="Power",
    question="How much power do the GPUs draw, how fast and how hot do they run, what limits them?",
    by=any_level("gpu"),
    of="window:MS, burst:W, tokens:N or samples:N",
    no_statistic="shows means over time, each moment of which counts alike",
    takes_samples=True,
    any_split=True,
)


Own = list[tuple[Metric, Values]]

WINDOW_NS: Final = 100e6
BURST: Final = 1.1
"""A burst of power exceeds the mean by this factor."""
AT_LIMIT: Final = 0.98
VRAM: Final = "vram_bytes"
_SHOWN_ALONE: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "limit_w", "at_limit_pct"),
    *("mean_gfx_mhz", "p05_gfx_mhz", "sd_gfx_mhz", "mean_mem_mhz", "mean_hot_c", "hottest_c"),
    *("mean_mem_c", "throttled_pct", "low_clock_pct", "r_gfx_hotspot", "r_gfx_edge"),
    *("r_gfx_power", "r_chance", "r_samples", "peak_over_w", "over_limit_ns", "die_spread_c"),
    *("mean_mem_power_w", "bursts", "burst_pct", "longest_burst_ns", "mean_gfx_util_pct"),
    *("pcie_in_bytes", "pcie_out_bytes", "nvlink_in_bytes", "nvlink_out_bytes"),
)
_OPTION: Final = re.compile(r"(window|burst|tokens|samples):(\d{1,12}(?:\.\d+)?)")
_NO_TELEMETRY: Final = (
    "no telemetry of power, clocks or temperatures on the run's clock; put a log of amd-smi, "
    "rocm-smi or nvidia-smi beside the traces (docs/telemetry.md)"
)


class Options(Struct, frozen=True):
    """The options of an address."""

    window_ns: float = WINDOW_NS
    burst_w: float | None = None
    tokens: float | None = None
    """Per GPU and iteration."""
    samples: float | None = None
    """Of training, in the window of a run of telemetry alone."""


def answer(run: Run, view: View) -> ViewResult:
    """The GPUs side by side, or the energy of iterations, phases, layers or operations."""
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view))
    if not any(name in run.measured for name in SIGNALS):
        raise NothingToShow(_NO_TELEMETRY)
    options = options_of(view.of)
    by = view.by or "gpu"
    found = samples_of(run, view, options.window_ns if by == "gpu" else None)
    if by == "gpu" and not view.path and len(run.traced) < len(run.gpus):
        return _of_all(run, view, found, options)
    if by == "gpu":
        return _by_gpu(run, view, found, options)
    return _by_label(run, view, found, options, by)


def _of_samples(run: Run, view: View) -> ViewResult:
    """The GPUs of a run of telemetry alone: a step's energy isn't known, that of the window is."""
    options = options_of(view.of)
    found = samples_of(run, view, options.window_ns)
    sampled = columns_of(run)
    own = [*_columns(run, found, options), *correlations(run, view, found), *sampled]
    own = own if sampled else []
    # The curves of the view lack the last sample's value, which the summaries have.
    own = list({metric.name: (metric, values) for metric, values in own}.values())
    known = [(metric, values) for metric, values in own if values.present().any()]
    labels = [str(gpu) for gpu in gpus_of(run)]
    names = {metric.name for metric, _ in known}
    speed = _efficiency(run, options)
    return ViewResult(
        level="gpu",
        labels=labels,
        columns=tuple(known),
        opens=lambda row: replace(view, filter=f"gpu:{labels[row]}", sort="", columns=()),
        total=totals_of(known),
        shown=tuple(name for name in _SHOWN_ALONE if name in names),
        headline=(*_headline(found, np.full(1, np.nan), np.full(1, np.nan)), *speed),
        notes=(*([run.status] if run.status else []), *sampled_notes(run)),
        charts=charts(found, run.origin_ns),
    )


def _efficiency(run: Run, options: Options) -> tuple[str, ...]:
    """Samples per second and per joule, where the user gives their number in the window."""
    joules, window = figure(run, ENERGY), figure(run, WINDOW)
    if options.samples is None or run.status or not np.isfinite(joules).all():
        return ()
    # The window of the first rank, as CharLLM-PPT takes it.
    speed = options.samples / (window[0] * 1e-9)
    return (
        f"{speed:.4f} samples/s, {speed / (joules.sum() * 1e-6):.4f} samples/(s·MJ), "
        f"{joules.sum() / options.samples:,.1f} J/sample",
    )


def options_of(text: str) -> Options:
    """The options of `of=`, such as `window:250,burst:700`; raises UsageError for anything else."""
    given: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        match = _OPTION.fullmatch(part)
        if match is None or not float(match[2]) or match[1] in given:
            raise UsageError(
                "the view power takes of=window:MS (of rolling quantiles), burst:W (the level of "
                "bursts), tokens:N (per GPU and iteration) and samples:N (of training, in the "
                "window of telemetry alone), with commas between them, not "
                f"{text!r}"
            )
        given[match[1]] = float(match[2])
    window_ns = given.get("window", WINDOW_NS / 1e6) * 1e6
    return Options(window_ns, given.get("burst"), given.get("tokens"), given.get("samples"))


def _by_gpu(run: Run, view: View, found: list[GpuSamples], options: Options) -> ViewResult:
    rows = Partition.of(run.tree_of(view), view, "gpu")
    scope = rows.scope(run)
    energy_j, token_mj = step_energy(run, view, options.tokens)
    own = [*_columns(run, found, options), *correlations(run, view, found)]
    own += [
        (METRICS["energy_j"], METRICS["energy_j"].compute(scope)),
        (c.STEP_ENERGY, numbered(energy_j)),
        (c.TOKEN_ENERGY, numbered(token_mj)),
    ]
    known = {metric.name for metric, values in own if values.present().any()}
    shown = (
        *("mean_power_w", "peak_power_w", "limit_w", "at_limit_pct", "iteration_energy_j"),
        *("token_energy_mj", "mean_gfx_mhz", "p05_gfx_mhz", "sd_gfx_mhz", "mean_mem_mhz"),
        *("mean_hotspot_c", "mean_edge_c", "throttled_pct", "peak_over_w", "over_limit_ns"),
        *("die_spread_mhz", "die_spread_c", "r_gfx_hotspot", "r_gfx_edge", "r_gfx_power"),
        *("r_time_gfx", "r_time_heat", "r_chance", "r_samples", "rolling_power_w"),
        *("rolling_gfx_mhz", "bursts", "burst_pct", "longest_burst_ns"),
    )
    return table_view(
        view,
        rows,
        own,
        _sums_of_all(own),
        shown=tuple(name for name in shown if name in known),
        headline=_headline(found, energy_j, token_mj),
        notes=_notes(run, view, found, options),
        charts=charts(found, run.origin_ns),
    )


def _of_all(run: Run, view: View, found: list[GpuSamples], options: Options) -> ViewResult:
    """All GPUs of a run whose telemetry covers more than its traces, over the run's time."""
    span = TimeSpans(np.array([run.origin_ns]), np.array([run.end_ns]))
    others = {gpu.index: span for gpu in run.gpus if gpu.index not in run.traced}
    found = [*found, *samples_of(run, view, options.window_ns, others)]
    found.sort(key=lambda each: each.gpu)
    own = [
        (metric, values)
        for metric, values in (*_columns(run, found, options), *correlations(run, view, found))
        if values.present().any()
    ]
    labels = [str(each.gpu) for each in found]
    unknown = np.full(1, np.nan)
    return table_view(
        view,
        LabelledRows("gpu", labels),
        own,
        _sums_of_all(own),
        opens=lambda row: (
            child_of(view, "gpu", labels[row]) if found[row].gpu in run.traced else view
        ),
        headline=_headline(found, unknown, unknown),
        notes=(
            f"{len(others)} of {len(found)} GPUs have telemetry alone: their figures are over the "
            "time of the run",
            *_notes(run, view, found, options),
        ),
        charts=charts(found, run.origin_ns),
    )


def _columns(run: Run, found: list[GpuSamples], options: Options) -> Own:
    def each(name: str, figure: Callable[[Sampled], float]) -> Float64:
        return np.array([figure(gpu.signals[name]) for gpu in found])

    def apart(name: str) -> tuple[Float64, Float64]:
        return each(name, Sampled.mean), each(name, Sampled.deviation)

    power, power_deviation = apart("power_w")
    gfx, gfx_deviation = apart("gfx_mhz")
    mem, mem_deviation = apart("mem_mhz")
    peaks = [gpu.signals["power_w"] for gpu in found]
    peak_at = [
        float(own.middles_ns[own.values.argmax()] - run.origin_ns) if len(own) else np.nan
        for own in peaks
    ]
    bursts = np.array([_bursts(gpu.signals["power_w"], options) for gpu in found]).T
    limit = np.array([gpu.limit_w for gpu in found])
    hot = [next((gpu.signals[n] for n in HEAT if len(gpu.signals[n])), gpu.signals[HEAT[0]])
           for gpu in found]  # fmt: skip

    def rolling(name: str) -> Float64:
        return np.array([_mean(gpu.rolled[name][1]) for gpu in found])

    own: Own = [
        (c.POWER, numbered(power)),
        (c.POWER_HIGH, numbered(each("power_w", lambda own: own.quantile(0.95)))),
        (c.PEAK, numbered(each("power_w", _largest))),
        (c.PEAK_AT, numbered(peak_at)),
        (c.POWER_DEVIATION, numbered(power_deviation)),
        (c.POWER_RATIO, quotient(power, np.full_like(power, _or_nan(np.nanmax, power)))),
        (c.ROLLING_POWER, numbered(rolling("power_w"))),
        (c.LIMIT, numbered(limit)),
        (c.AT_LIMIT, numbered([_at_limit(gpu) for gpu in found])),
        (c.PEAK_OVER, numbered(each("power_w", _largest) - limit)),
        (c.OVER, numbered([_over_limit_ns(gpu) for gpu in found])),
        (c.BURSTS, numbered(bursts[0])),
        (c.BURST_SHARE, numbered(bursts[1])),
        (c.LONGEST_BURST, numbered(bursts[2])),
        (c.GFX, numbered(gfx)),
        (c.GFX_LOW, numbered(each("gfx_mhz", lambda own: own.quantile(0.05)))),
        (c.GFX_LEAST, numbered(each("gfx_mhz", _least))),
        (c.GFX_DEVIATION, numbered(gfx_deviation)),
        (c.GFX_RATIO, quotient(gfx, np.full_like(gfx, _or_nan(np.nanmin, gfx)))),
        (c.ROLLING_GFX, numbered(rolling("gfx_mhz"))),
        (c.MEM, numbered(mem)),
        (c.MEM_DEVIATION, numbered(mem_deviation)),
        (c.HOT, numbered(each("hotspot_c", Sampled.mean))),
        (c.HOTTEST, numbered(each("hotspot_c", _largest))),
        (c.HOT_ANYWHERE, numbered([own.mean() for own in hot])),
        (c.HOTTEST_ANYWHERE, numbered([_largest(own) for own in hot])),
        (
            c.VRAM,
            numbered([_largest(g.signals[VRAM]) if VRAM in g.signals else np.nan for g in found]),
        ),
        (c.MEM_HOT, numbered(each("mem_c", Sampled.mean))),
        (c.EDGE, numbered(each("edge_c", Sampled.mean))),
        (c.THROTTLED, numbered(each("throttle_pct", Sampled.mean))),
        (c.DIE_CLOCKS, numbered([_spread(gpu, DIES[-1:]) for gpu in found])),
        (c.DIE_HEAT, numbered([_spread(gpu, DIES[:-1]) for gpu in found])),
    ]
    limiters = sorted({n for gpu in found for n in gpu.signals if n.startswith(LIMITER)})
    for name in limiters:
        means = [gpu.signals[name].mean() if name in gpu.signals else np.nan for gpu in found]
        own.append((c.limiter(name.removeprefix(LIMITER)), numbered(means)))
    return own


def _mean(values: Float64) -> float:
    return float(values.mean()) if len(values) else np.nan


def _largest(own: Sampled) -> float:
    return float(own.values.max()) if len(own) else np.nan


def _least(own: Sampled) -> float:
    return float(own.values.min()) if len(own) else np.nan


def _or_nan(reduce: Callable[[Float64], float], values: Float64) -> float:
    return float(reduce(values)) if np.isfinite(values).any() else np.nan


def _bursts(power: Sampled, options: Options) -> tuple[float, float, float]:
    """How many bursts, their share of the time in %, and the longest one's ns."""
    if not len(power):
        return np.nan, np.nan, np.nan
    level = options.burst_w if options.burst_w is not None else BURST * power.mean()
    count, time, longest = power.above(level)
    return count, 100.0 * time / float(power.weights_ns.sum()), longest


def _at_limit(gpu: GpuSamples) -> float:
    power = gpu.signals["power_w"]
    if not len(power) or not np.isfinite(gpu.limit_w):
        return np.nan
    at = power.values >= AT_LIMIT * gpu.limit_w
    return 100.0 * float(power.weights_ns[at].sum()) / float(power.weights_ns.sum())


def _over_limit_ns(gpu: GpuSamples) -> float:
    power = gpu.signals["power_w"]
    if not len(power) or not np.isfinite(gpu.limit_w):
        return np.nan
    return float(power.weights_ns[power.values > gpu.limit_w].sum())


def _spread(gpu: GpuSamples, beginnings: tuple[str, ...]) -> float:
    """Largest minus smallest mean of the dies, by the first kind of signal that two of them
    have.
    """
    for beginning in beginnings:
        means = [own.mean() for name, own in gpu.signals.items() if name.startswith(beginning)]
        known = [mean for mean in means if np.isfinite(mean)]
        if len(known) > 1:
            return max(known) - min(known)
    return np.nan


def _sums_of_all(own: Own) -> Own:
    """Sums over the GPUs where all have the figure; a sum over some of them is not a total."""
    whole: Own = []
    for metric, values in own:
        if metric.name in ("mean_power_w", "iteration_energy_j", "energy_j"):
            is_known = bool(values.present().all() and len(values))
            whole.append((metric, numbered([float(values.numbers.sum()) if is_known else None])))
    return whole


def _by_label(
    run: Run, view: View, found: list[GpuSamples], options: Options, by: str
) -> ViewResult:
    rows = Partition.of(run.tree_of(view), view, by)
    scope = rows.scope(run)
    energy = METRICS["energy_j"].compute(scope)
    joules = np.where(energy.present(), energy.numbers, np.nan)
    elapsed = METRICS["elapsed_ns"].compute(scope).numbers
    with np.errstate(invalid="ignore", divide="ignore"):
        charged = np.where(elapsed > 0, joules / (elapsed * 1e-9), np.nan)
    own: Own = [
        (METRICS["energy_j"], energy),
        (c.ENERGY_SHARE, numbered(100.0 * joules / joules.sum())),
        (c.CHARGED_POWER, numbered(charged)),
    ]
    if by == "iteration":
        own.append((c.TOKEN_ENERGY, numbered(token_energy(run, view, rows.labels, options.tokens))))
    measured = ("gfx_mhz", "mem_mhz", "power_w", "hotspot_c", "throttle_pct")
    shown = [metric.name for metric, values in own if values.present().any()]
    shown += [name for name in measured if is_measured(name, run.table)]
    energy_j, token_mj = step_energy(run, view, options.tokens)
    known = np.isfinite(joules).all()
    whole = (numbered([joules.sum() if known else None]), numbered([100.0 if known else None]))
    return table_view(
        view,
        rows,
        own,
        [(METRICS["energy_j"], whole[0]), (c.ENERGY_SHARE, whole[1])],
        sort="-energy_j" if by in ("operation", "kernel") else "",
        shown=(*shown, "elapsed_ns"),
        headline=_headline(found, energy_j, token_mj),
        notes=_notes(run, view, found, options),
        charts=energy_bars(by, rows.labels, joules),
    )


def _headline(found: list[GpuSamples], energy_j: Float64, token_mj: Float64) -> tuple[str, ...]:
    lines = []
    power = np.array([gpu.signals["power_w"].mean() for gpu in found])
    if np.isfinite(power).all():
        most = int(power.argmax())
        text = f"{len(found)} GPU{'s' if len(found) > 1 else ''} draw {power.sum():,.0f} W"
        if len(found) > 1 and differs(power[most], median_of(power)):
            text += f", GPU {found[most].gpu} most, {power[most]:.0f} W"
        if np.isfinite(energy_j).all():
            text += f"; an iteration takes {energy_j.sum():,.0f} J"
        if np.isfinite(token_mj).all():
            text += f", a token {token_mj.mean():.1f} mJ"
        lines.append(text)
    gfx = np.array([gpu.signals["gfx_mhz"].mean() for gpu in found])
    low = int(gfx.argmin())
    if np.isfinite(gfx).all() and len(found) > 1 and differs(gfx[low], median_of(gfx)):
        text = f"GPU {found[low].gpu} has the lowest clock, {gfx[low]:.0f} MHz against a median of "
        text += f"{median_of(gfx):.0f}"
        for name in HEAT:
            hot = np.array([gpu.signals[name].mean() for gpu in found])
            if np.isfinite(hot).all() and differs(hot[low], median_of(hot)):
                where = " at the edge" if name == EDGE else ""
                text += f"; at {hot[low]:.0f} °C{where} against {median_of(hot):.0f}"
                break
        lines.append(text)
    throttled = [(gpu.signals["throttle_pct"].mean(), gpu.gpu) for gpu in found]
    shares = [f"GPU {gpu} {share:.0f} %" for share, gpu in throttled if share >= 0.5]
    if shares:
        lines.append(f"throttled part of the time: {', '.join(shares)}")
    return tuple(lines)


def _notes(run: Run, view: View, found: list[GpuSamples], options: Options) -> tuple[str, ...]:
    periods = [own.period_ns() for gpu in found for own in gpu.signals.values() if len(own) > 1]
    notes = []
    if periods:
        period_ms = median_of(np.array(periods)) / 1e6
        notes.append(f"samples are {period_ms:.3g} ms apart; shorter events aren't visible")
    sizes = {gpu.signals["gfx_mhz"].window(options.window_ns) for gpu in found}
    if max(sizes) == 1:
        notes.append("a rolling window holds one sample: its quantiles are the samples themselves")
    if not any("power_cap_w" in gpu.signals for gpu in found):
        if any(np.isfinite(gpu.limit_w) for gpu in found):
            notes.append("no power cap in the telemetry: the limit is the product's TDP")
        else:
            notes.append("no power cap in the telemetry: the limit is unknown")
    absent = [str(gpu.gpu) for gpu in found if not any(map(len, gpu.signals.values()))]
    if absent:
        notes.append(f"no telemetry of GPU {', '.join(absent)} in the scope's time")
    return tuple(notes)
