"""Sequences of kernels that a fusion could run as one, and the bytes that it would save."""

from __future__ import annotations

from pathlib import Path

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.align.traces import ADD, GEMM, TinyTrace, align

FLOAT = "float"
COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel>()"


def run_of(folder: Path, kernels: list[tuple[str, str, int, int]]) -> Run:
    """Operator, kernel, elements and stream of each; a product has no shape."""
    trace = TinyTrace()
    for place, (operator, kernel, elements, stream) in enumerate(kernels):
        at = 10 + 20 * place
        inputs = [[elements]] * (2 if operator in ("aten::add", "aten::copy_") else 1)
        given = {"Input Dims": inputs, "Input type": [FLOAT] * len(inputs)} if elements else {}
        trace.op(operator, at, at + 10, **given)
        trace.launch(kernel, at + 2, start=at + 5, duration=10, stream=stream)
    trace.note("ProfilerStep#1", 1, 10_000)
    return align(trace, folder).run


def shown(run: Run, by: str) -> Frame:
    return query(run, parse(f"R?view=kernels&by={by}&base=total&columns=kernels,fusion_bytes"))


def test_a_fusion_saves_what_the_smaller_of_two_moves(tmp_path: Path) -> None:
    step = [
        ("aten::add", ADD, 1000, 0),  # moves 12,000 B
        ("aten::neg", ADD, 1000, 0),  # 8,000 B
        ("aten::neg", ADD, 500, 0),  # 4,000 B
        ("aten::mm", GEMM, 0, 0),
        ("aten::add", ADD, 1000, 0),
        ("aten::add", ADD, 1000, 0),
        ("aten::mm", GEMM, 0, 0),
        ("aten::neg", ADD, 1000, 0),
    ]
    frame = shown(run_of(tmp_path, step * 2), "sequence")
    rows = {label: frame.row(row) for row, label in enumerate(frame.labels)}
    # The last kernel of a step and the first three of the next are one run.
    assert {name: (row["kernels"], row["fusion_bytes"]) for name, row in rows.items()} == {
        "add-negx2": (3, 8_000 + 4_000),
        "addx2": (4, 2 * 12_000),
        "neg-add-negx2": (4, 8_000 + 8_000 + 4_000),
        "none": (5, 0),
    }
    assert frame.total["fusion_bytes"] == 12_000 + 24_000 + 20_000


def test_kernels_on_other_streams_are_no_sequence(tmp_path: Path) -> None:
    step = [("aten::neg", ADD, 1000, 0), ("aten::neg", ADD, 1000, 1)] * 3
    frame = shown(run_of(tmp_path, [*step, ("aten::mm", GEMM, 0, 0)]), "sequence")
    rows = {label: frame.row(row)["kernels"] for row, label in enumerate(frame.labels)}
    assert rows == {"negx3": 6, "none": 1}
    assert frame.total["fusion_bytes"] == 2 * 2 * 8_000


def test_what_a_fusion_saves_adds_up_by_any_split(tmp_path: Path) -> None:
    run = run_of(tmp_path, [("aten::add", ADD, 1000, 0), ("aten::copy_", COPY, 1000, 0)] * 4)
    by_class, by_name = shown(run, "class"), shown(run, "name")
    assert by_class.total["fusion_bytes"] == by_name.total["fusion_bytes"] == 7 * 8_000


def test_without_bytes_the_saving_is_missing(tmp_path: Path) -> None:
    frame = shown(run_of(tmp_path, [("aten::neg", ADD, 0, 0)] * 3), "sequence")
    assert frame.row(0)["fusion_bytes"] is None
