"""Rows by shape and the roofline: against sums by hand, with roofs, commands and pictures."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.benchmarks import hipblaslt_line, torch_line
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse, render
from chopper_core.model.charts import Roofline, picked
from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.model.shapes import CallShape
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views.query import frame_of, query
from chopper_core.work.operators import operator_work
from chopper_tui.draw.charts import draw
from chopper_tui.export import benchmark_line
from tests.align.traces import GEMM, TinyTrace, align
from tests.support import rows_of
from tests.wording import Wording

BF16, FP32 = "c10::BFloat16", "float"
LARGE, SMALL = "mm 4096x4096x4096 TN bf16", "mm 4096x16x16 bf16"
FLOPS, BYTES = 2 * 4096**3, 2 * 3 * 4096**2
TRITON = "triton_poi_fused_add_mul_0"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"


def trace() -> TinyTrace:
    """Two large products of 200 and 400 µs, a small one of 10, a fused kernel, a sum."""
    tiny = TinyTrace(members={"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]})
    large = {
        "Input Dims": [[4096, 4096]] * 2,
        "Input type": [BF16] * 2,
        "Input Strides": [[4096, 1], [1, 4096]],
    }
    small = {"Input Dims": [[4096, 16], [16, 16]], "Input type": [BF16] * 2}
    fused = {"Input Dims": [[1024, 1024]] * 3, "Input type": [FP32] * 3}
    for at, name, args, kernel, duration in (
        (0, "aten::mm", large, GEMM, 200),
        (100, "aten::mm", large, GEMM, 400),
        (200, "aten::mm", small, "Cijk_Ailk_Bljk_small", 10),
        (300, TRITON, fused, TRITON, 20),
        (400, "aten::add", {}, ADD, 70),
    ):
        tiny.op(name, at, at + 50, **args)
        tiny.launch(kernel, at + 1, start=1000 + 10 * at, duration=duration)
    return tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return align(trace(), tmp_path_factory.mktemp("roofline")).run


def test_a_shape_s_figures_are_those_of_its_calls(run: Run) -> None:
    frame = query(
        run,
        parse(
            "R?view=kernels&by=shape&columns=calls,kernel_ns,call_flops,call_bytes,model_tflops,"
            "call_tflops,model_tbps,model_intensity,bound,peak_pct,achievable_pct,served_by"
        ),
    )
    row = frame.row(0)
    assert frame.labels[0] == LARGE
    assert (row["calls"], row["kernel_ns"]) == (2, 600_000)
    assert (row["call_flops"], row["call_bytes"]) == (FLOPS, BYTES)
    assert row["model_tflops"] == pytest.approx(2 * FLOPS / 600e-6 / 1e12)
    assert row["call_tflops"] == pytest.approx((FLOPS / 200e-6 + FLOPS / 400e-6) / 2 / 1e12)
    assert row["model_tbps"] == pytest.approx(2 * BYTES / 600e-6 / 1e12)
    assert row["model_intensity"] == FLOPS / BYTES
    assert row["peak_pct"] == pytest.approx(100 * 2 * FLOPS / 600e-6 / 1307.4432e12)
    # AMD's measured 708 TFLOP/s.
    assert row["achievable_pct"] == pytest.approx(100 * 2 * FLOPS / 600e-6 / 708e12)
    assert (row["bound"], row["served_by"]) == ("compute", GEMM)
    small = frame.row(list(frame.labels).index(SMALL))
    assert small["bound"] == "memory"
    assert frame.total["model_tflops"] == pytest.approx(
        (2 * FLOPS + 2 * 4096 * 16 * 16) / 610e-6 / 1e12
    )


def test_what_has_no_shape_is_told_by_class_and_in_a_sentence(run: Run, wording: Wording) -> None:
    frame = query(run, parse("R?view=roofline&columns=kernel_ns,model_tbps,model_tflops"))
    rows = rows_of(frame)
    assert rows["no shape: elementwise"]["kernel_ns"] == 70_000
    assert rows["no shape: elementwise"]["model_tflops"] is None
    fused = rows["triton poi add_mul 1024x1024 fp32"]
    assert fused["model_tflops"] is None
    assert fused["model_tbps"] == pytest.approx(3 * 4 * 1024**2 / 20e-6 / 1e12)
    wording(frame.notes[0], "10.0 %", "70 µs")


def test_a_row_leads_to_the_kernels_of_its_shape(run: Run) -> None:
    for view in ("kernels&by=shape", "roofline"):
        frame = query(run, parse(f"R?view={view}&columns=kernel_ns"))
        for place, label in enumerate(frame.labels):
            address = frame.addresses(place)
            assert render(parse(address)) == address
            there = query(run, parse(address))
            assert parse(address).of == label
            assert there.total["kernel_ns"] == frame.row(place)["kernel_ns"]
    classes = query(run, parse(render(parse(f"R?view=kernels&by=class&of={LARGE}"))))
    assert list(classes.labels) == ["gemm"]
    with pytest.raises(UsageError, match=r"unknown shape 'mm 1x1x1'; .*by=shape"):
        frame_of(run, parse("R?view=kernels&of=mm 1x1x1"))


@pytest.mark.parametrize("by", ["shape", "operation", "phase", "layer", "gpu"])
def test_every_split_has_the_same_total(run: Run, by: str) -> None:
    columns = "kernel_ns,calls,model_bytes,model_tflops,model_intensity"
    frame = query(run, parse(f"R?view=roofline&by={by}&columns={columns}"))
    assert frame.total["calls"] == 4
    assert frame.total["model_bytes"] == 2 * BYTES + 2 * (2 * 4096 * 16 + 256) + 3 * 4 * 1024**2
    assert frame.total["kernel_ns"] == 700_000
    # Of the calls with FLOPs and bytes: not of the fused kernel.
    products = (2 * BYTES + 2 * (2 * 4096 * 16 + 256), 2 * FLOPS + 2 * 4096 * 16 * 16)
    assert frame.total["model_intensity"] == pytest.approx(products[1] / products[0])


def test_without_shapes_it_says_how_to_record_them(tmp_path: Path, wording: Wording) -> None:
    tiny = TinyTrace()
    tiny.op("aten::mm", 0, 10)
    tiny.launch(GEMM, 1)
    frame = query(align(tiny, tmp_path).run, parse("R?view=roofline"))
    assert list(frame.labels) == ["no shape: gemm"]
    assert "record_shapes=True" in frame.notes[0]
    wording(frame.notes[1], "hardware.toml")
    assert not frame.charts


def test_a_file_gives_the_peaks_that_were_measured(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "rank0.json")
    file = tmp_path / "mine.toml"
    file.write_text("[MI300X]\nachievable_tflops = { bf16 = 500 }\nmemory_gbps = 4000\n")
    found = open_run(str(path), overrides=Overrides(hardware=str(file)))
    assert found.hardware is not None
    assert (found.hardware.memory_gbps, found.hardware.compute_units) == (4000, 304)
    row = query(found, parse("R?view=roofline&columns=achievable_pct,peak_pct")).row(0)
    assert row["achievable_pct"] == pytest.approx(100 * 2 * FLOPS / 600e-6 / 500e12)
    assert row["peak_pct"] == pytest.approx(100 * 2 * FLOPS / 600e-6 / 1307.4432e12)
    file.write_text("[A]\n" + "[B]\n")
    with pytest.raises(DataError, match="invalid specification of A"):
        open_run(str(path), overrides=Overrides(hardware=str(file)))
    other = tmp_path / "other.toml"
    other.write_text("[H100-SXM]\ntdp_w = 1\n[B200-SXM]\ntdp_w = 1\n")
    with pytest.raises(UsageError, match="none of which matches AMD Instinct MI300X"):
        open_run(str(path), overrides=Overrides(hardware=str(other)))
    with pytest.raises(DataError, match="can't be read"):
        open_run(str(path), overrides=Overrides(hardware=str(tmp_path / "none.toml")))


# Commands.


def call_of(name: str, shapes: list[list[int]], types: list[str], **given: list[str]) -> CallShape:
    work = operator_work(name, Inputs(shapes, types, given.get("values", [])))
    assert work is not None
    return work.call


def test_hipblaslt_has_the_operands_of_the_call_in_columns(run: Run) -> None:
    frame = query(run, parse("R?view=kernels&by=shape&columns=hipblaslt"))
    given = shlex.split(str(frame.row(0)["hipblaslt"]))
    options = dict(zip(given[1::2], given[2::2], strict=True))
    assert given[0] == "hipblaslt-bench"
    assert (options["--transA"], options["--transB"]) == ("T", "N")
    assert (options["-m"], options["-n"], options["-k"]) == ("4096",) * 3
    batched = hipblaslt_line(call_of("aten::bmm", [[5, 6, 32], [5, 32, 20]], [FP32] * 2))
    given = shlex.split(str(batched))
    options = dict(zip(given[1::2], given[2::2], strict=True))
    # PyTorch's rows of 20 are columns: m = 20, n = 6; neither is transposed.
    expected = {"-m": 20, "-n": 6, "-k": 32, "--lda": 20, "--ldb": 32, "--ldc": 20}
    expected |= {"--stride_a": 20 * 32, "--stride_b": 32 * 6, "--stride_d": 20 * 6}
    assert {name: int(options[name]) for name in expected} == expected
    assert (options["--batch_count"], options["--a_type"]) == ("5", "f32_r")


CALLS = [
    call_of("aten::mm", [[6, 32], [32, 20]], [BF16] * 2),
    call_of("aten::addmm", [[20], [6, 32], [32, 20]], [FP32] * 3),
    call_of("aten::bmm", [[5, 6, 32], [5, 32, 20]], [FP32] * 2),
    call_of("aten::_scaled_mm", [[32, 32], [32, 16]], ["c10::Float8_e4m3fnuz"] * 2),
    call_of("aten::conv2d", [[2, 3, 8, 8], [4, 3, 3, 3]], [FP32] * 2,
            values=["", "", "", "[2,2]", "[1,1]", "[1,1]", "1"]),
    call_of("aten::convolution_backward", [[2, 4, 4, 4], [2, 3, 8, 8], [4, 3, 3, 3]], [FP32] * 3,
            values=["", "", "", "[0]", "[2,2]", "[1,1]", "[1,1]", "False", "[0,0]", "1",
                    "[False,True,True]"]),
    call_of("aten::_scaled_dot_product_flash_attention", [[2, 8, 64, 16]] * 3, [BF16] * 3,
            values=["", "", "", "0.", "True"]),
    call_of("aten::_scaled_dot_product_flash_attention_backward",
            [[2, 8, 64, 16], [2, 8, 64, 16], [2, 2, 64, 16], [2, 2, 64, 16]], [BF16] * 4,
            values=["", "", "", "", "0.", "False"]),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_the_torch_command_is_python_that_a_shell_passes_on(call: CallShape) -> None:
    python, option, code = shlex.split(str(torch_line(call)))
    assert (python, option) == ("python", "-c")
    compile(code, "benchmark", "exec")
    (expression,) = [part for part in code.split("; ") if part.startswith("s=Timer(")]
    compile(expression.partition("('")[2].partition("', globals")[0], "call", "eval")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_the_torch_command_runs_where_there_is_torch(call: CallShape) -> None:
    """On the processor, a short while, with PyTorch's own count of the FLOPs."""
    pytest.importorskip("torch")
    if "_scaled_mm" in call.operator:
        pytest.skip("needs a GPU")
    code = shlex.split(str(torch_line(call)))[2]
    code = code.replace("'cuda'", "'cpu'").replace("min_run_time=1", "min_run_time=.01")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("TFLOP/s\n")


