"""Memory chart: the units of the GPU, its caches, fabric and memory, with their rates by counters.

The figures are metrics of counters (`columns.counters_formulas`, `columns.counters_units`), of a
scope as one; each is a row, and the most important ones are in the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import isfinite, nan
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.columns import METRICS, Metric, Scope, Theme, Values, columns, numbered, worded
from chopper_core.columns.metric import Reduces
from chopper_core.model.charts import DataPath, GpuUnit, MemoryChart, UnitFigure
from chopper_core.model.column_names import is_counted
from chopper_core.model.phrases import count, facts
from chopper_core.model.run import Run, SideSource
from chopper_core.model.units import Unit, UnitScale
from chopper_core.model.view import View, pivot
from chopper_core.util.errors import NothingToShow
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="memchart",
    title="Kernels · data flow",
    question="How busy are the GPU's units, caches, fabric and memory, and how much flows between?",
    by=("figure",),
    no_statistic="shows the figures of the scope as a whole",
)
COLUMNS: Final = columns(
    """
    gpu_unit | | unit of GPU
        The unit of the GPU that the figure is about.
    figure_text | | value
        The figure with its unit; one that adds up is per step and GPU, of the GPUs with counters.
        missing: the counters of the figure were not collected
    figure_value | | number
        The same as a number, in the unit next to it.
        missing: the counters of the figure were not collected
    figure_unit | | its unit
        The unit of the number.
    of_peak_pct | % | of its peak
        The figure in % of its peak: of itself where it is a share, else by its `_peak_pct`.
        missing: the figure has no peak, or the GPU is not in hardware.toml
""",
    source="counters",
)
_UNITS: Final = """
compute | 0
    mfma_util_pct MFMA; valu_util_pct VALU; salu_util_pct SALU; vmem_util_pct VMEM;
    branch_util_pct jumps; cu_util_pct CUs; occupancy_pct waves; mfma_peak_pct peak;
    mfma_tflops flops; valu_tflops vector; active_cus active; ipc IPC; valu_threads threads;
    waves launched; resident_waves resident; not_scheduled_pct no slot; vgpr_full_pct VGPR full;
    lds_full_pct LDS full; slots_full_pct slots full; counter_mhz clock
LDS | 1
    lds_peak_pct peak; lds_util_pct busy; lds_conflict_pct clash; lds_latency_cycles delay
L1 vector | 1
    vl1d_peak_pct peak; vl1d_hit_pct hit; vl1d_util_pct busy; vl1d_data_stall_pct stall;
    coalescing_pct merge; utcl1_hit_pct TLB; vmem_latency_cycles delay
L1 scalar | 1
    sl1d_hit_pct hit; sl1d_peak_pct peak
L1 code | 1
    l1i_hit_pct hit; l1i_l2_peak_pct peak
L2 | 2
    l2_peak_pct peak; l2_hit_pct hit; l2_util_pct busy; l2_gbps rate;
    l2_streaming stream; l2_uncached uncached
fabric | 3
    fabric_read_latency_cycles read; fabric_write_latency_cycles write; remote_read_pct far;
    fabric_bytes sum
HBM | 3
    fabric_read_peak_pct read; fabric_write_peak_pct write; hbm_read_pct near
