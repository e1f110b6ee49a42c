"""The figures of a run in a table of runs: each is one of its views, or follows from its settings.

A figure is computed nowhere else than in its view, and reduced to one number: its total, or the
mean, smallest or largest of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isfinite, nan
from pathlib import PurePath
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.memory import failed_allocations
from chopper_core.analyses.samples import node_amounts
from chopper_core.analyses.step_parts import step_parts_of
from chopper_core.analyses.step_times import replicas
from chopper_core.analyses.step_traffic import LINKS
from chopper_core.analyses.time_parts import unknown_flops, with_parts
from chopper_core.analyses.training import training_of
from chopper_core.columns import (
    METRICS,
    Metric,
    Reduces,
    Values,
    columns,
    computed_column,
    metric_named,
)
from chopper_core.extensions.runs.run_rows import OK, PARTIAL, SHORT, RunRow, RunRows
from chopper_core.model.run import Run
from chopper_core.model.settings import KNOWN, Setting, Settings
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError, NothingToShow
from chopper_core.util.grouping import evenly
from chopper_core.views import view_spec
from chopper_core.views.frame import Number
from chopper_core.views.query import answer, check_fits, run_frame
from chopper_core.views.shared.row_columns import node_figures as root_figures

TOTAL: Final = "total"
MEAN: Final = "mean"
LEAST: Final = "smallest"
LARGEST: Final = "largest"
_WORDS: Final = {
    TOTAL: "The total of {}.",
    MEAN: "The mean of {} over its rows.",
    LEAST: "The smallest {} of its rows.",
    LARGEST: "The largest {} of its rows.",
}
WORLD: Final = "world"
"""The setting of the number of ranks of the job; some may have no data."""
TREE: Final = "explore"
"""The name of the tree as a view."""
LOWER: Final = -1
HIGHER: Final = 1


class RunColumn(Struct, frozen=True):
    """A column of a table of runs."""

    metric: Metric
    better: int = 0
    """`LOWER` or `HIGHER` where one is better than the other."""
    view: str = ""
    """The view that has it."""
    name: str = ""
    """Its name there."""
    how: str = TOTAL
    """How the view's figure becomes one of the run."""


def _of_view(
    name: str, unit: str, title: str, better: int, view: str, figure: str, how: str, text: str = ""
) -> RunColumn:
    source = f"`{figure}` of the view {view}" if view != TREE else f"`{figure}` of the tree"
    definition = f"{text} {_WORDS[how].format(source)}".strip()
    missing = NO_SIGNAL if view == "power" else ""
    metric = computed_column(name, unit, title, definition, missing_because=missing)
    return RunColumn(metric, better, view, figure, how)


def _derived(name: str, unit: str, title: str, better: int, text: str, missing: str) -> RunColumn:
    return RunColumn(computed_column(name, unit, title, text, missing_because=missing), better)


_NO_BATCH: Final = "the settings name no global batch (--set global_batch=128)"
_NO_TOKENS: Final = (
    "neither the shapes in the trace nor the settings (global_batch and sequence) give the tokens"
)
NO_SIGNAL: Final = "the telemetry of some of the GPUs lacks it"
_OR_ENERGY: Final = "or j_per_step is unknown"


def _traffic_columns() -> Iterator[RunColumn]:
    for link, of in LINKS.items():
        whose = "nodes" if of.whose else "GPUs"
        for way, done in (("in", "receive"), ("out", "send")):
            yield _of_view(
                *(f"{link}_{way}_step_bytes", "B", f"{of.title} {way} a step", 0, "power"),
                *(f"{link}_{way}_step_bytes", TOTAL),
                f"Bytes that all {whose} {done} over {of.title} in a step.",
            )
        yield _derived(
            *(f"{link}_token_bytes", "B", f"{of.title} a token", 0),
            f"{link}_in_step_bytes + {link}_out_step_bytes, over the tokens of a step.",
            f"{_NO_TOKENS}, or {link}_in_step_bytes is unknown",
        )


STEP_PARTS: Final = {
    "compute_step_ns": "compute",
    "exposed_comm_step_ns": "exposed communication",
    "exposed_copy_step_ns": "exposed copies",
    "idle_step_ns": "idle",
}
"""The parts of step_time_ns, which add up to it."""


