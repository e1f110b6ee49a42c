"""The figures of an open run in a table of runs, and those that follow from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.extensions.runs.run_columns import (
    LARGEST,
    LEAST,
    MEAN,
    NO_SIGNAL,
    RUN_COLUMNS,
    TOTAL,
    TREE,
    WORLD,
)
from chopper_core.extensions.runs.run_set import RunFigures
from chopper_core.model.run import Run
from chopper_core.model.settings import Setting, Settings
from chopper_core.model.view import View
from chopper_core.util.arrays import Numbers
from chopper_core.util.errors import ChopperError, NothingToShow, UsageError
from chopper_core.views.query import run_frame
from chopper_core.views.shared.children import figures as root_figures
from chopper_core.views.shared.step_times import replicas
from chopper_core.views.throughput.parts import steps_of

_REDUCTIONS: Final[Mapping[str, Callable[[Numbers], float]]] = {
    MEAN: lambda numbers: float(numbers.mean()),
    LEAST: lambda numbers: float(numbers.min()),
    LARGEST: lambda numbers: float(numbers.max()),
}
_MAX_UNKNOWN_FLOPS_PCT: Final = 5.0
"""Of the time of matrix kernels: with more, the share of the peak would be far too small."""
_PER_ENERGY: Final = ("j_per_token", "tokens_per_j", "j_per_sample", "samples_per_s_mj")
_NO_TRACE: Final = "it has telemetry alone, without a trace"
_NO_WINDOW: Final = "the samples have no times, or none of the power"
STEPS: Final = "steps"
"""The setting of how many steps the window of a run of telemetry alone has."""


def figures_of_run(run: Run) -> RunFigures:
    figures: dict[str, float | str] = {}
    missing: dict[str, str] = {}
    wanted: dict[str, list[tuple[str, str, str]]] = {}
    for name, each in RUN_COLUMNS.items():
        if each.view:
            wanted.setdefault(each.view, []).append((name, each.name, each.how))
    if run.is_sampled_only:
        return _figures_of_samples(run, wanted["power"])
    wanted["power"].append(("j_per_step", "iteration_energy_j", TOTAL))
    for view, columns in wanted.items():
        _take_view(run, view, columns, figures, missing)
    if (reason := _unknown_flops(run)) and "mfu_pct" in figures:
        del figures["mfu_pct"]
        missing["mfu_pct"] = reason
    _take_straggler(run, figures, missing)
    for name, each in RUN_COLUMNS.items():
        if name not in figures:
            missing.setdefault(name, each.metric.missing_because)
    problem = ""
    if run.failed:
        problem = str(run.failed[0][1])
        more = len(run.failed) - 1
        problem += f" The same for {more} other files." if more else ""
    elif lost := [(each, loss) for each in run.sources for loss in each.losses]:
        problem = f"{PurePath(lost[0][0].path).name}: {lost[0][1]}"
        problem += f" And {len(lost) - 1} more losses." if len(lost) > 1 else ""
    steps_ns = _steps_ns(run) if "step_time_ns" in figures else ()
    is_short = not steps_ns
    if is_short and not problem:
        problem = missing.get("step_time_ns", "")
    count, settings = len(run.gpus), _settings_of(run)
    return RunFigures(figures, missing, count, settings, problem, steps_ns, is_short)


def _steps_ns(run: Run) -> tuple[float, ...]:
    steps = steps_of(run, View(run.name))
    return tuple(steps.each_ns[steps.steady].tolist())


def _figures_of_samples(run: Run, power: list[tuple[str, str, str]]) -> RunFigures:
    """The figures of a run of telemetry alone: those of its power, and of its window."""
    figures: dict[str, float | str] = {}
    missing: dict[str, str] = {}
    _take_view(run, "power", power, figures, missing)
    missing = dict.fromkeys(missing, NO_SIGNAL)
    windows = {"window_ns": "window_ns", "window_energy_j": "sampled_energy_j"}
    if not run.status:
        of_window = [(name, there, TOTAL) for name, there in windows.items()]
        _take_view(run, "overview", of_window, figures, missing)
    for name in ("step_time_ns", "j_per_step", *windows):
        missing[name] = run.status or _NO_WINDOW
    missing |= {name: _NO_TRACE for name in RUN_COLUMNS if name not in {**figures, **missing}}
    missing = {name: reason for name, reason in missing.items() if name not in figures}
    settings, count = _settings_of(run), len(run.gpus)
    return RunFigures(figures, missing, count, settings, run.status, is_short=bool(run.status))


def _take_view(
    run: Run,
    view: str,
    columns: list[tuple[str, str, str]],
    figures: dict[str, float | str],
    missing: dict[str, str],
) -> None:
    names = tuple(dict.fromkeys(name for _, name, _ in columns))
    try:
        frame = run_frame(run, View(run.name, name="" if view == TREE else view, columns=names))
    except NothingToShow as error:
        missing |= {name: str(error) for name, _, _ in columns}
        return
    except UsageError as error:
        if len(columns) == 1:
            name = columns[0][0]
            known = RUN_COLUMNS[name].metric.missing_because if name in RUN_COLUMNS else ""
            missing[name] = known or str(error)
            return
        # The view has some of them for this run.
        for each in columns:
            _take_view(run, view, [each], figures, missing)
        return
    reasons = {each.name: each.missing_because for each in frame.columns}
    for name, there, how in columns:
        values = frame.values[there]
        if how == TOTAL:
            number = frame.total.get(there)
        elif len(values) and values.present().all():
            number = _REDUCTIONS[how](values.numbers)
        else:
            number = None
        if number is None or not np.isfinite(number):
            missing[name] = reasons[there] or "the run lacks it on some of its GPUs"
        else:
            figures[name] = float(number)


def _unknown_flops(run: Run) -> str:
    from chopper_core.views.overheads import without_flops

    if not run.table.has_times:
        return ""
    kernels = run.tree_of(View(run.name)).split((), ("operation", "kernel"))
    share = without_flops(kernels)
    if share <= _MAX_UNKNOWN_FLOPS_PCT:
        return ""
    return f"{share:.0f} % of the time of matrix kernels has unknown FLOPs"


def _take_straggler(run: Run, figures: dict[str, float | str], missing: dict[str, str]) -> None:
    from chopper_core.views.shared.leads import leads

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


def _settings_of(run: Run) -> dict[str, Setting]:
    """The settings that the trace names: sizes of its groups of ranks, and its world."""
    found: dict[str, Setting] = {}
    if run.world:
        found[WORLD] = run.world
    if run.parallel is not None:
        found |= run.parallel.sizes
    return found


def root_figure(run: Run, name: str) -> float | None:
    return root_figures(run, View(run.name), (name,))[name].at(0)


def with_settings(found: RunFigures, settings: Settings) -> RunFigures:
    """The figures with those that follow from the settings; what can't be derived has a reason."""
    figures, missing = dict(found.figures), dict(found.missing)
    steps, window = _number(settings, STEPS), _number(figures, "window_ns")
    if window and steps:
        figures["step_time_ns"] = window / steps
        if whole := _number(figures, "window_energy_j"):
            figures["j_per_step"] = whole / steps
    elif window:
        wanted = "telemetry alone doesn't give the number of steps; add --set steps=1"
        missing |= dict.fromkeys(("step_time_ns", "j_per_step"), wanted)
    step_s = _number(figures, "step_time_ns", 1e-9)
    batch, sequence = (_number(settings, name) for name in ("global_batch", "sequence"))
    energy = _number(figures, "j_per_step")
    world = _number(settings, WORLD) or found.gpus
    # Energy and tokens have to be of the same GPUs.
    is_whole = found.gpus >= world
    tokens = batch * sequence if batch and sequence else None
    rate = _number(figures, "tokens_per_s")
    if rate:
        # The settings may know more than the trace about who shares tokens.
        rate *= replicas(settings) / replicas(found.settings)
        figures["tokens_per_s"] = rate
    if tokens is None and rate and step_s:
        tokens = rate * step_s * world
    per_energy = energy if energy and is_whole else None
    derived = {
        "samples_per_s": _ratio(batch, step_s),
        "run_tokens_per_s": _ratio(tokens, step_s),
        "j_per_token": _ratio(per_energy, tokens),
        "j_per_sample": _ratio(per_energy, batch),
        "tokens_per_j": _ratio(tokens, per_energy),
        "samples_per_s_mj": _ratio(_ratio(batch, step_s), per_energy, 1e6),
    }
    partly = f"energy is known of {found.gpus} of {world:g} GPUs"
    for name, number in derived.items():
        if number is not None:
            figures[name] = number
        elif energy and not is_whole and name in _PER_ENERGY:
            missing[name] = partly
        elif step_s is None and name.endswith("_per_s"):
            missing[name] = missing.get("step_time_ns", "the step time is unknown")
        else:
            missing[name] = RUN_COLUMNS[name].metric.missing_because
    missing = {name: reason for name, reason in missing.items() if name not in figures}
    return replace(found, figures=figures, missing=missing)


def _number(values: Mapping[str, Setting], name: str, scale: float = 1.0) -> float | None:
    value = values.get(name)
    return value * scale if isinstance(value, int | float) and value > 0 else None


def _ratio(part: float | None, whole: float | None, factor: float = 1.0) -> float | None:
    return factor * part / whole if part is not None and whole else None
