"""Compute losses: from the ideal time to the measured time, loss by loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of, divided
from chopper_core.analyses.coverage import Coverage
from chopper_core.analyses.rows import Partition
from chopper_core.analyses.time_parts import (
    LOSSES,
    TERMS,
    THEORY,
    TITLES,
    UNKNOWN,
    TimeParts,
    covered_parts,
    is_matrix,
    parts_of_rows,
    with_all_parts,
    with_parts,
    without_flops,
)
from chopper_core.columns import METRICS, Metric, Reduces, Values, columns, worded
from chopper_core.columns.metric import Theme
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.column_names import (
    CYCLES,
    RECOMPUTED,
)
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts, level_title, percent
from chopper_core.model.run import Run
from chopper_core.model.units import Unit, time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Mask
from chopper_core.util.grouping import isin
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

_NOTED_PCT: Final = 1.0
_MAX_BARS: Final = 200
MFU: Final = "mfu_pct"
HFU: Final = "hfu_pct"

UTILIZATION: Final = (MFU, HFU)
COLUMNS: Final = columns(
    """
    lost_ns | ns | lost
        elapsed_ns - theoretical_ns: time beyond that of the model's FLOPs at peak.
        missing: the FLOPs of the row's matrix kernels are unknown (record_shapes=True in the
          profiler gives them)
    largest_loss | | largest loss
        The largest part of lost_ns.
        missing: the row loses nothing
    mfu_pct | % | MFU %
        Model FLOPs utilization: the time that the model's FLOPs take at peak, in % of elapsed_ns.
        It is theoretical_pct, but while two kernels compute at once it counts the FLOPs of both,
        where time is charged to one.
        missing: the FLOPs of the row are unknown
    hfu_pct | % | HFU %
        Hardware FLOPs utilization: the same with the FLOPs of recomputed activities. Without
        recomputation it is the MFU.
        missing: the FLOPs of the row are unknown
""",
    source="overhead breakdown",
)


def _share_of(name: str) -> Metric:
    # The GPUs that have the share are those that have the part.
    term = METRICS[name]
    return replace(
        term,
        name=f"{name.removesuffix('_ns')}_pct",
        unit=Unit.PERCENT,
        title=f"{term.title} %",
        reduces=Reduces.NONE,
        definition=f"{name} in % of the row's elapsed_ns; the shares add up to 100. ~ marks parts "
        "that only some GPUs distinguish: the compute of all is divided as on these.",
        # What covers some GPUs only is divided, not marked as theirs.
        theme=Theme.TIME,
        missing_because=term.missing_because or "the row has no time",
    )


SHARES: Final = {name: _share_of(name) for name in TERMS}
SPEC: Final = ViewSpec(
    name="overheads",
    title="Losses · compute",
    question="Which losses lie between the ideal and the measured time?",
    by=any_level("operation", "phase", "layer", "gpu"),
    parts=tuple(each.name for each in SHARES.values()),
    any_split=True,
)


def totals(run: Run, view: View) -> list[tuple[Metric, Values]]:
    """The shares among the columns of a view, of its node as a whole."""
    tree = with_parts(run).tree_of(view)
    names = [name for name, share in SHARES.items() if share.name in view.columns]
    node = tree.node(view.path)
    whole = parts_of_rows(
        run, tree, view, "", node, covered_parts(Coverage(run, view, "", node, node))
    )
    found = [(SHARES[name], whole.share(name)) for name in names]
    own = {MFU: whole.utilization(), HFU: whole.hardware_utilization()}
    return [*found, *((COLUMNS[name], own[name]) for name in own if name in view.columns)]


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "operation"
    tree = with_parts(run).tree_of(view)
    rows = Partition.of(tree, view, by)
    coverage = Coverage(run, view, by, rows.nodes, rows.whole)
    covered = covered_parts(coverage)
    parts = parts_of_rows(run, tree, view, by, rows.nodes, covered)
    whole = parts_of_rows(run, tree, view, "", tree.node(view.path), covered)
    words = {
        name: f"{title} ~" if whole.is_divided(name)[0] else title for name, title in TITLES.items()
    }
    has_theory = bool(whole.values[THEORY].present()[0])
    of_matrix = np.ones(len(rows.labels), np.bool_)
    if not parts.values[THEORY].present().all():
        kernels = tree.split(view.path, (by, "kernel"))
        of_matrix = isin(rows.nodes.codes(by), kernels.codes(by)[is_matrix(kernels)])
    figures = _figures(parts, of_matrix)
    base = base_of(run, view)
    # Rows without FLOPs lack it, so that it doesn't add up.
    figures["lost_ns"] = divided(figures["lost_ns"], base.of_rows({by: rows.labels}))
    of_whole = _figures(whole, np.array([of_matrix.any()]))
    of_whole["lost_ns"] = divided(of_whole["lost_ns"], base.of_rows({"": [""]}))
    used = [name for name in TERMS if parts.ns(name).any()]
    most = figures["lost_ns"].known(missing=-1.0) if has_theory else parts.elapsed_ns
    order = np.argsort(-most, kind="stable")[:_MAX_BARS]
    top = tuple(rows.labels[row] for row in order.tolist())
    ms = 1e6 * base.of_rows({by: top})
    bars = tuple(Series(TITLES[name], parts.ns(name)[order] / ms) for name in used)
    shares = {name: share.name for name, share in SHARES.items()}
    declared = COLUMNS | {share.name: share for share in SHARES.values()}
    return table_view(
        view,
        rows,
        columns_of(figures, declared),
        columns_of(of_whole, declared),
        sort="-lost_ns" if has_theory else "-elapsed_ns",
        shown=("elapsed_ns", *_columns_of(used), *(shares[name] for name in used), *used),
        headline=(_headline(base, whole, words),),
        notes=(
            *_notes(run, tree.split(view.path, ("operation", "kernel")), whole),
            *_divided_note(whole, covered, coverage.gpus),
        ),
        charts=(
            _waterfall(base, whole, used, words),
            BarChart(f"time by {level_title(by)} and its parts", "ms", top, bars),
        ),
    )


def _columns_of(used: Sequence[str]) -> tuple[str, ...]:
    """The view's own columns: HFU is another figure than MFU in a run that recomputes."""
    return tuple(name for name in COLUMNS if name not in UTILIZATION or RECOMPUTED in used)


