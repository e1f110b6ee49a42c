"""Which kernels get the model's floating-point operations, and of which type they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.model.address import parse
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE
from chopper_core.model.hardware import ElementType
from chopper_core.render.info import describe, info_text
from chopper_core.views.query import query
from tests.align.traces import AUTOGRAD, EVALUATE, FLASH, GEMM, TinyTrace, align
from tests.support import rows_of

BF16, FP32 = ["c10::BFloat16"] * 2, ["float"] * 2
MATRICES = [[2, 3], [3, 4]]
PRODUCT = 2 * 2 * 3 * 4

FORWARD = "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1"
OF_INPUT = "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1"
OF_WEIGHT = "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1"
TRANSPOSE = "batched_transpose_32x32_half"
CONVOLUTION: dict[str, Any] = {
    "Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []],
    "Input type": [*BF16, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList",
                   "Scalar"],
    "Concrete Inputs": ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"],
}  # fmt: skip
CONVOLVED = 2 * (6 * 6) * 4 * 3 * 9


def backward_inputs(mask: str = "[True, True, False]") -> dict[str, Any]:
    return {
        "Input Dims": [[1, 4, 6, 6], *CONVOLUTION["Input Dims"][:2]] + [[]] * 8,
        "Input type": ["c10::BFloat16"] * 3 + ["Scalar"] * 8,
        "Concrete Inputs": ["", "", "", "[0]", *CONVOLUTION["Concrete Inputs"][3:], mask],
    }


@pytest.fixture
def tiny() -> TinyTrace:
    return TinyTrace()


def works(tiny: TinyTrace, folder: Path) -> list[tuple[str, float | None, ElementType | None]]:
    """Kernel, FLOPs and type of each activity, by start; None where there is none."""
    table = align(tiny, folder).run.table
    flops, element = table.measured[FLOPS], table.measured[FLOPS_TYPE]
    assert (np.isnan(flops) == np.isnan(element)).all()
    return [
        (table.names[table.kernel[row]], None, None)
        if np.isnan(flops[row])
        else (table.names[table.kernel[row]], flops[row], ElementType(int(element[row])))
        for row in np.argsort(table.start_ns, kind="stable")
    ]


def test_a_product_s_type_is_that_of_its_operands(tiny: TinyTrace, tmp_path: Path) -> None:
    tiny.op("aten::mm", 0, 10, **{"Input Dims": MATRICES, "Input type": BF16})
    tiny.op("aten::mm", 10, 20, **{"Input Dims": MATRICES, "Input type": FP32})
    tiny.op("aten::mm", 20, 30, **{"Input Dims": MATRICES})
    for at in (1, 11, 21):
        tiny.launch(GEMM, at)
    assert works(tiny, tmp_path) == [
        (GEMM, PRODUCT, ElementType.BF16),
        (GEMM, PRODUCT, ElementType.FP32),
        (GEMM, PRODUCT, ElementType.UNKNOWN),
    ]


@pytest.mark.parametrize(
    ("product", "peak"),
    [("NVIDIA A100-SXM4-40GB", "19.5 TFLOP/s"), ("Some GPU", "unknown peak")],
)
def test_info_says_the_work_by_type(
    tiny: TinyTrace, tmp_path: Path, product: str, peak: str
) -> None:
    tiny.members["deviceProperties"] = [{"id": 0, "name": product}]
    tiny.op("aten::mm", 0, 10, **{"Input Dims": MATRICES, "Input type": FP32})
    tiny.op("aten::mm", 20, 30, **{"Input Dims": MATRICES})
    for at in (1, 21):
        tiny.launch(GEMM, at)
    run = align(tiny, tmp_path).run
    assert describe(run)["model_flops"] == {"unknown": PRODUCT, "fp32": PRODUCT}
    (line,) = (line for line in info_text(run).splitlines() if "% fp32" in line)
    assert "50.0 %" in line and peak in line
    assert "% unknown, unknown peak" in info_text(run)


def test_a_kernel_that_says_tf32_computes_in_it(tiny: TinyTrace, tmp_path: Path) -> None:
    kernel = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_cublas"
    for at, types in ((0, FP32), (10, BF16)):
        tiny.op("aten::mm", at, at + 10, **{"Input Dims": MATRICES, "Input type": types})
        tiny.launch(kernel, at + 1)
    assert [element for _, _, element in works(tiny, tmp_path)] == [
        ElementType.TF32,
        ElementType.BF16,
    ]


def test_the_longest_matrix_kernel_of_an_operator_has_its_work(
    tiny: TinyTrace, tmp_path: Path
) -> None:
    tiny.op("aten::conv2d", 0, 40, **CONVOLUTION)
    tiny.op("aten::convolution", 1, 39, **CONVOLUTION)
    tiny.launch(TRANSPOSE, 2, start=20, duration=50)
    tiny.launch("other_gemm_helper", 3, start=70, duration=2)
    tiny.launch(FORWARD, 4, start=80, duration=9)
    assert works(tiny, tmp_path) == [
        (TRANSPOSE, None, None),
        ("other_gemm_helper", None, None),
        (FORWARD, CONVOLVED, ElementType.BF16),
    ]


def test_launches_of_one_kernel_share_the_work(tiny: TinyTrace, tmp_path: Path) -> None:
    """Image by image, as a convolution by products does; together they take longest."""
    tiny.op("aten::convolution", 0, 40, **CONVOLUTION)
    for at in (1, 2, 3, 4):
        tiny.launch(GEMM, at, start=10 * at + 10, duration=4)
    tiny.launch("other_gemm_helper", 5, start=90, duration=7)
    found = works(tiny, tmp_path)
    assert found[:4] == [(GEMM, CONVOLVED / 4, ElementType.BF16)] * 4
    assert found[4] == ("other_gemm_helper", None, None)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # Each gradient has a kernel of its own; those that say the same are of the same gradient.
        ([(OF_INPUT, 9), (TRANSPOSE, 8), (OF_WEIGHT, 5)], [1, None, 1]),
        ([(OF_INPUT, 9), (OF_INPUT + "_b", 7), (OF_WEIGHT, 5)], [1, None, 1]),
        ([(GEMM, 9), (GEMM + "_b", 7), ("gemm_helper", 5)], [1, 1, None]),
        ([(OF_INPUT, 9), (OF_INPUT + "_b", 7)], [1, None]),
        # The other gradient's kernel isn't there: this one does no more than its own.
        ([(OF_INPUT, 9), (TRANSPOSE, 8)], [1, None]),
        ([(GEMM, 9), (GEMM, 9)], [1, 1]),
        ([(GEMM, 9), (GEMM, 9), (GEMM, 9), (GEMM, 9)], [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_each_gradient_of_a_convolution_is_work_of_its_own(
    tiny: TinyTrace,
    tmp_path: Path,
    kernels: list[tuple[str, int]],
    expected: list[float | None],
) -> None:
    tiny.op("aten::convolution_backward", 0, 40, AUTOGRAD, **backward_inputs())
    for number, (kernel, duration) in enumerate(kernels, 1):
        tiny.launch(kernel, number, thread=AUTOGRAD, start=20 * number, duration=duration)
    found = [flops for _, flops, _ in works(tiny, tmp_path)]
    assert found == [None if share is None else share * CONVOLVED for share in expected]


def test_one_wanted_gradient_is_one_kernel_s_work(tiny: TinyTrace, tmp_path: Path) -> None:
    inputs = backward_inputs("[False, True, True]")
    tiny.op("aten::convolution_backward", 0, 40, AUTOGRAD, **inputs)
    tiny.launch(OF_WEIGHT, 1, thread=AUTOGRAD, start=20, duration=9)
    tiny.launch(GEMM, 2, thread=AUTOGRAD, start=40, duration=5)
    assert [flops for _, flops, _ in works(tiny, tmp_path)] == [CONVOLVED, None]


@pytest.mark.parametrize(
    ("operator", "inputs", "work", "kernels"),
    [
        # Transpositions around a convolution, also where PyTorch calls it by another name.
        ("aten::convolution", CONVOLUTION, CONVOLVED,
         [(TRANSPOSE, 3), (FORWARD, 10), (TRANSPOSE, 2)]),
        # A split product: its memset, its parts, the sum of these.
        ("aten::mm", {"Input Dims": MATRICES, "Input type": BF16}, PRODUCT,
         [("zero", 1), (GEMM, 6), ("sum", 5)]),
        # Both gradients, one kernel each, with helpers between them.
        ("aten::convolution_backward", backward_inputs(), 2 * CONVOLVED,
         [(TRANSPOSE, 4), (OF_INPUT, 9), (TRANSPOSE, 2), (OF_WEIGHT, 5)]),
    ],
)  # fmt: skip
def test_rates_are_over_all_kernels_of_a_call(
    tiny: TinyTrace,
    tmp_path: Path,
    operator: str,
    inputs: dict[str, Any],
    work: float,
    kernels: list[tuple[str, int]],
) -> None:
    tiny.members["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X"}]
    calls = 2
    for call in range(calls):
        tiny.op(operator, 100 * call, 100 * call + 90, **inputs)
        for number, (kernel, duration) in enumerate(kernels):
            at = 100 * call + 10 * number + 1
            tiny.launch(kernel, at, start=at + 5, duration=duration * (1 + call))
    run = align(tiny, tmp_path).run
    each_ns = 1000 * sum(duration for _, duration in kernels)
    rate = calls * work / (3 * each_ns) / 1e3
    columns = "model_tflops,call_tflops,peak_pct,model_tbps,call_bytes,achievable_pct"
    for view in ("view=kernels&by=shape", "view=roofline"):
        row = query(run, parse(f"R?{view}&columns={columns}")).row(0)
        assert row["model_tflops"] == pytest.approx(rate)
        assert row["call_tflops"] == pytest.approx((1 + 1 / 2) / 2 * work / each_ns / 1e3)
        assert row["peak_pct"] == pytest.approx(100 * rate / 1307.4432)
        assert row["achievable_pct"] == pytest.approx(100 * rate / 708)
        assert row["model_tbps"] == pytest.approx(calls * row["call_bytes"] / (3 * each_ns) / 1e3)
    total = query(run, parse("R?order=operation,kernel&columns=model_tflops,peak_pct")).total
    assert total["model_tflops"] == pytest.approx(rate)
    assert total["peak_pct"] == pytest.approx(100 * rate / 1307.4432)


def test_attention_of_unknown_mask_is_said(tiny: TinyTrace, tmp_path: Path) -> None:
    query = [1, 2, 8, 16]
    inputs = {"Input Dims": [query] * 3 + [[]], "Input type": ["float"] * 3 + ["Scalar"]}
    name = "aten::_scaled_dot_product_flash_attention"
    forward = tiny.op(name, 0, 10, **inputs, **{"Sequence number": 7, "Fwd thread id": 0})
    tiny.launch(FLASH, 1)
    tiny.op(name, 20, 30, **inputs, **{"Concrete Inputs": ["", "", "", "0.", "True"]})
    tiny.launch(FLASH, 21)
    node = {"Sequence number": 7, "Fwd thread id": 1}
    evaluate = tiny.op(f"{EVALUATE}FlashBackward0", 40, 50, AUTOGRAD, **node)
    tiny.flow(forward, evaluate)
    tiny.launch("FmhaBwdDQDKDVKernel", 41, thread=AUTOGRAD)
    aligned = align(tiny, tmp_path)
    (said,) = (name for name in aligned.findings if "attentions without FLOPs" in name)
    assert aligned.findings[said] == 1
    assert [flops for _, flops, _ in works(tiny, tmp_path)] == [None, 2 * 2 * 2 * 8 * 8 / 2 * 16,
                                                                None]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        ("_ZN5aiter33fmha_fwd_hd128_bf16_causal_rtneE", 0.5),
        ("_ZN5aiter26fmha_fwd_hd128_bf16_rtneE", 1.0),
        ("void ck_tile::FmhaFwdKernel<SimplifiedGenericAttentionMask<true> >()", 0.5),
        ("void ck_tile::FmhaFwdKernel<SimplifiedGenericAttentionMask<false> >()", 1.0),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128>"
            ", false, true, false, false, true, true>(Flash_fwd_params)",
            0.5,
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128>"
            ", true, false, true, false, true, true>(Flash_fwd_params)",
            1.0,
        ),
        (FLASH, None),
        ("attn_fwd", None),
    ],
)
def test_a_kernel_s_name_says_if_attention_is_causal(
    tiny: TinyTrace, tmp_path: Path, kernel: str, share: float | None
) -> None:
    inputs = {"Input Dims": [[1, 2, 8, 16]] * 3 + [[]], "Input type": ["float"] * 3 + ["Scalar"]}
    tiny.op("aten::_scaled_dot_product_flash_attention", 0, 10, **inputs)
    tiny.launch(kernel, 1)
    whole = 2 * 2 * 2 * 8 * 8 * 16
    expected = None if share is None else share * whole
    assert [flops for _, flops, _ in works(tiny, tmp_path)] == [expected]
    findings = align(tiny, tmp_path).findings
    (said,) = (name for name in findings if "attentions without FLOPs" in name)
    assert findings[said] == (share is None)


def test_the_same_product_in_fp32_is_8_times_as_near_to_its_peak(
    tiny: TinyTrace, tmp_path: Path
) -> None:
    """On an MI300X: 304 x 256 instead of 304 x 2048 operations per clock of 2100 MHz."""
    tiny.members["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X"}]
    matrices = [[1024, 1024], [1024, 1024]]
    for at, types, kernel in ((0, BF16, f"{GEMM}_b"), (40, FP32, f"{GEMM}_s")):
        tiny.op("aten::mm", at, at + 10, **{"Input Dims": matrices, "Input type": types})
        tiny.launch(kernel, at + 1, duration=20)
    tree = align(tiny, tmp_path).run
    frame = query(tree, parse("R?order=kernel&columns=theoretical_ns,peak_pct,model_tflops"))
    rows = rows_of(frame)
    bf16, fp32 = rows[f"{GEMM}_b"], rows[f"{GEMM}_s"]
    assert bf16["model_tflops"] == fp32["model_tflops"] == pytest.approx(2 * 1024**3 / 20e6)
    assert bf16["theoretical_ns"] == round(2 * 1024**3 / (304 * 2048 * 2.1))
    assert fp32["theoretical_ns"] == round(2 * 1024**3 / (304 * 256 * 2.1))
    assert fp32["peak_pct"] == pytest.approx(8 * bf16["peak_pct"])
