"""GPUs, and their steps: sums of the kernel table by both, and metrics of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.columns import Scope, is_measured, metric_named, parse_columns
from chopper_core.columns.metric import Metric
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.render.arrow import flags_array, labels_array, table_of, values_array
from chopper_core.render.tables import table
from chopper_core.render.tables.activities import COLUMNS, ranks_array, rows_of_gpus

if TYPE_CHECKING:
    import pyarrow as pa

FIGURES: Final = (
    "elapsed_ns", "compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns",
    "idle_host_ns", "idle_launch_ns", "idle_unknown_ns", "hidden_ns", "kernel_ns", "kernels",
    "busy_pct",
)  # fmt: skip
MEASURED: Final = ("gfx_mhz", "power_w", "energy_j", "hotspot_c", "edge_c", "throttle_pct")
"""Of these, those that the run has telemetry of."""
_OWN: Final = parse_columns("""
    is_counted | | counted
        Whether the step takes part in means: whole on every GPU, and no warm-up.
    is_truncated | | truncated
        Whether the profiling window cuts the step, on any GPU, or a GPU lacks it.
    is_warm_up | | warm-up
        Whether it is the first step of a window and takes over 1.5 times the median.
    address | | address
        The view of it, for `chopper show`.
    device | | device
        The device as the trace numbers it.
    product | | product
        Name of the GPU's product; null if the trace lacks it.
    host | | host
        Host of its rank; null where hosts aren't known.
    dp | | dp
        Data-parallel coordinate of its rank.
    pp | | pp
        Pipeline stage of its rank.
    tp | | tp
        Tensor-parallel coordinate of its rank.
    cp | | cp
        Context-parallel coordinate of its rank.
    ep | | ep
        Expert-parallel coordinate of its rank.
""")


def _figures(run: Run, nodes: Groups) -> list[tuple[Metric, pa.Array]]:
    names = [*FIGURES, *(name for name in MEASURED if is_measured(name, run.table))]
    scope = Scope.of(run, nodes)
    metrics = [metric_named(name, run.table, run.counter_info) for name in names]
    return [(each, values_array(each.compute(scope))) for each in metrics]


@table("iterations")
def iterations(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A step on a GPU, also a truncated one; step is null for time outside of steps."""

    from chopper_core.model import address
    from chopper_core.tables.arrow_files import array_of, texts_of

    nodes = run.pairs
    if gpus is not None:
        nodes = Groups.single(run.table, rows_of_gpus(run, gpus)).split(("gpu", "iteration"))[0]
    gpu, number = (nodes.codes(level).astype(np.int64) for level in ("gpu", "iteration"))
    outside = number == NO_LABEL
    truncated = np.isin(number, sorted(run.cut_iterations - run.warm_up))
    warm_up = np.isin(number, sorted(run.warm_up))
    texts = [run.table.text_of("iteration", code) for code in number.tolist()]
    places = [
        address.render(View(run.name, (str(index), text)))
        for index, text in zip(gpu.tolist(), texts, strict=True)
    ]
    origin = run.origin_ns
    known = np.full(len(nodes), run.table.has_times or run.is_sampled_only)
    made = [
        (COLUMNS["gpu"], array_of(gpu)),
        (COLUMNS["rank"], ranks_array(run, gpu)),
        (COLUMNS["iteration"], labels_array(number)),
        (_OWN["is_counted"], flags_array(~(truncated | warm_up | outside))),
        (_OWN["is_truncated"], flags_array(truncated)),
        (_OWN["is_warm_up"], flags_array(warm_up)),
        (COLUMNS["start_ns"], array_of(nodes.min("start_ns") - origin, known)),
        (COLUMNS["end_ns"], array_of(nodes.max("end_ns") - origin, known)),
        *_figures(run, nodes),
        (_OWN["address"], texts_of(places)),
    ]
    return table_of(made)


@table("gpus")
def gpus(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A GPU of the run, with its figures over all that is recorded, also outside of steps."""
    import pyarrow as pa

    from chopper_core.model import address

    chosen = [each for each in run.gpus if gpus is None or each.index in gpus]
    numbers = [each.index for each in chosen]
    host_of = {rank: clock.name for clock in run.hosts for rank in clock.ranks}
    has_hosts = not all(clock.name.startswith("clock ") for clock in run.hosts)
    made: list[tuple[Metric, pa.Array]] = [
        (COLUMNS["gpu"], pa.array(numbers, pa.int64())),
        (COLUMNS["rank"], pa.array([each.rank for each in chosen], pa.int64())),
        (_OWN["device"], pa.array([each.device for each in chosen], pa.int64())),
        (_OWN["product"], pa.array([each.hardware or None for each in chosen], pa.string())),
        (
            _OWN["host"],
            pa.array(
                [host_of.get(each.rank) if has_hosts else None for each in chosen], pa.string()
            ),
        ),
    ]
    for name, codes in run.table.coordinates.items():
        if name in _OWN:
            made.append((_OWN[name], pa.array([int(codes[index]) for index in numbers])))
    nodes = run.tree().split((), ("gpu",))
    place = {code: row for row, code in enumerate(nodes.codes("gpu").tolist())}
    rows = pa.array([place.get(index) for index in numbers], pa.int64())
    for metric, array in _figures(run, nodes) if len(run.table) else ():
        made.append((metric, array.take(rows)))
    places = [address.render(View(run.name, (str(index),))) for index in numbers]
    made.append((_OWN["address"], pa.array(places, pa.string())))
    return table_of(made)