def _figures(parts: TimeParts, of_matrix: Mask) -> dict[str, Values]:
    """All columns; the lost time is unknown where matrix kernels have unknown FLOPs."""
    theory, shares = parts.known(THEORY), {name: parts.share(name) for name in TERMS}
    lost_ns = parts.elapsed_ns - np.rint(theory.known(0.0)).astype(np.int64)
    lost = Values(lost_ns, ~theory.present() & of_matrix, theory.extrapolated)
    losses = np.stack([shares[name].known(0.0) for name in LOSSES], axis=1)
    titles = tuple(LOSSES.values())
    largest = [titles[row.argmax()] if row.max(initial=0) > 0 else None for row in losses]
    return {
        "elapsed_ns": Values(parts.elapsed_ns),
        "lost_ns": lost,
        "largest_loss": worded(largest),
        MFU: parts.utilization(),
        HFU: parts.hardware_utilization(),
        **parts.values,
        **{SHARES[name].name: share for name, share in shares.items()},
    }


def _headline(base: Base, whole: TimeParts, words: Mapping[str, str]) -> str:
    elapsed = base.each(int(whole.elapsed_ns[0]))
    shares = {name: whole.share(name).at(0) or 0.0 for name in LOSSES}
    name = max((name for name in LOSSES if name != UNKNOWN), key=lambda each: shares[each])
    lost, unknown = (base.each(float(whole.ns(each)[0])) for each in (name, UNKNOWN))
    kind = "largest known loss" if shares[UNKNOWN] > shares[name] else "largest loss"
    theory = whole.known(THEORY).at(0)
    of = f"of {time_text(elapsed)}{base.words}"
    return facts(
        f"{_amount(lost, elapsed)} {words[name]}, the {kind}" if shares[name] > 0 else "",
        f"{_amount(unknown, elapsed)} {words[UNKNOWN]}" if unknown > 0 else "",
        f"ideal unknown, {of}"
        if theory is None
        else f"{_amount(base.each(theory), elapsed)} known FLOPs at peak, {of}",
    )


def _amount(part: float, whole: float) -> str:
    return f"{time_text(part)} ({percent(part / max(whole, 1))})"


def _notes(run: Run, kernels: Groups, whole: TimeParts) -> tuple[str, ...]:
    """The unknown parts, and the part with their time; `kernels` by operation and name."""
    notes: list[str] = []
    counted = CYCLES in run.table.measured
    if run.hardware is None:
        notes.append("the GPU is not in hardware.toml: without its peak no compute is explained")
    elif not whole.values[THEORY].present()[0]:
        notes.append(
            "the ideal time is unknown: no kernel has FLOPs and a data type "
            "(record_shapes=True in the profiler gives both)"
        )
    elif (share := without_flops(kernels)) > _NOTED_PCT:
        notes.append(
            f"{share:.1f} % of the time of matrix kernels has unknown FLOPs or an unknown peak: "
            f"their share makes the ideal time too short and the lost time too long"
        )
    if not counted:
        notes.append(
            "no counters: extra instructions, idle matrix units, vector work and contention "
            "are together in the part that is not explained"
        )
    if not whole.values["frequency_ns"].present()[0]:
        lies = LOSSES["unseparated_ns"] if counted and run.hardware else LOSSES[UNKNOWN]
        notes.append(f"the GPUs' clock is unknown in the scope: its loss is in {lies}")
    if counted and run.hardware and whole.numbers(UNKNOWN)[0] > 0:
        notes.append("not explained: kernels without counters, and matrix kernels without FLOPs")
    return tuple(notes)


def _divided_note(
    whole: TimeParts, covered: Mapping[str, frozenset[int]], gpus: int
) -> tuple[str, ...]:
    if not any(whole.is_divided(name)[0] for name in whole.divided_ns):
        return ()
    own, _ = with_all_parts(covered)
    return (f"~ compute of {gpus} GPUs is divided as on the {len(own)} that have the parts",)


def _waterfall(base: Base, whole: TimeParts, used: list[str], words: Mapping[str, str]) -> BarChart:
    losses = [name for name in used if name != THEORY]
    steps = np.array([0, *(whole.ns(name)[0] for name in losses), 0], np.float64)
    level = whole.ns(THEORY)[0] + np.cumsum(steps)
    series = {
        "reached": np.minimum(level, level - steps),
        "adds": np.maximum(steps, 0.0),
        "saves": np.maximum(-steps, 0.0),
    }
    if not series["saves"].any():
        del series["saves"]
    if not whole.values[THEORY].present()[0]:
        for numbers in series.values():
            numbers[0] = np.nan
    return BarChart(
        "from the ideal to the measured time",
        "ms",
        ("ideal", *(words[name] for name in losses), "measured"),
        tuple(Series(name, base.each(numbers) / 1e6) for name, numbers in series.items()),
    )