def test_what_can_not_be_made_again_has_no_command() -> None:
    grouped = call_of("aten::_grouped_mm", [[6, 32], [4, 32, 20], [4]], [BF16, BF16, "int"])
    fused = call_of("triton_poi_fused_add_0", [[4]], [BF16])
    untyped = call_of("aten::mm", [[6, 32], [32, 20]], [])
    for call in (grouped, fused, untyped):
        assert (hipblaslt_line(call), torch_line(call)) == (None, None)


# The picture.


def chart_of(run: Run) -> Roofline:
    (chart,) = query(run, parse("R?view=roofline")).charts
    assert isinstance(chart, Roofline)
    return chart


@pytest.mark.parametrize("size", [(80, 12), (118, 19), (198, 30), (30, 8)])
def test_the_picture_marks_the_row_of_the_cursor_and_names_the_roofs(
    run: Run, size: tuple[int, int]
) -> None:
    chart, (width, height) = chart_of(run), size
    for glyphs, mark in ((UNICODE, "◆"), (ASCII, "@")):
        for row, label in enumerate(chart.labels):
            lines = draw(chart, width, height, glyphs, row)
            texts = ["".join(text for text, _ in line) for line in lines]
            assert len(texts) <= height and max(map(len, texts)) <= width
            has_point = np.isfinite(chart.intensity[row]) and np.isfinite(chart.tflops[row])
            has_sentence = height > 8
            marks = (1 + has_sentence) * has_point  # one in the picture, one before the sentence
            assert sum(text.count(mark) for text in texts) == marks, label
            assert any(label.split()[0] in text for text in texts[-2:]) or not has_sentence
            assert not glyphs.is_ascii or all(text.isascii() for text in texts)
            if width >= 80:
                assert any("bf16 1307" in text for text in texts)
                assert any("HBM 5.3 TB/s" in text for text in texts)


