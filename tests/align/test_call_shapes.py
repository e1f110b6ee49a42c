"""Shapes and modelled bytes of calls, against counts by hand, and which activities have them."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.batches import TableContent, gather
from chopper_core.model.column_names import CALL_SHAPE, FLOPS
from chopper_core.model.operator_inputs import Inputs, Shape
from chopper_core.model.run import Run
from chopper_core.model.shapes import Attention, CallShape, Convolution, Product
from chopper_core.model.table import KernelTable, concatenate
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.work.operators import operator_work
from tests.align.traces import AUTOGRAD, EVALUATE, FLASH, GEMM, TinyTrace, align

BF16, FP8, FP32 = "c10::BFloat16", "c10::Float8_e4m3fn", "float"
M, K, N = 6, 32, 20
COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel>()"


def call_of(
    name: str,
    shapes: list[Shape],
    types: list[str],
    values: list[str] | None = None,
    strides: list[Shape] | None = None,
) -> CallShape:
    work = operator_work(name, Inputs(shapes, types, values or [], strides or []))
    assert work is not None
    return work.call


PRODUCTS: list[tuple[str, list[Shape], list[str], list[str], str, float, float]] = [
    ("aten::mm", [[M, K], [K, N]], [BF16] * 2, [], "mm 6x20x32 bf16",
     2 * M * N * K, 2 * (M * K + K * N + M * N)),
    ("aten::addmm", [[N], [M, K], [K, N]], [BF16] * 3, [], "addmm 6x20x32 bias bf16",
     2 * M * N * K, 2 * (N + M * K + K * N + M * N)),
    ("aten::linear", [[2, 3, K], [N, K], [N]], [BF16] * 3, [], "linear 6x20x32 bias bf16",
     2 * M * N * K, 2 * (N + M * K + K * N + M * N)),
    ("aten::bmm", [[5, M, K], [5, K, N]], [FP32] * 2, [], "bmm b5 6x20x32 fp32",
     5 * 2 * M * N * K, 5 * 4 * (M * K + K * N + M * N)),
    ("aten::matmul", [[5, M, K], [1, K, N]], [BF16] * 2, [], "matmul b5 6x20x32 bf16",
     5 * 2 * M * N * K, 2 * (5 * M * K + K * N + 5 * M * N)),
    ("aten::matmul", [[5, M, K], [K, N]], [BF16] * 2, [], "matmul 30x20x32 bf16",
     5 * 2 * M * N * K, 2 * (5 * M * K + K * N + 5 * M * N)),
    ("aten::_int_mm", [[M, K], [K, N]], ["signed char"] * 2, [], "_int_mm 6x20x32 int8->int",
     2 * M * N * K, M * K + K * N + 4 * M * N),
    # Scales: one of the first operand's rows, one of the second's columns; the result is bf16 (15).
    ("aten::_scaled_mm", [[M, K], [K, N], [M, 1], [1, N], [], [], [], []],
     [FP8, FP8, FP32, FP32, "", "", "Scalar", "Scalar"], ["", "", "", "", "", "", "15", "True"],
     "_scaled_mm 6x20x32 fp8->bf16", 2 * M * N * K, M * K + K * N + 4 * (M + N) + 2 * M * N),
    # Rows split among 4 experts: each multiplies its own.
    ("aten::_grouped_mm", [[M, K], [4, K, N], [4]], [BF16, BF16, "int"], [],
     "_grouped_mm g4 over m 6x20x32 bf16", 2 * M * N * K,
     2 * (M * K + 4 * K * N + M * N) + 4 * 4),
    # The gradient of the weights: the inner size is split, and every expert has a result.
    ("aten::_grouped_mm", [[M, K], [K, N], [4]], [BF16, BF16, "int"], [],
     "_grouped_mm g4 over k 6x20x32 bf16", 2 * M * N * K,
     2 * (M * K + K * N + 4 * M * N) + 4 * 4),
    ("aten::_scaled_grouped_mm", [[M, K], [4, K, N], [M], [4, N], [4]],
     [FP8, FP8, FP32, FP32, "int"], [], "_scaled_grouped_mm g4 over m 6x20x32 fp8->bf16",
     2 * M * N * K, M * K + 4 * K * N + 4 * (M + 4 * N) + 4 * 4 + 2 * M * N),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "types", "values", "label", "flops", "size"), PRODUCTS)
def test_a_product_s_operands_count_once(
    name: str,
    shapes: list[Shape],
    types: list[str],
    values: list[str],
    label: str,
    flops: float,
    size: float,
) -> None:
    call = call_of(name, shapes, types, values)
    assert (call.label, call.flops, call.bytes) == (label, flops, size)


@pytest.mark.parametrize("types", [[], ["", ""], [BF16], [BF16, "c10::Odd"], ["c10::Odd", BF16]])
def test_bytes_of_unknown_types_are_unknown(types: list[str]) -> None:
    call = call_of("aten::mm", [[M, K], [K, N]], types)
    assert call.flops == 2 * M * N * K
    assert call.bytes is None


def test_the_layout_has_the_letters_of_the_kernels_names() -> None:
    """Cijk_Alik_Bljk is TN: a linear layer's forward; its two gradients are NN and NT."""
    rows, columns = [M, K], [K, N]
    plain, swapped = ([K, 1], [1, M]), ([N, 1], [1, K])
    found = {
        (first, second): call_of(
            "aten::mm", [rows, columns], [BF16] * 2, [], [plain[first], swapped[second]]
        ).sizes
        for first in (0, 1)
        for second in (0, 1)
    }
    assert {key: sizes.layout for key, sizes in found.items() if isinstance(sizes, Product)} == {
        (0, 0): "NN",
        (0, 1): "TN",
        (1, 0): "NT",
        (1, 1): "TT",
    }
    linear = call_of("aten::linear", [rows, [N, K]], [BF16] * 2, [], [[K, 1], [K, 1]]).sizes
    assert isinstance(linear, Product) and linear.layout == "TN"
    neither = call_of("aten::mm", [rows, columns], [BF16] * 2, [], [[2 * K, 2], [N, 1]]).sizes
    assert isinstance(neither, Product) and neither.layout == ""