def _part_columns() -> Iterator[RunColumn]:
    for name, title in STEP_PARTS.items():
        better = 0 if name == "compute_step_ns" else LOWER
        text = f"The part of step_time_ns that is {title}; the parts add up to it."
        yield _derived(name, "ns", title, better, text, "the run has no complete step")


# fmt: off
_OWN: Final = (
    _of_view("step_time_ns", "ns", "step", LOWER, "throughput", "iteration_ns", TOTAL,
             "Step time: the mean over the complete steps and GPUs."),
    _derived("run_tokens_per_s", "tok/s", "run tok/s", HIGHER,
             "Tokens per second of the whole run: tokens of a step / step_time_ns. The tokens of"
             " a step are global_batch x sequence of the settings; else tokens_per_s of a GPU x "
             "all ranks.", _NO_TOKENS),
    _of_view("mfu_pct", "%", "MFU", HIGHER, "overheads", "mfu_pct", TOTAL,
             "Model FLOPs utilisation: the time that the model's FLOPs take at peak, in % of the"
             " time. Recomputation is no FLOP of the model."),
    _derived("straggler", "", "straggler", 0,
             "The GPU that the others wait for (see the view ranks).",
             "no GPU delays the others"),
    _derived("straggler_delay_ns", "ns", "delay", LOWER,
             "How long the straggler delays a step: its `delay_ns` of the view ranks.",
             "no GPU delays the others, or no collective is complete"),
    _derived("samples_per_s", "1/s", "samples", HIGHER,
             "global_batch of the settings / step_time_ns.", _NO_BATCH),
    _of_view("tokens_per_s", "tok/s", "tok/s/GPU", HIGHER, "throughput", "tokens_per_s", TOTAL,
             "Tokens per second and GPU."),
    _derived("j_per_step", "J", "step energy", LOWER,
             "Energy of a step: the total of `iteration_energy_j` of the view power.",
             "telemetry of power or energy covers no step on every GPU"),
    _derived("j_per_token", "J", "token energy", LOWER,
             "j_per_step / tokens of a step (see run_tokens_per_s).",
             f"{_NO_TOKENS}, {_OR_ENERGY}"),
    _derived("tokens_per_j", "tok/J", "tok/J", HIGHER, "Tokens of a step / j_per_step.",
             f"{_NO_TOKENS}, {_OR_ENERGY}"),
    _derived("j_per_sample", "J", "sample energy", LOWER,
             "j_per_step / global_batch of the settings.", f"{_NO_BATCH}, {_OR_ENERGY}"),
    _derived("samples_per_s_mj", "1/(s·MJ)", "samples", HIGHER,
             "samples_per_s / j_per_step in MJ: CharLLM-PPT's efficiency.",
             f"{_NO_BATCH}, {_OR_ENERGY}"),
    _of_view("gpu_power_w", "W", "mean W", LOWER, "power", "mean_power_w", MEAN,
             "Power of a GPU over time."),
    _of_view("peak_power_w", "W", "peak W", LOWER, "power", "peak_power_w", LARGEST),
    _of_view("gpu_hotspot_c", "°C", "mean °C", LOWER, "power", "mean_hot_c", MEAN,
             "Temperature of a GPU over time: of its hottest spot, else of the edge."),
    _of_view("peak_hotspot_c", "°C", "peak °C", LOWER, "power", "hottest_c", LARGEST),
    _derived("window_ns", "ns", "window", 0,
             "The time of the samples of a run of telemetry alone: the total of `window_ns` of "
             "the summary.", "the run has a trace"),
    _derived("window_energy_j", "J", "energy", LOWER,
             "The energy of all GPUs in the window: the total of `sampled_energy_j` of the "
             "summary.", "the run has a trace, or no power of some GPU"),
    _of_view("gpu_mhz", "MHz", "mean gfx MHz", HIGHER, "power", "mean_gfx_mhz", MEAN,
             "Clock of the compute units of a GPU over time."),
    _of_view("low_mhz", "MHz", "low MHz", HIGHER, "power", "busy_p05_mhz", LEAST,
             "5th percentile of the slowest GPU's clock while it is busy."),
    _of_view("lowest_mhz", "MHz", "lowest MHz", HIGHER, "power", "lowest_gfx_mhz", LEAST),
    _of_view("gpu_throttled_pct", "%", "throttled", LOWER, "power", "throttled_pct", MEAN),
    _of_view("gpu_low_clock_pct", "%", "at low clock", LOWER, "power", "low_clock_pct", MEAN,
             "Throttling of a run of telemetry without limiters."),
    _of_view("peak_bytes", "B", "peak mem", LOWER, TREE, "peak_bytes", TOTAL,
             "The most that the framework allocated on a GPU."),
    _of_view("peak_vram_bytes", "B", "peak VRAM", LOWER, "power", "peak_vram_bytes", LARGEST,
             "The most memory in use on a GPU, by telemetry."),
    *_traffic_columns(),
    _of_view("exposed_comm_pct", "%", "exposed", LOWER, "overheads", "exposed_comm_pct", TOTAL,
             "Exposed communication in % of the GPUs' time."),
    _of_view("idle_pct", "%", "idle", LOWER, "overheads", "idle_pct", TOTAL),
    _of_view("bubble_pct", "%", "bubble", LOWER, "pipeline", "bubble_pct", TOTAL),
    _of_view("hfu_pct", "%", "HFU", HIGHER, "overheads", "hfu_pct", TOTAL,
             "Hardware FLOPs utilization: as mfu_pct, with the FLOPs of recomputation."),
    *_part_columns(),
)
# fmt: on
RUN_COLUMNS: Final = {each.metric.name: each for each in _OWN}
"""The figures of a run by name, the most important first."""
_OF_A_RUN: Final = columns(
    """
    gpus | | GPUs
        The number of GPUs with data.
    status | | status
        ok; short: no complete step; partial: some files, or parts of them, can't be read;
        failed: none can.
    reason | | reason
        Why a run is short, partial or failed.
        missing: the run is ok
    """,
    source="runs",
)
GPUS, STATUS, REASON = (_OF_A_RUN[name] for name in ("gpus", "status", "reason"))
_TRAFFIC: Final = tuple(f"{link}_{way}_step_bytes" for link in LINKS for way in ("in", "out"))
SHOWN_ON_REQUEST: Final = (
    *("tokens_per_s", "tokens_per_j", "j_per_sample", "lowest_mhz", "hfu_pct"),
    *(f"{link}_{what}_bytes" for link in LINKS for what in ("in_step", "out_step", "token")),
    *STEP_PARTS,
)
"""Those of them that are no default columns; nor are those that no run has."""