def test_points_lie_where_their_logarithms_are(run: Run) -> None:
    """The large product lies right of the small one and above it."""
    chart = chart_of(run)
    places = []
    for label in (LARGE, SMALL):
        lines = draw(chart, 100, 20, UNICODE, chart.labels.index(label))
        texts = ["".join(text for text, _ in line) for line in lines[:-2]]
        places += [(row, text.index("◆")) for row, text in enumerate(texts) if "◆" in text]
    (row, column), (lower, left) = places
    assert row < lower and column > left


def test_the_picture_follows_sort_and_filter(run: Run) -> None:
    chart = chart_of(run)
    turned = picked(chart, [1, 0])
    assert isinstance(turned, Roofline) and turned.labels == (chart.labels[1], chart.labels[0])
    frame = query(run, parse("R?view=roofline&filter=16x16"))
    (only,) = frame.charts
    assert isinstance(only, Roofline) and list(only.labels) == list(frame.labels) == [SMALL]


def test_a_row_s_benchmark_is_the_first_that_can_run_it(run: Run) -> None:
    frame = query(run, parse("R?view=roofline&sort=kernel_ns"))
    places = {label: place for place, label in enumerate(frame.labels)}
    assert benchmark_line(run, frame, places[LARGE]).startswith("hipblaslt-bench ")
    assert "4096,16," in benchmark_line(run, frame, places[SMALL], "torch")
    with pytest.raises(UsageError, match="no hipblaslt or torch command runs no shape: element"):
        benchmark_line(run, frame, places["no shape: elementwise"])
    with pytest.raises(UsageError, match="choose from hipblaslt, torch"):
        benchmark_line(run, frame, 0, "rocblas")
    tree = query(run, parse("R"))
    with pytest.raises(UsageError, match="a benchmark runs a shape"):
        benchmark_line(run, tree, 0)