def test_attention_reads_three_and_writes_one_backward_reads_five_and_writes_three() -> None:
    batch, heads, key_heads, queries, keys, width, values_width = 2, 8, 2, 64, 96, 24, 16
    q, k = [batch, heads, queries, width], [batch, key_heads, keys, width]
    v, out = [batch, key_heads, keys, values_width], [batch, heads, queries, values_width]
    given = ["", "", "", "0.", "True"]
    forward = call_of("aten::_scaled_dot_product_flash_attention", [q, k, v], [BF16] * 3, given)
    assert forward.bytes == 2 * sum(map(prod, (q, k, v, out)))
    assert forward.label == "attention b2 h8/2 s64/96 d24/16 causal bf16"
    backward = call_of(
        "aten::_scaled_dot_product_flash_attention_backward",
        [out, q, k, v, out],
        [BF16] * 5,
        ["", "", "", "", "", "0.", "False"],
    )
    read, written = (out, q, k, v, out), (q, k, v)
    assert backward.bytes == 2 * sum(map(prod, (*read, *written)))
    assert backward.label == "attention bwd b2 h8/2 s64/96 d24/16 bf16"
    of_forward = forward.as_backward(2.5)
    assert (of_forward.bytes, of_forward.flops) == (backward.bytes, 2.5 * (forward.flops or 0))
    assert of_forward.family == "attention bwd"


def test_aiter_s_attention_has_the_sequence_before_the_heads() -> None:
    shapes = [[2, 64, 8, 16]] * 3
    call = call_of("aiter::mha_fwd", shapes, [BF16] * 3, ["", "", "", "0.", "0.125", "True"])
    assert call.sizes == Attention(2, 8, 8, 64, 64, 16, 16, is_causal=True)