def setting_column(name: str) -> Metric:
    if name == WORLD:
        text = "The number of ranks of the job, according to its traces."
        return computed_column(name, "", "ranks", text, missing_because="no trace gives it")
    text = f"The setting {name}: from the command line, a manifest, the job's file or the name."
    return computed_column(
        name, "", KNOWN.get(name, name), text, missing_because="no source gives it"
    )


def is_better(name: str) -> int:
    """Whether lower or higher figures of a column are better; 0 where neither is."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].better
    known = METRICS.get(name)
    if known is None:
        return 0
    if known.unit in (Unit.TFLOPS, Unit.TOKENS_PER_S) or name in ("busy_pct", "gfx_mhz"):
        return HIGHER
    return LOWER if known.unit in (Unit.NS, Unit.JOULES, Unit.WATTS, Unit.CELSIUS) else 0


def known_column(name: str) -> Metric:
    """The column of a name in a table of runs: its own, or any metric; raises UsageError."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].metric
    metric = metric_named(name)
    # Each from one run: sums over runs don't make a total.
    return replace(metric, reduces=Reduces.NONE)


_OF_NODE: Final = ("throughput", "overheads")
"""Views whose totals are figures of all activities of complete steps."""
_REDUCTIONS: Final[dict[str, Any]] = {MEAN: np.mean, LEAST: np.min, LARGEST: np.max}
_PER_ENERGY: Final = ("j_per_token", "tokens_per_j", "j_per_sample", "samples_per_s_mj")
_MOST_STEPS: Final = 1000
"""Of a log, evenly chosen: they tell how times vary."""
_LOG_ALONE: Final = "it has the log of a trainer alone, which lacks it"
_SNAPSHOTS_ALONE: Final = "it has memory snapshots alone, without a trace"
NO_TIMES_IN_LOG: Final = "the log states no step times, and has no stamps"
_NO_TRACE: Final = "it has telemetry alone, without a trace"
_NO_WINDOW: Final = "the samples have no times, or none of the power"
_WINDOW: Final = {
    "window_ns": ("overview", "window_ns"),
    "window_energy_j": ("overview", "sampled_energy_j"),
}
"""The figures of the window of a run of telemetry alone, and where they are."""
_STEP_ENERGY: Final = {"j_per_step": ("power", "iteration_energy_j")}
"""The same of a run with a trace."""
STEPS: Final = "steps"
"""The setting of how many steps the window of a run of telemetry alone has."""


