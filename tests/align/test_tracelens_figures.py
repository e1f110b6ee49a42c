"""Work of calls next to TraceLens's sheets of public traces: GFLOP, MiB; docs/shapes.md has why
some differ.

From AMD-AGI/TraceLens (MIT), `tests/traces`: the reports of Qwen1.5-0.5B-Chat and of ResNet with
activation checkpointing on MI300X, of Wan2.1 on H100, and of SGLang's prefill of Qwen3-8B.
"""

from __future__ import annotations

import pytest

from chopper_core.model.operator_inputs import Inputs, Shape
from chopper_core.work.operators import operator_work

BF16, FP32, FP64, LONG = "c10::BFloat16", "float", "double", "long int"
MIB = 1 << 20
HIDDEN, HEADS, TABLE = [16, 559, 1024], [16, 16, 559, 64], [1, 1, 559, 64]
IMAGE, FILTER = [10, 64, 56, 56], [64, 64, 3, 3]
CONV = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1",
        "[True, True, False]"]  # fmt: skip
Sheet = tuple[str, list[Shape], list[str], list[str], float, float]
"""Operator, inputs, GFLOP of products (0: none) and MiB as TraceLens has them."""

SHEETS: list[Sheet] = [
    ("aten::mm", [[8944, 1024], [1024, 2816]], [BF16] * 2, [], 51.581550592, 71.0078125),
    ("aten::mm", [[8944, 2816], [2816, 1024]], [BF16] * 2, [], 51.581550592, 71.0078125),
    ("aten::mm", [[8944, 1024], [1024, 1024]], [BF16] * 2, [], 18.756927488, 36.9375),
    ("aten::addmm", [[1024], [8944, 1024], [1024, 1024]], [BF16] * 3, [],
     18.766086144, 36.939453125),
    ("aten::bmm", [[1, 32, 1], [1, 1, 559]], [FP32] * 2, [], 3.5776e-05, 0.07049179077148438),
    ("aten::_scaled_dot_product_flash_attention", [HEADS] * 3, [BF16] * 3,
     ["", "", "", "0.", "True", "False", "0.125"], 10.239377408, 69.875),
    ("aten::convolution_backward", [IMAGE, IMAGE, FILTER], [BF16] * 3, CONV,
     4.62422016, 15.453125),
    ("aten::_scaled_dot_product_flash_attention", [[1, 12, 32256, 128]] * 3, [BF16] * 3,
     ["", "", "", "0.", "False", "False", "0.0883"], 6392.521949184, 378.0),
    ("aten::convolution", [[1, 96, 6, 258, 258], [96, 96, 3, 3, 3], [96]], [BF16] * 3,
     ["", "", "", "[1, 1, 1]", "[0, 0, 0]", "[1, 1, 1]", "False", "[0, 0, 0]", "1"],
     130.459631616, 121.60400390625),
    ("aten::native_layer_norm", [[1, 32256, 1536], [], [], []], ["float", "ScalarList", "", ""],
     ["", "[1536]", "", "", "1e-06"], 0, 378.03515625),
    ("aiter::mha_batch_prefill", [[15360, 32, 128], *[[835874, 8, 128]] * 2, *[[16]] * 2, [15616]]
     + [[]] * 12, [BF16] * 3 + ["int"] * 3 + ["Scalar"] * 12,
     [*[""] * 6, "1024", "1024", "0.", "0.088", "0.", "False", "True", "-1", "-1", "0", "False",
      "False"], 128.84901888, 300.0),
    ("aten::mul", [HIDDEN, [16, 559, 1]], [FP32] * 2, [], 0, 69.90911865234375),
    ("aten::add", [HEADS, HEADS, []], [BF16, BF16, "Scalar"], ["", "", "1"], 0, 52.40625),
    ("aten::mul", [HEADS, TABLE], [BF16] * 2, [], 0, 35.0057373046875),
    ("aten::mul", [[16, 559, 2816]] * 2, [BF16] * 2, [], 0, 144.1171875),
    ("aten::mul", [[1024], HIDDEN], [BF16] * 2, [], 0, 34.939453125),
    ("aten::add", [[16, 559, 1], [], []], [FP32, FP64, "Scalar"], ["", "", "1"],
     0, 0.06824493408203125),
    ("aten::mul", [[1, 559, 64], []], [FP32, FP64], [], 0, 0.27295684814453125),
    ("aten::copy_", [HEADS, HEADS, []], [BF16, BF16, "Scalar"], [], 0, 34.9375),
    ("aten::copy_", [HIDDEN, HIDDEN, []], [FP32, BF16, "Scalar"], [], 0, 52.40625),
    ("aten::copy_", [[1, 1, 559]] * 2, [FP32, LONG], [], 0, 0.006397247314453125),
    ("aten::copy_", [[1, 559, 64]] * 2, [BF16, FP32], [], 0, 0.2047119140625),
    ("aten::native_batch_norm", [IMAGE, *[[64]] * 4, [], [], []], [BF16] * 5,
     ["", "", "", "", "", "True", "0.1", "1e-05"], 0, 7.656982421875),
    ("aten::native_batch_norm_backward", [[10, 64, 112, 112]] * 2 + [[64]] * 5,
     [BF16] * 5 + [FP32] * 2, [], 0, 45.93798828125),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "types", "values", "gflop", "mib"), SHEETS)
def test_work_agrees_to_three_digits(
    name: str,
    shapes: list[Shape],
    types: list[str],
    values: list[str],
    gflop: float,
    mib: float,
) -> None:
    work = operator_work(name, Inputs(shapes, types, values))
    assert work is not None
    assert work.bytes * work.parts == pytest.approx(mib * MIB, rel=5e-4)
    if gflop:
        assert work.flops * work.parts == pytest.approx(gflop * 1e9, rel=6e-4)


def test_the_bias_of_a_product_adds_no_flops() -> None:
    inputs = Inputs([[1024], [8944, 1024], [1024, 1024]], [BF16] * 3)
    work = operator_work("aten::addmm", inputs)
    assert work is not None and work.flops + 8944 * 1024 == 18.766086144e9


def test_a_mean_writes_a_number_for_each_row_that_stays() -> None:
    """TraceLens's sheet has one element for the result of a mean over the last dimension."""
    values = ["", "[-1]", "True", ""]
    work = operator_work("aten::mean", Inputs([HIDDEN, [], [], []], [FP32, "ScalarList"], values))
    assert work is not None
    assert work.bytes == 4 * (16 * 559 * 1024 + 16 * 559)
    assert work.bytes - 4 * (16 * 559 - 1) == 34.937503814697266 * MIB