def test_a_convolution_counts_image_weight_bias_and_result_and_each_gradient_its_own() -> None:
    image, weight, result = [10, 64, 56, 56], [128, 64, 3, 3], [10, 128, 28, 28]
    steps = ["[2,2]", "[1,1]", "[1,1]", "False", "[0,0]", "1"]
    flops = 2 * prod(result) * 64 * 9
    forward = call_of("aten::convolution", [image, weight, [128]], [BF16] * 3, ["", "", "", *steps])
    assert forward.flops == flops
    assert forward.bytes == 2 * (prod(image) + prod(weight) + 128 + prod(result))
    assert forward.label == "conv 10x64x56x56 k128x64x3x3 s2 p1 bf16"
    each = 2 * (prod(image) + prod(weight) + prod(result))
    for wanted, family, parts in (
        ("[True,True,False]", "conv bwd", 2),
        ("[True,False,False]", "conv dgrad", 1),
        ("[False,True,True]", "conv wgrad", 1),
    ):
        backward = call_of(
            "aten::convolution_backward",
            [result, image, weight],
            [BF16] * 3,
            ["", "", "", "[0]", *steps, wanted],
        )
        assert (backward.flops, backward.bytes) == (parts * flops, parts * each)
        assert backward.family == family


def test_a_transposed_convolution_s_result_is_as_large_as_pytorch_makes_it() -> None:
    """(4 - 1) * 2 - 2 * 1 + 1 * (3 - 1) + 1 + 1 = 8 rows, 10 columns from 5."""
    image, weight = [2, 6, 4, 5], [6, 8, 3, 3]
    given = ["", "", "", "[2,2]", "[1,1]", "[1,1]", "True", "[1,1]", "1"]
    call = call_of("aten::convolution", [image, weight, []], [BF16, BF16, ""], given)
    assert call.bytes == 2 * (prod(image) + prod(weight) + 2 * 8 * 8 * 10)
    assert isinstance(call.sizes, Convolution) and call.label.startswith("conv transposed 2x6x4x5")


def test_a_fused_kernel_moves_its_tensors_and_has_no_count() -> None:
    call = call_of(
        "triton_poi_fused_add_mul_silu_3",
        [[4, 8], [4, 8], [8], [], []],
        [BF16, BF16, FP32, "Scalar", "Scalar"],
    )
    assert (call.flops, call.bytes) == (None, 2 * 2 * 4 * 8 + 4 * 8)
    assert call.label == "triton poi add_mul_silu 4x8 8 bf16,fp32"


# In traces.


def given(*shapes: Shape, types: list[str] | None = None, **args: Any) -> dict[str, Any]:
    return {
        "Input Dims": list(shapes),
        "Input type": types or [BF16] * len(shapes),
        **{name.replace("_", " "): value for name, value in args.items()},
    }


def shapes_of(run: Run) -> list[tuple[str, str | None, float | None]]:
    """Kernel, shape and share of a call of each activity, by start."""
    table = run.table
    codes = table.measured.get(CALL_SHAPE, np.full(len(table), np.nan))
    found: list[tuple[str, str | None, float | None]] = []
    for row in np.argsort(table.start_ns, kind="stable").tolist():
        name = table.names[table.kernel[row]]
        if np.isnan(codes[row]):
            found.append((name, None, None))
            continue
        shape = table.shapes[int(codes[row])]
        flops = table.measured[FLOPS][row]
        found.append((name, shape.label, flops / shape.flops if shape.flops else None))
    return found


MM = "mm 6x20x32 bf16"


def test_helpers_belong_to_the_call_and_what_runs_around_it_does_not(tmp_path: Path) -> None:
    tiny = TinyTrace()
    tiny.op("aten::linear", 0, 40, **given([M, K], [N, K], []))
    tiny.launch(COPY, 1, start=10, duration=30)
    tiny.op("aten::mm", 10, 30, **given([M, K], [K, N]))
    tiny.launch("splitk_gemm_reduce", 12, start=41, duration=2)
    tiny.launch(GEMM, 14, start=50, duration=9)
    assert shapes_of(align(tiny, tmp_path).run)[0] == (COPY, None, None)
    (helper, kernel) = shapes_of(align(tiny, tmp_path).run)[1:]
    assert helper[:2] == ("splitk_gemm_reduce", MM) and np.isnan(helper[2] or 0)
    assert kernel == (GEMM, MM, 1.0)