def figures_of_run(run: Run) -> RunRow:
    """The row of a run by its files alone."""
    figures: dict[str, float | str] = {GPUS.name: float(len(run.gpus))}
    steps_ns: tuple[float, ...] = ()
    places = {name: (each.view, each.name) for name, each in RUN_COLUMNS.items() if each.view}
    if run.is_logged_only:
        return _of_log(run)
    if run.is_snapshot:
        return _of_snapshot(run)
    if run.is_sampled_only:
        missing = dict.fromkeys(RUN_COLUMNS, _NO_TRACE)
        places = {name: place for name, place in places.items() if place[0] == "power"}
        missing |= dict.fromkeys(places, NO_SIGNAL)
        missing |= dict.fromkeys(
            (*_WINDOW, *_STEP_ENERGY, "step_time_ns"), run.status or _NO_WINDOW
        )
        _take(run, {**places, **({} if run.status else _WINDOW)}, figures, {})
        if not run.status:
            figures |= _window_bytes(run)
        status, reason = SHORT if run.status else OK, run.status
    else:
        missing = {name: each.metric.missing_because for name, each in RUN_COLUMNS.items()}
        _take(run, {**places, **_STEP_ENERGY}, figures, missing)
        if "mfu_pct" in figures:
            kernels = run.tree_of(View(run.name)).split((), ("operation", "kernel"))
            if unknown := unknown_flops(kernels):
                for name in ("mfu_pct", "hfu_pct"):
                    figures.pop(name, None)
                    missing[name] = unknown
        _take_straggler(run, figures, missing)
        if "step_time_ns" in figures:
            steps = step_parts_of(run, View(run.name))
            steps_ns = tuple(steps.each_ns[steps.steady].tolist())
            *computing, comm, copies, idle = steps.means_ns.tolist()
            figures |= zip(STEP_PARTS, (sum(computing), comm, copies, idle), strict=True)
        reason = _problem(run)
        status = PARTIAL if reason else OK
        if not steps_ns:
            status, reason = SHORT, reason or missing["step_time_ns"]
    missing = {name: why for name, why in missing.items() if name not in figures}
    settings: dict[str, Setting] = {WORLD: run.world} if run.world else {}
    settings |= {} if run.parallel is None else run.parallel.sizes
    return RunRow(run.name, run.name, settings, status, reason, figures, missing, steps_ns)


def _window_bytes(run: Run) -> dict[str, float]:
    """The bytes over each link in the window of telemetry alone, by direction: of all GPUs."""
    found: dict[str, float] = {}
    total = answer(run, View(run.name, name="power", is_total=True)).total
    for link, of in LINKS.items():
        for way in ("in", "out"):
            name = f"{link}_{way}_bytes"
            amount = sum(node_amounts(run, name).values()) if of.whose else total.get(name)
            if amount:
                found[f"window_{link}_{way}_step_bytes"] = float(amount)
    return found