"""
"""Title and stage of each unit, its metrics and their short names, the most important first."""
_PATHS: Final = """
compute > LDS: lds_gbps
compute > L1 vector: vl1d_gbps
L1 vector > L2: l1_l2_read_gbps l1_l2_write_gbps
L1 scalar > L2: sl1d_l2_gbps
L1 code > L2: l1i_l2_gbps
L2 > fabric: fabric_read_gbps fabric_write_gbps
"""
"""Near and far unit, and the rates inward and outward, or of both together."""
_PEAKS: Final = {
    "lds_gbps": "lds_peak_pct",
    "vl1d_gbps": "vl1d_peak_pct",
    "l2_gbps": "l2_peak_pct",
    "sl1d_l2_gbps": "sl1d_l2_peak_pct",
    "l1i_l2_gbps": "l1i_l2_peak_pct",
    "fabric_read_gbps": "fabric_read_peak_pct",
    "fabric_write_gbps": "fabric_write_peak_pct",
}
"""Rate → the same in % of its peak."""
_PREFIXES: Final = {
    "compute": ("mfma", "valu", "salu", "smem", "vmem", "flat", "branch", "message", "mix",
                      "ipc", "cu_", "wave", "active", "resident", "occupancy"),
    "LDS": ("lds_",),
    "L1 vector": ("vl1d", "ta_", "td_", "utcl1", "coalescing", "l1_l2"),
    "L1 scalar": ("sl1d",),
    "L1 code": ("l1i",),
    "L2": ("l2_",),
    "fabric": ("fabric", "remote"),
    "HBM": ("hbm",),
    "workgroup manager": ("not_scheduled", "pipe_", "scratch", "vgpr", "sgpr", "slots", "barriers",
                          "workgroups", "waves_full", "lds_full"),
    "command processor": ("cpc", "cpf"),
}  # fmt: skip
"""The unit of a metric by how its name begins; the longest one counts. Others are of the GPU."""
_NO_LOADS: Final = ("_hit_pct", "coalescing_pct", "hbm_read_pct")
"""How metrics end that are the better the larger."""
_GPU: Final = "GPU"
_NO_COUNTERS: Final = (
    "no hardware counters of rocprofv3; chopper record --counters collects them, and "
    "docs/telemetry.md says how to attach them"
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    if any(map(is_counted, run.table.measured)):
        return ""
    return run.still_reading(SideSource.COUNTERS) or _NO_COUNTERS


def answer(run: Run, view: View) -> ViewResult:
    scope = Scope.of(run, run.tree_of(view).node(view.path))
    figures = {name: metric for name, metric in METRICS.items() if metric.theme is Theme.COUNTERS}
    values = {name: metric.compute(scope) for name, metric in figures.items()}
    counted = {each.gpu for each in run.counters}
    base = base_of(run, view)
    base = base.of_gpus(counted) if counted else base
    numbers = {
        name: number if number is None or not figures[name].adds_up else base.each(float(number))
        for name, each in values.items()
        for number in (each.at(0),)
    }
    known = [name for name, number in numbers.items() if number is not None]
    if not known:
        run.check_read(SideSource.COUNTERS)
        raise NothingToShow(_NO_COUNTERS)
    order = [*_PREFIXES, _GPU]
    every = sorted(figures, key=lambda name: (name not in known, order.index(_unit_of(name))))
    scales = {name: _scale(figures[name], numbers[name]) for name in every}
    own: Own = [
        (COLUMNS["gpu_unit"], worded([_unit_of(name) for name in every])),
        (
            COLUMNS["figure_text"],
            worded([_marked(values[name], _figure(name, "", numbers).text) for name in every]),
        ),
        (COLUMNS["of_peak_pct"], numbered([_of_peak(name, numbers) for name in every])),
        (
            COLUMNS["figure_value"],
            Values(
                np.array([_scaled(numbers[name], scales[name]) for name in every], np.float64),
                extrapolated=np.array([values[name].is_extrapolated(0) for name in every]),
            ),
        ),
        (COLUMNS["figure_unit"], worded([scales[name].text for name in every])),
    ]
    return table_view(
        view,
        LabelledRows("figure", every),
        own,
        total={},
        opens=lambda row: replace(
            pivot(replace(view, name="", by="", filter="", sort="", columns=()), "operation"),
            columns=(every[row],),
        ),
        headline=_headline(numbers, len(known), len(every)),
        notes=_notes(run, view, counted),
        charts=(_chart(run, numbers),),
        base=base.applied,
    )


def _marked(values: Values, text: str) -> str | None:
    return f"{'~' if values.is_extrapolated(0) else ''}{text}" if text else None


def _scale(metric: Metric, number: float | None) -> UnitScale:
    unit = metric.unit if isinstance(metric.unit, Unit) else Unit.NONE
    return unit.scale(abs(number or 0.0), metric.reduces is Reduces.SUM and not unit)


def _scaled(number: float | None, scale: UnitScale) -> float:
    return nan if number is None else number / scale.divisor


def _unit_of(name: str) -> str:
    matches = [
        (len(prefix), unit)
        for unit, prefixes in _PREFIXES.items()
        for prefix in prefixes
        if name.startswith(prefix)
    ]
    return max(matches)[1] if matches else _GPU


def _of_peak(name: str, numbers: Mapping[str, float | None]) -> float | None:
    if name in _PEAKS:
        return numbers[_PEAKS[name]]
    return numbers[name] if METRICS[name].unit is Unit.PERCENT else None


def _figure(name: str, title: str, numbers: Mapping[str, float | None]) -> UnitFigure:
    number, share = numbers[name], _of_peak(name, numbers)
    text = ""
    if number is not None:
        scale = _scale(METRICS[name], number).readable(number)
        divisor, word = scale.divisor, scale.text
        if word == "GB/s" and number >= 1e3:
            divisor, word = 1e3, "TB/s"
        amount, prefix = number / divisor, ""
        if not word and amount >= 1e4:
            amount, prefix = next((amount / d, p) for p, d in _THOUSANDS if amount >= d)
        shown = f"{amount:.3g}" if amount < 1e3 else f"{amount:.0f}"
        text = f"{shown}{prefix} {word}".rstrip()
    is_load = not name.endswith(_NO_LOADS)
    share = None if share is None else min(max(share / 100, 0.0), 1.0)
    return UnitFigure(title, text, share, is_load)


_THOUSANDS: Final = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def _chart(run: Run, numbers: Mapping[str, float | None]) -> MemoryChart:
    units, lines = [], _UNITS.strip().splitlines()
    heads = [place for place, line in enumerate(lines) if not line.startswith(" ")]
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        title, stage = map(str.strip, lines[begin].split("|"))
        names = " ".join(map(str.strip, lines[begin + 1 : end])).split(";")
        parts = (each.strip().partition(" ") for each in names)
        units.append(
            GpuUnit(
                title,
                int(stage),
                tuple(_figure(name, short, numbers) for name, _, short in parts),
            )
        )
    hardware = run.hardware
    if hardware is not None and isfinite(hardware.memory_gbps):
        peak = UnitFigure("peak", f"{hardware.memory_gbps / 1e3:.3g} TB/s")
        units[-1] = replace(units[-1], figures=(*units[-1].figures, peak))
    places = {unit.title: place for place, unit in enumerate(units)}
    paths = []
    for line in _PATHS.strip().splitlines():
        ends, _, names_of = line.partition(":")
        near, far = map(str.strip, ends.split(">"))
        rates = [_figure(name, "", numbers) for name in names_of.split()]
        paths.append(
            DataPath(places[near], places[far], rates[0], rates[1] if len(rates) > 1 else None)
        )
    return MemoryChart("data flow", tuple(units), tuple(paths))


def _headline(numbers: Mapping[str, float | None], known: int, every: int) -> tuple[str, ...]:
    parts = []
    for name, word in (
        ("mfma_util_pct", "matrix units busy"),
        ("l2_hit_pct", "L2 hits"),
        ("fabric_read_peak_pct", "of the memory's bandwidth read"),
        ("fabric_write_peak_pct", "written"),
    ):
        if (number := numbers[name]) is not None:
            parts.append(f"{word} {number:.1f} %" if "of" not in word else f"{number:.1f} % {word}")
    return (facts(*parts, f"{known} of {every} figures counted"),)


def _notes(run: Run, view: View, gpus: Set[int]) -> tuple[str, ...]:
    notes = []
    if gpus and "gpu" not in dict(view.scope) and len(gpus) < len(run.gpus):
        names = ", ".join(map(str, sorted(gpus)))
        notes.append(f"counters of {count(len(gpus), 'GPU')} of {len(run.gpus)}: {names}")
    if run.hardware is None:
        notes.append("the GPU is not in hardware.toml: no peaks; --hardware NAME says which it is")
    return tuple(notes)
