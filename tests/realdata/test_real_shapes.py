"""Work by shape on real traces: published figures, and convolutions counted from the files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.model.address import parse
from chopper_core.model.column_names import CALL_SHAPE, FLOPS
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME
from chopper_core.views.frame import Frame
from chopper_core.views.query import query

Open = Callable[[str], Run]

QWEN = "mi300x_qwen05b.json.gz"
MIB = 1 << 20


def by_shape(run: Run, columns: str) -> Frame:
    return query(run, parse(f"R?view=kernels&by=shape&columns={columns}"))


def test_qwen_has_the_published_figures_of_its_largest_product(opened: Open) -> None:
    """TraceLens gives the rate as the mean over calls; all FLOPs over all time is 0.1 % less."""
    frame = by_shape(
        opened(QWEN),
        "calls,kernel_ns,call_flops,call_bytes,model_intensity,call_tflops,model_tflops",
    )
    row = frame.row(list(frame.labels).index("mm 8944x2816x1024 TN bf16"))
    assert row["calls"] == 48
    assert row["call_flops"] == 51_581_550_592
    assert row["call_bytes"] == 71.0078125 * MIB
    assert row["model_intensity"] == 51_581_550_592 / (71.0078125 * MIB)
    assert row["model_intensity"] == pytest.approx(692.769, abs=5e-4)
    assert row["kernel_ns"] == 5_308_273
    assert row["call_tflops"] == pytest.approx(466.82, rel=1e-4)
    assert row["model_tflops"] == pytest.approx(48 * 51_581_550_592 / 5_308_273 / 1e3, rel=1e-12)


def test_qwen_has_the_published_figures_of_its_attention(opened: Open) -> None:
    frame = by_shape(opened(QWEN), "calls,call_flops,call_bytes,model_intensity,bound")
    row = frame.row(list(frame.labels).index("attention b16 h16 s559 d64 causal bf16"))
    assert row["call_flops"] == 10_239_377_408
    assert row["call_bytes"] == 69.875 * MIB
    assert row["model_intensity"] == 139.75
    # The ridge of bf16 lies at 1307.4 / 5.3 = 247 FLOP/B.
    assert (row["calls"], row["bound"]) == (24, "memory")


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def convolved(args: dict[str, Any], backward: bool) -> tuple[int, int]:
    """FLOPs and bytes of a convolution of 2-byte numbers, from its definition."""
    dims, values = args["Input Dims"], args["Concrete Inputs"]
    if backward:
        result, image, weight = dims[:3]
        gradients = json.loads(values[10].lower())[:2]
        taps = 2 * prod(result) * prod(weight[1:])
        moved = 2 * (prod(result) + prod(image) + prod(weight))
        return sum(gradients) * taps, sum(gradients) * moved
    image, weight = dims[:2]
    padding, stride, dilation = (json.loads(values[place]) for place in (3, 4, 5))
    sizes = [
        (size + 2 * pad - spread * (tap - 1) - 1) // step + 1
        for size, tap, step, pad, spread in zip(
            image[2:], weight[2:], stride, padding, dilation, strict=True
        )
    ]
    result = [image[0], weight[0], *sizes]
    flops = 2 * prod(result) * prod(weight[1:])
    return flops, 2 * (prod(image) + prod(weight) + prod(result))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [
        "mi300x_ddp4/rank0.json.gz",
        "mi300x_resnet_act_ckpt_rank0of8.json.gz",
        "mi300x_train_resnet18.json.gz",
    ],
)
def test_convolutions_have_the_work_of_their_definition(
    opened: Open, realdata: Path, name: str
) -> None:
    """Every call that launched a kernel, found by the kernels' own External id."""
    expected: Counter[tuple[int, int]] = Counter()
    events = events_of(realdata / name)
    launching = {
        event["args"]["External id"]
        for event in events
        if event.get("cat") == "kernel" and "External id" in event.get("args", {})
    }
    directions = {"aten::miopen_convolution": False, "aten::convolution_backward": True}
    for event in events:
        if event.get("cat") != "cpu_op" or event["name"] not in directions:
            continue
        if event["args"]["External id"] in launching:
            expected[convolved(event["args"], directions[event["name"]])] += 1
    assert expected
    table = opened(name).table
    code, flops = table.measured[CALL_SHAPE], table.measured[FLOPS]
    # Kernels launched before the profile have no call in the file.
    flops = np.where(table.launch_ns != NO_TIME, flops, np.nan)
    found: Counter[tuple[int, int]] = Counter()
    for number, shape in enumerate(table.shapes):
        if shape.family.startswith("conv"):
            calls = np.nansum(flops[code == number]) / (shape.flops or 1)
            found[int(shape.flops or 0), int(shape.bytes or 0)] += round(calls)
    for work, count in found.items():
        # Calls whose main kernel lacks its launch record have shapes, but no time of their own.
        assert 0 < count <= expected[work], work
    assert sum(found.values()) >= 0.9 * sum(expected.values())


def test_rows_by_shape_take_all_kernel_time_and_say_what_has_no_model(opened: Open) -> None:
    run = opened("mi300x_resnet_act_ckpt_rank0of8.json.gz")
    frame = query(run, parse("R?view=roofline&columns=kernel_ns,model_tflops,model_bytes"))
    assert frame.values["kernel_ns"].numbers.sum() == frame.total["kernel_ns"]
    without = sum(
        int(frame.row(row)["kernel_ns"] or 0)
        for row, label in enumerate(frame.labels)
        if label.startswith("no shape: ")
    )
    share = 100 * without / int(frame.total["kernel_ns"] or 1)
    assert any(note.startswith(f"{share:.1f} % of kernel time") for note in frame.notes)
    times = frame.values["kernel_ns"].numbers.tolist()
    assert times == sorted(times, reverse=True)