def _of_log(run: Run) -> RunRow:
    """The row of a run of a trainer's log alone."""
    training = training_of(run)
    figures: dict[str, float | str] = {}
    if training is not None:
        if len(training.ranks):
            figures[GPUS.name] = float(len(training.ranks))
        known = {
            "step_time_ns": training.usual_ns,
            "tokens_per_s": training.mean("tokens_per_s", training.steady),
            "mfu_pct": training.mean("mfu_pct", training.steady),
            "peak_bytes": training.mean("memory_bytes", training.steady),
        }
        figures |= {name: number for name, number in known.items() if isfinite(number)}
    missing = {name: _LOG_ALONE for name in RUN_COLUMNS if name not in figures}
    status, reason = (OK, "") if "step_time_ns" in figures else (SHORT, NO_TIMES_IN_LOG)
    failed = failed_allocations(run)
    if training is not None and failed and failed[-1].ends(training):
        status, reason = SHORT, failed[-1].sentence
    each_ns = [] if training is None else training.step_ns[training.steady].tolist()
    times = evenly(each_ns, _MOST_STEPS)
    return RunRow(run.name, run.name, {}, status, reason, figures, missing, times)


def _of_snapshot(run: Run) -> RunRow:
    """The row of a run of memory snapshots alone: the most that is allocated on a GPU."""
    figures: dict[str, float | str] = {
        GPUS.name: float(len(run.gpus)),
        "peak_bytes": float(run.side(MemoryEvents).allocated.max()),
    }
    missing = {name: _SNAPSHOTS_ALONE for name in RUN_COLUMNS if name not in figures}
    failed = failed_allocations(run)
    reason = failed[-1].sentence if failed else _SNAPSHOTS_ALONE
    return RunRow(run.name, run.name, {}, SHORT, reason, figures, missing, ())


def _take(
    run: Run,
    places: Mapping[str, tuple[str, str]],
    figures: dict[str, float | str],
    missing: dict[str, str],
) -> None:
    """Figures of a run from the views and columns that have them, or why they are missing."""
    for view in dict.fromkeys(view for view, _ in places.values()):
        columns = {name: there for name, (of, there) in places.items() if of == view}
        try:
            metrics, total, values = _told(run, view, columns.values())
        except NothingToShow as error:
            missing |= dict.fromkeys(columns, str(error))
            continue
        because = {metric.name: metric.missing_because for metric in metrics}
        for name, there in columns.items():
            number: float | None = total.get(there)
            if (how := RUN_COLUMNS[name].how) != TOTAL and there in values:
                own = values[there]
                is_known = len(own) > 0 and own.present().all()
                number = _REDUCTIONS[how](own.numbers) if is_known else None
            if number is not None and np.isfinite(number):
                figures[name] = float(number)
            elif there in because:
                missing[name] = because[there] or "the run lacks it on some of its GPUs"
            else:
                missing[name] = RUN_COLUMNS[name].metric.missing_because


_Told = tuple[Iterable[Metric], Mapping[str, Number | None], Mapping[str, Values]]


def _told(run: Run, name: str, columns: Collection[str]) -> _Told:
    """A view's columns, total row and rows: of what most runs have the total alone."""
    view = View(
        run.name, name="" if name == TREE else name, is_total=name not in ("overheads", "power")
    )
    if name == TREE:
        metrics = [metric_named(each, run.table, run.counter_info) for each in columns]
        known = root_figures(run, view, columns)
        return metrics, {each: values.at(0) for each, values in known.items()}, {}
    if name in _OF_NODE:
        check_fits(run, view, view_spec(name))
        if name == "throughput":
            step_parts_of(run, view)  # It says why there is none.
        known = root_figures(with_parts(run), View(run.name), columns)
        return map(METRICS.__getitem__, columns), {n: v.at(0) for n, v in known.items()}, {}
    found = answer(run, view)
    return (
        (each for each, _ in found.columns),
        found.total,
        {each.name: values for each, values in found.columns},
    )


def _problem(run: Run) -> str:
    """What of the run's files can't be read; empty where all of them can."""
    if run.failed:
        others = len(run.failed) - 1
        return f"{run.failed[0][1]}{f' The same for {others} other files.' if others else ''}"
    lost = [(each, loss) for each in run.sources for loss in each.losses]
    if not lost:
        return ""
    more = f" And {len(lost) - 1} more losses." if len(lost) > 1 else ""
    return f"{PurePath(lost[0][0].path).name}: {lost[0][1]}{more}"


