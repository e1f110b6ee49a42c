"""Rows by the shape of the call that launched an activity, and where counters place them."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import (
    METRICS,
    Metric,
    Scope,
    Values,
    column,
    numbered,
    worded,
)
from chopper_core.model.column_names import CALL_SHAPE
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import ranked, ratios, sums_of
from chopper_core.views.shared.call_figures import (
    NO_SHAPE,
    SERVED,
    ShapeLabels,
    call_columns,
    call_sums,
    shape_figures,
)
from chopper_core.views.shared.table_view import Partition, by_kernel_codes, grouped

INTENSITY: Final = column("""intensity | FLOP/B | FLOP/B
    Arithmetic intensity: the FLOPs of the matrix units and, where counted, of the vector units
    (mfma_tflops + valu_tflops) over the bytes per second that the L2 caches read and wrote
    over the fabric.
    missing: the row lacks counters of the fabric or of the units that its kernels use
    source: counters""")
ROOF: Final = column("""roof_tflops | TFLOP/s | roof TF/s
    The roofline's limit: the smaller of the peak for the types that the matrix units
    multiplied and intensity times the memory's bandwidth (hardware.toml).
    missing: the intensity is unknown, or the GPU is not in hardware.toml
    source: counters and hardware.toml""")
OF_ROOF: Final = column(f"""roof_pct | % | % roof
    mfma_tflops + valu_tflops in % of roof_tflops.
    missing: {ROOF.missing_because}
    source: counters and hardware.toml""")
LEVEL: Final = "shape"
SHOWN: Final = (
    "calls",
    "kernel_ns",
    "kernel_pct",
    "model_tflops",
    "model_tbps",
    "model_intensity",
    "bound",
    "peak_pct",
    "peak_at_clock_pct",
    "achievable_pct",
    "call_tflops",
    SERVED.name,
)
_MAX_NAMED: Final = 3


def measured_roofline(run: Run, scope: Scope) -> list[tuple[Metric, Values]]:
    """Intensity, the roofline's limit and the share of it reached; missing without counters."""
    matrix, vector, share, reads, writes = (
        METRICS[name].compute(scope)
        for name in (
            *("mfma_tflops", "valu_tflops", "mfma_peak_pct"),
            *("fabric_read_gbps", "fabric_write_gbps"),
        )
    )
    rate = matrix.known(missing=0.0) + vector.known(missing=0.0)
    traffic = reads.numbers + writes.numbers
    # Without counters of the vector units, nothing is known about a kernel without matrix FLOPs.
    known = (rate > 0) | vector.present()
    known &= matrix.present() & reads.present() & writes.present() & (traffic > 0)
    intensity = 1e3 * np.where(known, ratios(rate, traffic), np.nan)
    by_memory = intensity * (run.hardware.memory_gbps / 1e3 if run.hardware else np.nan)
    # The units' peak for the types that they multiplied in the row.
    peak = 100.0 * ratios(matrix.numbers, share.numbers)
    roof = np.where(matrix.numbers > 0, np.minimum(peak, by_memory), by_memory)
    return [
        (INTENSITY, numbered(intensity)),
        (ROOF, numbered(roof)),
        (OF_ROOF, numbered(100.0 * ratios(rate, roof))),
    ]


def by_shape(run: Run, view: View) -> Partition:
    tree = run.tree_of(view)
    whole = tree.node(view.path)
    if CALL_SHAPE in run.table.measured:
        return shapes_of(run, whole)
    labels = ShapeLabels.of(run)
    kernels = tree.split(view.path, ("kernel",))
    codes, nodes = by_kernel_codes(whole, kernels, labels.of_kernel)
    return Partition(LEVEL, [labels.texts[code] for code in codes.tolist()], nodes, whole)


def shapes_of(run: Run, whole: Groups) -> Partition:
    labels = ShapeLabels.of(run)
    codes, nodes = grouped(whole, labels.codes(run.table, whole.selection))
    return Partition(LEVEL, [labels.texts[code] for code in codes.tolist()], nodes, whole)


def of_shape(run: Run, whole: Groups, label: str) -> Groups:
    """A group's activities of one shape; raises NothingToShow where it has none."""
    labels = ShapeLabels.of(run)
    place = labels.texts.index(label) if label in labels.texts else -1
    rows = whole.rows[labels.codes(run.table, whole.selection) == place]
    if not len(rows):
        raise NothingToShow(
            f"no activity of the shape {label!r} here; view=kernels&by=shape lists the shapes"
        )
    return Groups.single(run.table, rows)


def kernels_of_shape(view: View, label: str) -> View:
    return replace(view, name="kernels", by="name", of=label, sort="", filter="", columns=())


def modelled_columns(
    run: Run, rows: Partition
) -> tuple[list[tuple[Metric, Values]], list[tuple[Metric, Values]]]:
    sums = call_sums(rows.nodes, run.hardware)
    own = call_columns(sums, run.hardware)
    whole = call_columns({name: own.sum(keepdims=True) for name, own in sums.items()}, run.hardware)
    if rows.level == LEVEL:
        labels = ShapeLabels.of(run)
        places = {text: place for place, text in enumerate(labels.texts)}
        shapes = [labels.shapes[places[label]] for label in rows.labels]
        own += [*shape_figures(shapes), (SERVED, _served(rows.nodes))]
    return own, whole


def _served(nodes: Groups) -> Values:
    """The kernel with the most time of each group, and the number of other names."""
    names, count = nodes.table.names, len(nodes)
    time_ns: dict[int, float] = {}
    for rows, group in nodes.pieces():
        pairs, place = ranked(group.astype(np.int64) * len(names) + nodes.table.kernel[rows])
        sums = sums_of(nodes.table.duration_ns[rows], place, len(pairs))
        for pair, spent in zip(pairs.tolist(), sums.tolist(), strict=True):
            time_ns[pair] = time_ns.get(pair, 0.0) + spent
    kernels: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    for pair, spent in time_ns.items():
        kernels[pair // len(names)].append((-spent, pair % len(names)))
    return worded(
        [names[min(own)[1]] + (f" +{len(own) - 1}" if len(own) > 1 else "") for own in kernels]
    )


def shape_notes(run: Run, whole: Groups) -> tuple[str, ...]:
    if CALL_SHAPE not in run.table.measured:
        return (
            "the trace has no shapes (record_shapes=True in the profiler records them): "
            "no row is modelled",
        )
    labels = ShapeLabels.of(run)
    time_ns = np.zeros(len(labels.texts))
    for rows, _ in whole.pieces():
        codes = labels.codes(run.table, rows)
        time_ns += sums_of(run.table.duration_ns[rows], codes, len(time_ns))
    rest = [
        (time, label.removeprefix(NO_SHAPE))
        for label, time in zip(labels.texts, time_ns.tolist(), strict=True)
        if label.startswith(NO_SHAPE) and time
    ]
    if not rest:
        return ()
    without = sum(time for time, _ in rest)
    largest = sorted(rest, reverse=True)[:_MAX_NAMED]
    named = ", ".join(f"{name} {time_text(time)}" for time, name in largest)
    return (
        f"{100 * without / max(time_ns.sum(), 1):.1f} % of kernel time ({time_text(without)}) has "
        f"no model: {named}{' …' if len(rest) > len(largest) else ''}",
    )