def test_each_replay_of_a_graph_is_a_call_of_the_captured_operators(tmp_path: Path) -> None:
    tiny = TinyTrace()
    tiny.call("hipStreamBeginCapture", 0, 1)
    for number, at in enumerate((10, 30)):
        tiny.op("aten::mm", at, at + 10, **given([M, K], [K, N * (number + 1)]))
        tiny.call("hipLaunchKernel", at + 1, 10 + number)
    tiny.call("hipStreamEndCapture", 50, 2)
    for replay in range(3):
        at = 100 * (replay + 1)
        tiny.call("hipGraphLaunch", at, 20 + replay)
        for place in range(2):
            tiny.gpu(GEMM, at + 10 + 10 * place, correlation=20 + replay)
    wide = "mm 6x40x32 bf16"
    assert shapes_of(align(tiny, tmp_path).run) == [(GEMM, MM, 1.0), (GEMM, wide, 1.0)] * 3


def test_backward_attention_without_inputs_has_the_forward_s_shape(tmp_path: Path) -> None:
    query = [2, 8, 64, 16]
    tiny = TinyTrace()
    inputs = given(query, query, query, Concrete_Inputs=["", "", "", "0.", "True", "False"])
    name = "aten::_scaled_dot_product_flash_attention"
    links = {"Sequence number": 7, "Fwd thread id": 0}
    forward = tiny.op(name, 0, 10, **inputs, **links)
    tiny.launch(FLASH, 1)
    node = {"Sequence number": 7, "Fwd thread id": 1}
    backward = tiny.op(f"{EVALUATE}SdpaBackward0", 100, 130, AUTOGRAD, **node)
    tiny.flow(forward, backward)
    for at in (101, 111):
        tiny.launch("fmha_bwd_hd64_bf16_causal", at, thread=AUTOGRAD, start=at + 100)
    found = shapes_of(align(tiny, tmp_path).run)
    assert [label for _, label, _ in found] == [
        "attention b2 h8 s64 d16 causal bf16",
        *["attention bwd b2 h8 s64 d16 causal bf16"] * 2,
    ]
    assert sum(share for _, _, share in found if share and np.isfinite(share)) == 2


def products(*columns: int) -> TinyTrace:
    tiny = TinyTrace()
    for number, width in enumerate(columns):
        tiny.op("aten::mm", 20 * number, 20 * number + 10, **given([M, K], [K, width]))
        tiny.launch(GEMM, 20 * number + 1)
    return tiny


def labels(table: KernelTable) -> list[str]:
    return [table.shapes[int(code)].label for code in table.measured[CALL_SHAPE]]


def test_shapes_survive_joining_gathering_and_the_store(tmp_path: Path) -> None:
    tables = []
    for number, columns in enumerate(((20, 40, 20), (40, 60), ())):
        folder = tmp_path / str(number)
        folder.mkdir()
        tiny = products(*columns)
        tiny.launch(COPY, 900)
        tables.append(align(tiny, folder).run.table)
    assert CALL_SHAPE not in tables[2].measured and not tables[2].shapes
    expected = ["mm 6x20x32 bf16", "mm 6x40x32 bf16", "mm 6x20x32 bf16"]
    expected += ["mm 6x40x32 bf16", "mm 6x60x32 bf16"]
    contents = [TableContent.of(table) for table in tables]
    gathered = gather(contents, tables.__getitem__, tmp_path / "gathered")
    for whole in (concatenate(tables), gathered):
        has = np.flatnonzero(np.isfinite(whole.measured[CALL_SHAPE]))
        assert sorted(labels(whole.take(has))) == sorted(expected)
        assert len(whole.shapes) == 3
    run = align(products(20, 40), tmp_path).run
    write_store(run, tmp_path / "store")
    stored = read_store(tmp_path / "store").table
    assert labels(stored) == labels(run.table)
    assert tuple(stored.shapes) == tuple(run.table.shapes)