def _take_straggler(run: Run, figures: dict[str, float | str], missing: dict[str, str]) -> None:
    from chopper_core.analyses.leads import leads

    names = ("straggler", "straggler_delay_ns")
    try:
        if not run.table.has_times:
            raise NothingToShow("the run has no times")
        found, _ = leads(run, View(run.name))
    except ChopperError as error:
        missing |= dict.fromkeys(names, str(error))
        return
    if not found.stragglers:
        missing |= dict.fromkeys(names, "no GPU delays the others")
        return
    late = str(found.gpus[found.behind])
    figures["straggler"] = f"GPU {late}"
    frame = run_frame(run, View(run.name, name="ranks", columns=("delay_ns",)))
    delay = frame.values["delay_ns"].at(list(frame.labels).index(late))
    if delay is None:
        missing[names[1]] = RUN_COLUMNS[names[1]].metric.missing_because
    else:
        figures["straggler_delay_ns"] = float(delay)


def root_figure(run: RunRows, row: RunRow, name: str) -> float | None:
    try:
        found = root_figures(run.others[row.path], View(row.path), (name,))[name]
        return None if found.words is not None else found.at(0)
    except ChopperError:
        return None


def with_settings(found: RunRow, settings: Settings) -> RunRow:
    """The row with what follows from the settings; what can't be derived has a reason."""
    figures, missing = dict(found.figures), dict(found.missing)
    steps, window = _number(settings, STEPS), _number(figures, "window_ns")
    if isfinite(window / steps):
        figures["step_time_ns"] = window / steps
        if isfinite(whole := _number(figures, "window_energy_j")):
            figures["j_per_step"] = whole / steps
        figures |= {
            name: amount / steps
            for name in _TRAFFIC
            if isfinite(amount := _number(figures, f"window_{name}"))
        }
    elif isfinite(window):
        wanted = "telemetry alone doesn't give the number of steps; add --set steps=1"
        traffic = [name for name in _TRAFFIC if f"window_{name}" in figures]
        missing |= dict.fromkeys(("step_time_ns", "j_per_step", *traffic), wanted)
    step_s, energy = _number(figures, "step_time_ns") * 1e-9, _number(figures, "j_per_step")
    batch, sequence = (_number(settings, name) for name in ("global_batch", "sequence"))
    gpus = _number(figures, GPUS.name, 0.0)
    world = _number(settings, WORLD, gpus)
    # The settings may know more than the trace about who shares tokens.
    rate = _number(figures, "tokens_per_s") * (replicas(settings) / replicas(found.settings))
    tokens = rate * step_s * world
    if isfinite(batch * sequence):
        tokens = batch * sequence
        rate = tokens / step_s / world if world else nan
    if isfinite(rate):
        figures["tokens_per_s"] = rate
    # Energy and tokens have to be of the same GPUs.
    per_energy = energy if gpus >= world else nan
    derived = {
        "samples_per_s": batch / step_s,
        "run_tokens_per_s": tokens / step_s,
        "j_per_token": per_energy / tokens,
        "j_per_sample": per_energy / batch,
        "tokens_per_j": tokens / per_energy,
        "samples_per_s_mj": 1e6 * (batch / step_s) / per_energy,
    }
    for link in LINKS:
        ways = (_number(figures, f"{link}_{way}_step_bytes") for way in ("in", "out"))
        derived[f"{link}_token_bytes"] = sum(ways) / tokens
    partly = f"energy is known of {gpus:.0f} of {world:g} GPUs"
    for name, number in derived.items():
        if isfinite(number):
            figures[name] = number
        elif isfinite(energy) and gpus < world and name in _PER_ENERGY:
            missing[name] = partly
        elif not isfinite(step_s) and name.endswith("_per_s"):
            missing[name] = missing.get("step_time_ns", "the step time is unknown")
        else:
            missing[name] = RUN_COLUMNS[name].metric.missing_because
    missing = {name: reason for name, reason in missing.items() if name not in figures}
    return replace(found, settings=settings, figures=figures, missing=missing)


def _number(values: Mapping[str, Setting], name: str, missing: float = nan) -> float:
    value = values.get(name)
    return value if isinstance(value, int | float) and value > 0 else missing