def test_counters_put_the_measured_point_beside_the_modelled_one(
    run: Run, wording: Wording
) -> None:
    """Twice the modelled bytes cross the fabric, and 10 % more FLOPs are executed."""
    table = run.table
    large = np.flatnonzero(table.duration_ns >= 200_000)

    def column(value: float) -> np.ndarray:
        values = np.full(len(table), np.nan)
        values[large] = value
        return values

    counted = {
        "counter_duration_ns": column(200_000),
        **{f"SQ_INSTS_VALU_MFMA_MOPS_{name}": column(0) for name in ("F16", "F8", "F32", "F64")},
        "SQ_INSTS_VALU_MFMA_MOPS_BF16": column(1.1 * FLOPS / 512),
        "TCC_BUBBLE_sum": column(0),
        "TCC_EA0_RDREQ_32B_sum": column(0),
        "TCC_EA0_RDREQ_sum": column(1.5 * BYTES / 64),
        "TCC_EA0_WRREQ_sum": column(0.5 * BYTES / 64),
        "TCC_EA0_WRREQ_64B_sum": column(0.5 * BYTES / 64),
    }
    measured = replace(run, table=table.with_measured(counted))
    frame = query(measured, parse("R?view=roofline"))
    row = frame.row(0)
    assert row["intensity"] == pytest.approx(1.1 / 2 * FLOPS / BYTES)
    assert row["measured_tflops"] == pytest.approx(1.1 * FLOPS / 200e-6 / 1e12)
    assert row["model_intensity"] == FLOPS / BYTES
    (chart,) = frame.charts
    texts = ["".join(text for text, _ in line) for line in draw(chart, 100, 20, UNICODE, 0)]
    assert "○ by counters" in texts[0]
    assert sum(text.count("○") for text in texts[1:]) == 1
    wording.among(texts, "755.9 TFLOP/s at 750.9 FLOP/B")


def test_kernels_of_torch_compile_without_inputs_are_told_by_what_they_fuse(
    tmp_path: Path,
) -> None:
    tiny = TinyTrace()
    for at, kernel in enumerate(
        ("triton_red_fused_add_mean_mul_3", "triton_red_fused_add_mean_mul_7", "triton_poi_fused_1")
    ):
        tiny.launch(kernel, 100 * at, duration=10 * (at + 1))
    frame = query(align(tiny, tmp_path).run, parse("R?view=kernels&by=shape&columns=kernel_ns"))
    assert {label: frame.row(place)["kernel_ns"] for place, label in enumerate(frame.labels)} == {
        "triton red add_mean_mul": 30_000,
        "no shape: elementwise": 30_000,
    }


def test_a_filter_finds_products_by_their_class(run: Run) -> None:
    """Labels of shapes begin with the operator; people look for GEMMs."""
    for view in ("view=roofline", "view=lost&by=shape", "view=kernels&by=shape"):
        labels = {*query(run, parse(f"R?{view}")).labels}
        for text in ("gemm", "class:gemm"):
            assert {*query(run, parse(f"R?{view}&filter={text}")).labels} == {LARGE, SMALL}
        others = query(run, parse(f"R?{view}&filter=!gemm")).labels
        assert {*others} == labels - {LARGE, SMALL}
