"""Power: the GPUs' power, clocks, temperatures and limiters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, base_of
from chopper_core.analyses.power_groups import (
    SHOWN_OF_GROUPS,
    energy_columns,
    of_groups,
    places_in,
)
from chopper_core.analyses.power_samples import (
    CORRELATED,
    OF_STEPS,
    SIGNALS,
    WINDOW_NS,
    GpuSamples,
    columns_of_samples,
    correlations,
    of_all,
    samples_of,
)
from chopper_core.analyses.rows import ALL_GPUS, LabelledRows, Own, Partition
from chopper_core.analyses.samples import (
    FIGURES,
    NODE_FIGURES,
    gpus_of,
    sampled_columns,
    sampled_notes,
    totals_of,
    without_totals,
)
from chopper_core.analyses.step_energy import StepEnergy
from chopper_core.analyses.step_times import untraced_in
from chopper_core.analyses.step_traffic import COLUMNS as TRAFFIC_COLUMNS
from chopper_core.analyses.step_traffic import totals_of_traffic, traffic_columns
from chopper_core.columns import METRICS, is_measured, numbered
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.column_names import EDGE, HEAT
from chopper_core.model.phrases import count, differs, facts, level_title, listed
from chopper_core.model.run import Run, SideSource
from chopper_core.model.units import Unit, scaled_text, time_text
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import median_of, others_median
from chopper_core.views.shared.rows_of_samples import result_of_samples
from chopper_core.views.shared.sample_charts import charts
from chopper_core.views.shared.table_view import known_columns, table_view
from chopper_core.views.spec import POSITIVE, ViewResult, ViewSpec, any_level, options_of

SPEC: Final = ViewSpec(
    name="power",
    title="GPUs · power",
    question="How much power do the GPUs draw, how fast and how hot do they run, what limits them?",
    by=(*any_level("gpu"), NODE),
    of="window:MS, burst:W, tokens:N or samples:N",
    no_statistic="shows means over time",
    takes_samples=True,
    any_split=True,
)


_MAX_BARS: Final = 40
_LARGEST_FIRST: Final = ("operation", "kernel")
_SHOWN_ALONE: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "limit_w", "at_limit_pct"),
    *("mean_gfx_mhz", "p05_gfx_mhz", "busy_p05_mhz", "sd_gfx_mhz", "mean_mem_mhz"),
    *("mean_hot_c", "hottest_c"),
    *("mean_mem_c", "throttled_pct", "low_clock_pct", "r_gfx_hotspot", "r_gfx_edge"),
    *("r_gfx_power", "r_chance", "r_samples", "peak_over_w", "over_limit_ns", "die_spread_c"),
    *("mean_mem_power_w", "bursts", "burst_pct", "longest_burst_ns", "mean_gfx_util_pct"),
    *("pcie_in_bytes", "pcie_out_bytes", "nvlink_in_bytes", "nvlink_out_bytes"),
    *("xgmi_in_bytes", "xgmi_out_bytes", *NODE_FIGURES),
)
_SHOWN_BY_GPU: Final = (
    *("mean_power_w", "mean_hotspot_c", "mean_gfx_mhz", "throttled_pct", "limit_w"),
    *("peak_power_w", "at_limit_pct", "iteration_energy_j", "token_energy_mj", "mean_edge_c"),
    *("p05_gfx_mhz", "busy_p05_mhz", "sd_gfx_mhz", "mean_mem_mhz", "peak_over_w", "over_limit_ns"),
    *("die_spread_mhz", "die_spread_c", "r_gfx_hotspot", "r_gfx_edge", "r_gfx_power"),
    *("r_time_gfx", "r_time_heat", "r_chance", "r_samples", "rolling_power_w"),
    *("rolling_gfx_mhz", "bursts", "burst_pct", "longest_burst_ns"),
)
_SUMS: Final = ("mean_power_w", "energy_j")
"""What adds up over the GPUs, where all have it: a sum over some of them is no total."""
_MEASURED: Final = ("gfx_mhz", "mem_mhz", "power_w", "hotspot_c", "throttle_pct")
_OPTIONS: Final = ("window", "burst", "tokens", "samples")
"""Of an address: ms of rolling quantiles, the level of bursts in W, tokens of a GPU and step,
and samples of training in the window of a run of telemetry alone."""
_NO_TELEMETRY: Final = (
    "no telemetry of power, clocks or temperatures on the run's clock; put a log of amd-smi, "
    "rocm-smi or nvidia-smi next to the traces (docs/telemetry.md)"
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    is_known = run.is_sampled_only or any(name in run.measured for name in SIGNALS)
    return "" if is_known else run.still_reading(SideSource.TELEMETRY) or _NO_TELEMETRY


def answer(run: Run, view: View) -> ViewResult:
    given = options_of(view, SPEC, **dict.fromkeys(_OPTIONS, POSITIVE))
    options = {name: float(text) for name, text in given.items()}
    window_ns = 1e6 * options.get("window", WINDOW_NS / 1e6)
    burst_w = options.get("burst")
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view, options, window_ns))
    if missing_from(run):
        run.check_read(SideSource.TELEMETRY)
        raise NothingToShow(_NO_TELEMETRY)
    by = view.by or "gpu"
    energy = StepEnergy.of(run, view, options.get("tokens"))
    of_gpus = by in ("gpu", NODE, *run.table.coordinates)
    found = samples_of(run, view, window_ns if of_gpus else None, burst_w)
    if not of_gpus:
        return _by_label(run, view, found, energy, by)
    gpus, untraced = [each.gpu for each in found], {*untraced_in(run, view)}
    own = _columns(run, view, found)
    own += energy_columns(energy, [places_in(energy.gpus, [gpu]) for gpu in gpus])
    traffic = traffic_columns(run, view, gpus, options.get("tokens"))
    own += traffic
    rows: LabelledRows = LabelledRows("gpu", list(map(str, gpus)))
    notes = _notes(found)
    if untraced:
        alone = f"{len(untraced)} of {len(found)} GPUs have telemetry alone"
        notes = (f"{alone}: their steps are those of the other GPUs", *notes)
    headline = _headline(found, energy, busy_mhz=_busy_mhz(run, view, found))
    if by != "gpu":
        rows, own, line = of_groups(run, gpus, by, own, energy)
        headline = (*headline, *line)
    elif not untraced:
        rows = Partition.of(run.tree_of(view), view, "gpu")
        own.append((METRICS["energy_j"], METRICS["energy_j"].compute(rows.scope(run))))
    return table_view(
        view,
        rows,
        [
            each
            for each in own
            if not untraced
            or each[0].name in OF_STEPS
            or each[0].name in TRAFFIC_COLUMNS
            or each[1].present().any()
        ],
        [
            *(of_all(own) if by == "gpu" else ()),
            *_sums_of_all(view, own),
            *_totals(energy),
            *totals_of_traffic(run, gpus, traffic),
        ],
        total_title=ALL_GPUS,
        opens=lambda row: _opened(view, rows, row, untraced),
        shown=known_columns(
            own, (*(_SHOWN_BY_GPU if by == "gpu" else SHOWN_OF_GROUPS), *TRAFFIC_COLUMNS)
        ),
        headline=headline,
        notes=notes,
        charts=charts(found, run.origin_ns),
        base=None if isinstance(rows, Partition) else base_of(run, view).applied,
    )


def _totals(energy: StepEnergy) -> Own:
    return [
        (OF_STEPS["iteration_energy_j"], energy.together()),
        (OF_STEPS["token_energy_mj"], energy.token()),
    ]


def _opened(view: View, rows: LabelledRows, row: int, untraced: Set[int]) -> View:
    """What a row opens: its part of the tree, or the view where a GPU has no trace."""
    label = rows.labels[row]
    if rows.level == NODE or (rows.level == "gpu" and int(label) in untraced):
        return view
    if rows.level == "gpu":
        return child_of(view, rows.level, label)
    return replace(view, by="gpu", filter=f"{rows.level}:{label}", columns=(), sort="")


def _columns(run: Run, view: View, found: list[GpuSamples]) -> Own:
    related = correlations(run, view, found)
    own = columns_of_samples(run, found)
    return [*own, *((metric, related[name]) for name, metric in CORRELATED.items())]


def _of_samples(run: Run, view: View, options: Mapping[str, float], window_ns: float) -> ViewResult:
    found = samples_of(run, view, window_ns, options.get("burst"))
    own, sampled = {}, sampled_columns(run)
    if sampled:
        # The curves of the view lack the last sample's value, which the summaries have.
        every = (*_absent(run), *_columns(run, view, found), *sampled)
        own = {metric.name: (metric, values) for metric, values in every}
    names = known_columns([*own.values()])
    known = [own[name] for name in names]
    # What the telemetry lacks is a column without figures, which has its reason.
    unknown = [each for name, each in own.items() if name not in names]
    means = {
        signal: own[name][1].known()
        for signal, name in (("power_w", "mean_power_w"), ("gfx_mhz", "mean_gfx_mhz"))
        if name in own
    }
    headline = _headline(found, known_means=means)
    joules, window = (own.get(name) for name in ("sampled_energy_j", "window_ns"))
    samples = options.get("samples")
    if samples and joules and window and joules[1].present().all() and not run.status:
        # The window of the first rank, as CharLLM-PPT takes it.
        energy_j = joules[1].numbers.sum()
        speed = samples / (window[1].numbers[0] * 1e-9)
        headline += (
            f"{speed:.4f} samples/s, {speed / (energy_j * 1e-6):.4f} samples/(s·MJ), "
            f"{energy_j / samples:,.1f} J/sample",
        )
    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in gpus_of(run)]),
        [*known, *unknown],
        total=totals_of(known),
        shown=known_columns(known, _SHOWN_ALONE),
        headline=headline,
        notes=(
            *([run.status] if run.status else []),
            *sampled_notes(run),
            *without_totals(known),
        ),
        charts=charts(found, run.origin_ns),
    )


def _absent(run: Run) -> Own:
    """The columns of samples as those of telemetry without any."""
    declared = (*(each.metric for each in FIGURES.values()), *NODE_FIGURES.values())
    nothing = numbered(np.full(len(gpus_of(run)), np.nan))
    return [(metric, nothing) for metric in declared]


def _sums_of_all(view: View, own: Own) -> Own:
    """The total row is of all GPUs together, also where it is per step."""
    gpus = {metric.name: len(values) for metric, values in own if metric.adds_up}
    return [
        (metric, numbered(values.known().sum(keepdims=True) * factor))
        for metric, values in own
        for factor in (1 if view.is_total else gpus.get(metric.name, 1),)
        if metric.name in _SUMS and values.present().any()
    ]


def _by_label(
    run: Run, view: View, found: list[GpuSamples], energy: StepEnergy, by: str
) -> ViewResult:
    rows = Partition.of(run.tree_of(view), view, by)
    charged = METRICS["energy_j"].compute(rows.scope(run))
    joules = charged.known()
    own: Own = [
        (METRICS["energy_j"], charged),
        (OF_STEPS["energy_pct"], numbered(100.0 * joules / joules.sum())),
        (METRICS["charged_power_w"], METRICS["charged_power_w"].compute(rows.scope(run))),
    ]
    totals: Own = []
    if by == "iteration":
        number_of = {str(number): place for place, number in enumerate(energy.iterations)}
        at = np.array([number_of.get(label, -1) for label in rows.labels], np.intp)
        names = ("step_energy_j", "token_energy_mj")
        for name, values in zip(names, energy.of_iterations(), strict=True):
            known = values.take(at)
            missing = ~known.present() | (at < 0)
            own.append((OF_STEPS[name], replace(known, missing=missing)))
        totals = [(OF_STEPS["step_energy_j"], energy.together())]
    divisors = base_of(run, view).of_rows({by: rows.labels})
    shown = known_columns(own) + tuple(name for name in _MEASURED if is_measured(name, run.table))
    known_all = np.isfinite(joules).all()
    return table_view(
        view,
        rows,
        own,
        [
            (METRICS["energy_j"], numbered([joules.sum()])),
            (OF_STEPS["energy_pct"], numbered([100.0 if known_all else None])),
            *totals,
        ],
        sort="-energy_j" if by in ("operation", "kernel") else "",
        shown=(*shown, "elapsed_ns"),
        headline=_headline(found, energy, busy_mhz=_busy_mhz(run, view, found)),
        notes=_notes(found),
        charts=energy_bars(by, rows.labels, joules / divisors),
    )


def _busy_mhz(run: Run, view: View, found: list[GpuSamples]) -> Float64:
    """The clock of each GPU over its activities, as the tree has it; NaN of one without a trace."""
    rows = Partition.of(run.tree_of(view), view, "gpu")
    known = dict(zip(rows.labels, METRICS["gfx_mhz"].compute(rows.scope(run)).known(), strict=True))
    return np.array([known.get(str(gpu.gpu), np.nan) for gpu in found])


def _headline(
    found: list[GpuSamples],
    energy: StepEnergy | None = None,
    known_means: Mapping[str, Float64] = {},
    busy_mhz: Float64 | None = None,
) -> tuple[str, ...]:
    def means(signal: str) -> Float64:
        if signal in known_means:
            return known_means[signal]
        return np.array([gpu.mean(signal) for gpu in found])

    if not found:
        return ()
    first, second = [], []
    power, several = means("power_w"), len(found) > 1
    # A GPU that idles longer has a lower mean clock, and isn't slower.
    sampled_mhz, when = np.array([gpu.busy.mean() for gpu in found]), "while busy"
    gfx = sampled_mhz if busy_mhz is None else np.where(np.isnan(busy_mhz), sampled_mhz, busy_mhz)
    if not np.isfinite(gfx).any():
        gfx, when = means("gfx_mhz"), "on average"
    if np.isfinite(power).all():
        most = int(power.argmax())
        text = f"{scaled_text(float(power.sum()), Unit.WATTS)} on {count(len(found), 'GPU')}"
        if several and differs(power[most], median_of(power)):
            text += f", GPU {found[most].gpu} most, {power[most]:.0f} W"
        first.append(text)
        for values, unit, what in (
            ()
            if energy is None
            else (
                (energy.together(), Unit.JOULES, "a step"),
                (energy.token(), Unit.MILLIJOULES, "a token"),
            )
        ):
            if (number := values.at(0)) is not None:
                mark = "~" if values.is_extrapolated(0) else ""
                first.append(f"{mark}{scaled_text(number, unit)} {what}")
    low = int(np.nan_to_num(gfx, nan=np.inf).argmin())
    usual = others_median(gfx)[low]
    if several and np.isfinite(usual) and differs(gfx[low], usual):
        second.append(f"GPU {found[low].gpu} {gfx[low]:.0f} MHz {when}, median {usual:.0f}")
        for name in HEAT:
            hot = means(name)
            usual = others_median(hot)[low]
            if np.isfinite(hot).all() and differs(hot[low], usual):
                where = " at the edge" if name == EDGE else ""
                second.append(f"{hot[low]:.0f} °C{where}, median {usual:.0f}")
                break
    throttled = zip(found, means("throttle_pct").tolist(), strict=True)
    if shares := [f"GPU {gpu.gpu} {share:.0f} %" for gpu, share in throttled if share >= 0.5]:
        second.append(f"throttled: {listed(shares)}")
    return tuple(filter(None, (facts(*first), facts(*second))))


_MUCH_SLOWER: Final = 1.5


def _periods(found: list[GpuSamples]) -> str:
    """The shortest time between two samples of a signal, and that of those sampled more rarely."""
    known: dict[str, list[float]] = {}
    for gpu in found:
        for name, own in gpu.signals.items():
            if len(own) > 1:
                known.setdefault(name, []).append(own.period_ns())
    if not known:
        return ""
    periods = sorted(median_of(np.array(each)) for each in known.values())
    rare = [each for each in periods if each > _MUCH_SLOWER * periods[0]]
    if not rare:
        return time_text(periods[0])
    ends = dict.fromkeys((time_text(rare[0]), time_text(rare[-1])))
    return f"{time_text(periods[0])} ({count(len(rare), 'signal')} every {' to '.join(ends)})"


def _notes(found: list[GpuSamples]) -> tuple[str, ...]:
    periods = _periods(found)
    notes = []
    if periods:
        notes.append(f"a sample every {periods}; shorter events aren't visible")
    if not any("power_cap_w" in gpu.signals for gpu in found):
        if any(np.isfinite(gpu.limit_w) for gpu in found):
            notes.append("no power cap in the telemetry: the limit is the product's TDP")
        else:
            notes.append("no power cap in the telemetry: the limit is unknown")
    absent = [str(gpu.gpu) for gpu in found if not any(map(len, gpu.signals.values()))]
    if absent:
        notes.append(f"no telemetry of GPU {', '.join(absent)} in the scope's time")
    return tuple(notes)


def energy_bars(level: str, labels: Sequence[str], joules: Float64) -> tuple[BarChart, ...]:
    known = np.flatnonzero(np.isfinite(joules))
    if not len(known):
        return ()
    if level in _LARGEST_FIRST:
        known = known[np.argsort(-joules[known], kind="stable")]
    some = known[:_MAX_BARS]
    words = tuple(labels[place] for place in some.tolist())
    return (
        BarChart(
            f"energy by {level_title(level)}",
            "J",
            words,
            (Series("energy", joules[some]),),
            level,
        ),
    )
