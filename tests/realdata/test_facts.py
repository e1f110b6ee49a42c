"""Real traces: known figures to the nanosecond, an independent account, sums at every level."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, LEVELS, Category
from chopper_core.render import as_json
from chopper_core.render.info import describe
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.oracles.accounting import (
    IDLE_PARTS,
    STATES,
    Activity,
    Step,
    account,
    activities_of,
    host_of,
    put_into_steps,
    read_json,
)

Open = Callable[[str], Run]

DDP = "mi300x_ddp4"
CHECKPOINTED = "mi300x_resnet_act_ckpt_rank0of8.json.gz"
RESNET18 = "mi300x_train_resnet18.json.gz"
QWEN = "mi300x_qwen05b.json.gz"
DLRM = "v100_dlrm_8rank"
RUNS = (DDP, CHECKPOINTED, RESNET18, QWEN, DLRM)

# Counted with an independent script: kernels, collectives, then ns of span, compute (union),
# exposed communication, exposed copies, idle.
FACTS = {
    (DDP, 0): (3114, 21, 140_042_054, 47_634_473, 41_067_730, 2_487_098, 48_852_753),
    (DDP, 1): (3089, 21, 133_748_876, 43_711_434, 37_330_342, 3_574_230, 49_132_870),
    (DDP, 2): (3089, 21, 133_993_967, 43_631_110, 39_780_546, 3_604_548, 46_977_763),
    (DDP, 3): (3089, 21, 135_513_262, 42_112_324, 3_383_902, 2_609_534, 87_407_502),
    (CHECKPOINTED, 0): (2995, 17, 86_567_708, 26_174_953, 55_371_257, 2_455_846, 2_565_652),
    (QWEN, 0): (1516, 0, 47_085_800, 43_062_042, 0, 760, 4_022_998),
}
FACT_COLUMNS = (
    "kernels",
    "collectives",
    "elapsed_ns",
    "compute_busy_ns",
    "exposed_comm_ns",
    "exposed_copy_ns",
    "idle_ns",
)
PIVOTS = (
    *LEVELS,
    "iteration,gpu",
    "operation,gpu",
    "phase,kernel",
    "kernel,operation,layer",
    "layer,phase,operation",
)


def frame_of(run: Run, address: str) -> Frame:
    return query(run, replace(parse(address), is_total=True))


def table_of(run: Run, path: str = "", **options: str) -> dict[str, dict[str, Any]]:
    """The rows of a frame by name, as they come out of its JSON, truncated iterations included."""
    given = "&".join(f"{key}={value}" for key, value in {**options, "cut": "1"}.items())
    address = run.name + (f":{path}" if path else "") + f"?{given}"
    document = json.loads(as_json(frame_of(run, address)))
    assert document["schema"] == "chopper.frame/2"
    return {row["name"]: row for row in document["rows"]}


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "rank"), FACTS)
def test_known_figures_of_each_gpu(realdata: Path, opened: Open, name: str, rank: int) -> None:
    """The span reaches from the first annotation of a step to the last, where these are outside."""
    row = table_of(opened(name), columns=",".join(FACT_COLUMNS))[str(rank)]
    document = read_json(trace_files(realdata, name)[rank])
    activities, steps = activities_of(document), host_of(document).steps
    first, last = min(each.start_ns for each in activities), max(each.end_ns for each in activities)
    beyond = 0
    if steps:
        beyond = max(first - steps[0].begin_ns, 0) + max(steps[-1].end_ns - last, 0)
    row["elapsed_ns"] -= beyond
    row["idle_ns"] -= beyond
    assert tuple(row[column] for column in FACT_COLUMNS) == FACTS[name, rank]


@pytest.mark.parametrize(("name", "unlinked"), [(CHECKPOINTED, 757), (QWEN, 463), (RESNET18, 0)])
def test_kernels_without_a_launch_record(opened: Open, name: str, unlinked: int) -> None:
    run = opened(name)
    found = describe(run)
    assert [gpu["kernels_without_launch"] for gpu in found["gpus"]] == [unlinked]
    (source,) = found["sources"]
    assert source["findings"]["kernels without a launch record"] == unlinked


def test_each_ddp_rank_has_15_all_reduces_and_6_broadcasts(opened: Open) -> None:
    run = opened(DDP)
    for rank in range(4):
        rows = table_of(
            run, f"gpu={rank}", order="gpu,operation", columns="collectives,kernels,exposed_comm_ns"
        )
        collectives = {name: row["collectives"] for name, row in rows.items() if row["collectives"]}
        assert collectives == {"all_reduce": 15, "broadcast": 6}
        assert all(rows[name]["kernels"] == count for name, count in collectives.items())


def test_execution_traces_beside_the_kineto_traces_are_joined(opened: Open) -> None:
    run = opened(DLRM)
    assert not run.skipped
    assert all("execution_traces/dlrm_eg_" in source.notes[0] for source in run.sources)


def trace_files(folder: Path, name: str) -> list[Path]:
    path = folder / name
    return sorted(path.glob("*.json*")) if path.is_dir() else [path]


def put_unlinked_as(run: Run, gpu: int, activities: list[Activity], steps: Sequence[Step]) -> None:
    """The step of what has no launch record is a label, which other tests are about."""
    table = run.table
    rows = (table.gpu == gpu).nonzero()[0]
    rows = rows[table.category[rows] != Category.OUTSIDE]
    rows = rows[np.lexsort((table.duration_ns[rows], table.stream[rows], table.start_ns[rows]))]
    of_number = {step.number: step for step in steps}
    ordered = sorted(activities, key=lambda a: (a.start_ns, a.stream, a.duration_ns))
    for each, number in zip(ordered, table.iteration[rows].tolist(), strict=True):
        if each.launch_ns is None:
            each.step = of_number.get(number)


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUNS)
def test_every_activity_is_charged_as_the_oracle_charges_it(
    realdata: Path, opened: Open, name: str
) -> None:
    run = opened(name)
    table = run.table
    columns = (*STATES, *IDLE_PARTS, "hidden_ns")
    for gpu, path in enumerate(trace_files(realdata, name)):
        document = read_json(path)
        activities, host = activities_of(document), host_of(document)
        assert {each.device for each in activities} == {run.gpus[gpu].device}
        put_into_steps(activities, host.steps)
        put_unlinked_as(run, gpu, activities, host.steps)
        outside = account(activities, host)
        expected = sorted(
            (
                each.start_ns,
                each.stream,
                each.duration_ns,
                each.name,
                *(each.charged[column] for column in columns),
            )
            for each in activities
        )
        rows = (table.gpu == gpu).nonzero()[0]
        is_outside = table.category[rows] == Category.OUTSIDE
        found_outside = zip(
            table.start_ns[rows[is_outside]].tolist(),
            table.idle_ns[rows[is_outside]].tolist(),
            strict=True,
        )
        assert sorted(found_outside) == sorted((each.end_ns, each.idle_ns) for each in outside)
        rows = rows[~is_outside]
        found = sorted(
            zip(
                table.start_ns[rows].tolist(),
                table.stream[rows].tolist(),
                table.duration_ns[rows].tolist(),
                [table.names[code] for code in table.kernel[rows]],
                *(table.column(column)[rows].tolist() for column in columns),
                strict=True,
            )
        )
        assert found == expected
        shown = table_of(run, columns="elapsed_ns," + ",".join(columns))[str(gpu)]
        assert shown["elapsed_ns"] == sum(shown[state] for state in STATES)
        apart = sum(each.idle_ns for each in outside)
        for column in columns:
            charged = sum(each.charged[column] for each in activities)
            charged += apart * (column in ("idle_ns", "idle_host_ns"))
            assert shown[column] == charged


def check_sums(frame: Frame) -> None:
    """The rows' states add up to the node's, and the states to the time."""
    for state in (*STATES, "elapsed_ns"):
        assert frame.values[state].numbers.sum() == frame.total[state], (frame.address, state)
    assert sum(frame.total[state] or 0 for state in STATES) == frame.total["elapsed_ns"]


def sample(count: int, wanted: int, chance: random.Random) -> list[int]:
    """Some of the rows: the first, the last, and others by chance."""
    if count <= wanted:
        return list(range(count))
    return [0, count - 1, *chance.sample(range(1, count - 1), wanted - 2)]


@pytest.mark.sweep
@pytest.mark.parametrize("pivot", PIVOTS)
@pytest.mark.parametrize("name", RUNS)
def test_rows_add_up_and_their_addresses_give_their_figures_down_to_the_activities(
    opened: Open, name: str, pivot: str
) -> None:
    run = opened(name)
    chance = random.Random(f"{name} {pivot}")
    columns = ",".join((*STATES, "elapsed_ns", "kernels", "kernel_ns", "hidden_ns", "activities"))
    at_level = [frame_of(run, f"{run.name}?order={pivot}&columns={columns}&cut=1")]
    seen = set()
    while at_level:
        below: list[Frame] = []
        for frame in at_level:
            seen.add(frame.level)
            check_sums(frame)
            for row in sample(len(frame), 4, chance):
                address = frame.addresses(row)
                view = parse(address)
                assert view.run == run.name
                assert view.path == (*frame.view.path, frame.labels[row])
                assert view.order == frame.view.order
                child = query(run, view)
                assert child.address == address
                assert child.total == frame.row(row), address
                if not view.is_leaf:
                    below.append(child)
                else:
                    is_outside = "outside steps" in view.path
                    assert child.total["activities"] == (0 if is_outside else 1)
        at_level = below if len(below) <= 12 else chance.sample(below, 12)
    assert seen == {*LEVELS, ACTIVITY}


@pytest.mark.parametrize("name", RUNS)
def test_every_row_of_the_upper_levels_adds_up_on_every_gpu(opened: Open, name: str) -> None:
    run = opened(name)
    everything = f"{run.name}?cut=1"
    frames = [frame_of(run, everything)]
    for _ in ("gpu", "iteration", "phase"):
        frames = [
            query(run, parse(frame.addresses(row))) for frame in frames for row in range(len(frame))
        ]
        for frame in frames:
            check_sums(frame)
    whole = frame_of(run, everything).total
    assert sum(int(frame.total["elapsed_ns"] or 0) for frame in frames) == whole["elapsed_ns"]
    assert sum(int(frame.total["kernels"] or 0) for frame in frames) == whole["kernels"]


def test_resnet_18_takes_its_published_multiplications(opened: Open) -> None:
    """1,814,073,344 for an image, its first layer's 118,013,952 among them (torchvision).

    Five steps of 512 images: forward, and both gradients but that of the images themselves.
    """
    per_image = 3 * 1_814_073_344 - 118_013_952
    total = table_of(opened(RESNET18), columns="model_flops").values()
    assert sum(row["model_flops"] for row in total) == 2 * 5 * 512 * per_image


@pytest.mark.sweep
def test_the_wide_vcopy_alone_is_a_run_of_counts(opened: Open) -> None:
    """Its times are rounded to 8.1097E+14, so there are none; the figures are those of the file."""
    run = opened("mi300x_vcopy_wide")
    columns = "kernels,SQ_WAVES,TCC_EA0_RDREQ_sum,elapsed_ns,cu_util_pct"
    frame = query(run, parse(f"R:gpu=0/iteration=none/phase=none/layer=none?columns={columns}"))
    assert frame.total["kernels"] == 3 and frame.total["SQ_WAVES"] == 3 * 16384
    assert frame.total["elapsed_ns"] is None
    assert frame.total["cu_util_pct"] == pytest.approx(5.0, abs=0.1)
