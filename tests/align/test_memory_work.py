"""The bytes of operators that memory limits, against sizes written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.shapes import Moved
from chopper_core.work.memory import width_in
from chopper_core.work.operators import has_model, operator_work
from tests.align.traces import ADD, GEMM, TinyTrace, align

BF16, FLOAT, HALF, LONG = "c10::BFloat16", "float", "c10::Half", "long int"
B, H, S, D = 2, 32, 1024, 4096
SCORES, TOKENS = [B, H, S, S], [B, S, D]
N_SCORES, N = B * H * S * S, B * S * D


def bytes_of(
    name: str,
    shapes: Sequence[list[int]],
    types: Sequence[str],
    values: Sequence[str] = (),
    strides: Sequence[list[int]] = (),
) -> float:
    work = operator_work(name, Inputs(shapes, types, values, strides))
    assert work is not None and isinstance(work.call.sizes, Moved) and isnan(work.flops)
    return work.bytes


CASES: list[tuple[str, list[Any], float]] = [
    # A softmax over bf16 scores reads and writes them; with half_to_float it writes 4 bytes each.
    ("aten::_softmax", [[SCORES, [], []], [BF16, "", ""], ["", "-1", "False"]], 4.0 * N_SCORES),
    ("aten::_softmax", [[SCORES, [], []], [HALF, "", ""], ["", "-1", "True"]], 6.0 * N_SCORES),
    (
        "aten::_softmax_backward_data",
        [[SCORES, SCORES, [], []], [FLOAT, FLOAT, "", ""], ["", "", "-1", "15"]],
        (4 + 4 + 2.0) * N_SCORES,
    ),
    # Elementwise: operands, and a result of the promoted type; scalars of the host don't count.
    ("aten::add", [[TOKENS, TOKENS, []], [BF16, BF16, "Scalar"]], 6.0 * N),
    ("aten::mul", [[TOKENS, [D]], [BF16, FLOAT]], (2 + 4.0) * N + 4 * D),
    ("aten::mul", [[TOKENS, []], [BF16, "double"]], 4.0 * N),
    ("aten::mul", [[TOKENS, []], ["int", "double"]], 8.0 * N),
    ("aten::mul", [[TOKENS, [], TOKENS], [FLOAT, "double", FLOAT]], 8.0 * N),
    ("aten::mul", [[[D, 1], [1, S]], [FLOAT, FLOAT]], 4.0 * (D + S + D * S)),
    ("aten::add", [[[8], [8]], [BF16, HALF]], (2 + 2 + 4.0) * 8),
    ("aten::eq", [[TOKENS, []], [LONG, "Scalar"]], 9.0 * N),
    ("aten::where", [[TOKENS, TOKENS, []], ["bool", BF16, "double"]], 5.0 * N),
    ("aten::silu", [[TOKENS], [BF16]], 4.0 * N),
    ("aten::clamp_min_", [[TOKENS, []], [HALF, "Scalar"]], 4.0 * N),
    ("aten::addcmul_", [[TOKENS] * 3, [FLOAT] * 3], 16.0 * N),
    ("aten::threshold_backward", [[TOKENS, TOKENS, []], [HALF, HALF, "Scalar"]], 6.0 * N),
    # A cast reads one type and writes another; a fill only writes.
    ("aten::copy_", [[TOKENS, TOKENS, []], [BF16, FLOAT, "Scalar"]], 6.0 * N),
    ("aten::fill_", [[TOKENS, []], [FLOAT, "Scalar"]], 4.0 * N),
    ("aten::native_dropout", [[TOKENS, [], []], [BF16, "", ""], ["", "0.1", "True"]], 5.0 * N),
    ("aten::native_dropout_backward", [[TOKENS, TOKENS, []], [BF16, "bool", ""]], 5.0 * N),
    # Reductions: the result has the other dimensions, and its own type.
    ("aten::sum", [[[S, D], [], [], []], [BF16, "", "", ""], ["", "[0]", "True", ""]],
     2.0 * (S * D + D)),
    ("aten::sum", [[[S, D], [], [], []], [BF16, "", "", ""], ["", "[-1]", "False", "6"]],
     2.0 * S * D + 4 * S),
    ("aten::sum", [[[S, D], []], ["bool", ""], ["", ""]], 1.0 * S * D + 8),
    ("aten::mean", [[TOKENS, [], [], []], [FLOAT, "", "", ""], ["", "[]", "False", ""]],
     4.0 * (N + 1)),
    ("aten::argmax", [[[S, D], [], []], [FLOAT, "", ""], ["", "-1", "False"]], 4.0 * S * D + 8 * S),
    ("aten::max", [[[S, D], [], []], [FLOAT, "", ""], ["", "1", "False"]], 4.0 * S * D + 12 * S),
    ("aten::linalg_vector_norm", [[TOKENS], [BF16], ["", "2", "", "False", "6"]], 2.0 * N + 4),
    # Norms: activations, and the weights and statistics of the channels.
    ("aten::native_layer_norm",
     [[TOKENS, [], [D], [D], []], [BF16, "", BF16, BF16, ""], ["", "[4096]", "", "", "1e-5"]],
     4.0 * N + 4 * D),
    ("aten::native_batch_norm_backward",
     [[[8, 64, 7, 7]] * 2 + [[64]] * 5, [HALF, HALF] + [FLOAT] * 5],
     3 * 2.0 * 8 * 64 * 49 + 4 * 64 * 7),
    # Gathers: the rows that are taken, not the table.
    ("aten::embedding", [[[128256, D], [B, S]], [BF16, LONG]], 4.0 * N + 8 * B * S),
    ("aten::embedding_dense_backward",
     [[TOKENS, [B, S]], [BF16, LONG], ["", "", "1000", "-1", "False"]],
     2.0 * N + 8 * B * S + 2 * 1000 * D),
    ("aten::index_select", [[[50, 60], [], [7]], [FLOAT, "", LONG], ["", "0", ""]],
     2 * 4.0 * 7 * 60 + 8 * 7),
    ("aten::gather", [[[50, 60], [], [50, 3]], [FLOAT, "", LONG]], 50 * 3 * (8 + 4 + 4.0)),
    ("aten::scatter_add_", [[[50], [], [900], [900]], [FLOAT, "", LONG, FLOAT]],
     900 * (8 + 3 * 4.0)),
    ("aten::nll_loss_forward", [[[S, D], [S], []], [FLOAT, LONG, ""], ["", "", "", "1", "-100"]],
     S * 12.0 + 4),
    ("aten::nll_loss_backward", [[[], [S, D], [S]], [FLOAT, FLOAT, LONG]], 8.0 * S + 4 * S * D),
    ("aten::mse_loss", [[[S], [S], []], [FLOAT, FLOAT, ""], ["", "", "1"]], 8.0 * S + 4),
    ("aten::mse_loss", [[[S], [S], []], [FLOAT, FLOAT, ""], ["", "", "0"]], 12.0 * S),
    # 112 / 2 windows of 3 with a padding of 1; a result and the place of its maximum.
    ("aten::max_pool2d_with_indices",
     [[[8, 64, 112, 112]], [HALF], ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"]],
     8 * 64 * (2.0 * 112 * 112 + (2 + 8) * 56 * 56)),
    ("aten::avg_pool2d",
     [[[8, 64, 5, 5]], [HALF], ["", "[2, 2]", "[]", "[0, 0]", "True", "True", ""]],
     8 * 64 * 2.0 * (25 + 9)),
    ("aten::_adaptive_avg_pool2d", [[[8, 64, 14, 14]], [HALF], ["", "[7, 7]"]],
     8 * 64 * 2.0 * (14 * 14 + 49)),
    ("aten::max_pool3d_with_indices",
     [[[8, 64, 9, 9, 9]], [HALF], ["", "[3, 3, 3]", "[3, 3, 3]", "0", "1", "False"]],
     8 * 64 * (2.0 * 729 + (2 + 8) * 27)),
    ("aten::upsample_bilinear2d", [[[8, 64, 7, 7]], [HALF], ["", "[28, 28]", "False"]],
     8 * 64 * 2.0 * (49 + 28 * 28)),
    ("aten::upsample_nearest2d_backward",
     [[[8, 64, 28, 28]], [HALF], ["", "[28, 28]", "[8, 64, 7, 7]"]],
     8 * 64 * 2.0 * (49 + 28 * 28)),
    ("aten::var_mean", [[[S, D], [], [], []], [FLOAT, "", "", ""], ["", "[1]", "1", "False"]],
     4.0 * S * D + 2 * 4 * S),
    ("aten::batch_norm_elemt", [[[8, 64, 7, 7], *[[64]] * 4], [HALF] * 3 + [FLOAT] * 2],
     2 * 2.0 * 8 * 64 * 49 + 12 * 64),
    ("aten::batch_norm_backward_reduce",
     [[[8, 64, 7, 7]] * 2 + [[64]] * 3, [HALF] * 2 + [FLOAT] * 3],
     2 * 2.0 * 8 * 64 * 49 + 12 * 64),
    # Bags: a row of the table for each index, and one for each bag.
    ("aten::_embedding_bag", [[[9000, 64], [500], [32]], [FLOAT, LONG, LONG]],
     500 * (8 + 256.0) + 32 * (8 + 256)),
    # FBGEMM: a scale and an offset of 4 bytes follow each row; sums of one more than there are.
    ("fbgemm::FloatToFP8RowwiseQuantized", [[[S, 256]], [FLOAT]], S * (1024 + 264.0)),
    ("fbgemm::FP8RowwiseQuantizedToFloat", [[[S, 264]], ["unsigned char"]], S * (1024 + 264.0)),
    ("fbgemm::asynchronous_complete_cumsum", [[[384]], ["int"]], 4 * (384 + 385.0)),
    # Inference engines: their results are arguments.
    ("_C::fused_add_rms_norm", [[[S, D], [S, D], [D]], [BF16] * 3], 8.0 * S * D + 2 * D),
    ("_C::silu_and_mul", [[[S, D], [S, 2 * D]], [BF16] * 2], 6.0 * S * D),
    ("_C::rotary_embedding",
     [[[S], [S, D], [S, 1024], [], [40000, 128], []], [LONG, BF16, BF16, "", BF16, ""]],
     8.0 * S + 2 * 2 * S * (D + 1024) + 2 * S * 128),
    ("_C_cache_ops::reshape_and_cache_flash",
     [[[S, 8, 128], [S, 8, 128], [99, 16, 8, 128], [99, 16, 8, 128], [S]],
      [BF16, BF16, "unsigned char", "unsigned char", LONG]],
     S * 1024 * (2 + 2 + 1 + 1.0) + 8 * S),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "expected"), CASES)
def test_bytes_are_those_of_each_tensor_once(name: str, given: list[Any], expected: float) -> None:
    assert bytes_of(name, *given) == expected
    assert has_model(name)


def test_a_repeated_tensor_is_read_once() -> None:
    """Expanded heads have a stride of 0; what is written is whole."""
    shape, strides = [B, 8, 4, S, 128], [S * 1024, 128, 0, 1024, 1]
    whole = B * 8 * 4 * S * 128
    given = [[shape, shape], [BF16, BF16], [], [[1] * 5, strides]]
    assert bytes_of("aten::copy_", *given) == 2.0 * whole * (1 + 1 / 4)


def test_what_is_unknown_has_no_bytes() -> None:
    shapes = [[S, D], [], [], []]
    # Without the values of the inputs nobody knows the dimensions, or the type of the result.
    for name in ("aten::sum", "aten::_softmax", "aten::argmax", "aten::avg_pool2d"):
        assert operator_work(name, Inputs(shapes, [BF16, "", "", ""])) is None
    assert operator_work("aten::silu", Inputs([[S, D]])) is None
    assert operator_work("aten::mul", Inputs([[S], [S]], [BF16, "mystery"])) is None
    assert operator_work("aten::mul", Inputs([[S], [S - 1]], [BF16, BF16])) is None
    assert operator_work("aten::cat", Inputs([[], []], ["TensorList", "Scalar"])) is None
    assert not has_model("aten::view") and not has_model("my::rms_norm")


FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double>"
)


def test_lists_of_tensors_have_the_type_of_their_kernel() -> None:
    """Adam reads parameters, gradients and two moments, and writes all but the gradients."""
    each = "[[4096,4096],[4096]]"
    given = f"[{each},{each},{each},{each},[],[[],[]]]"
    types = '["TensorList","TensorList","TensorList","TensorList","TensorList","TensorList"]'
    work = operator_work("aten::_fused_adamw_", Inputs.parsed(given, types))
    assert work is not None and isnan(work.bytes)
    count = 4096 * 4096 + 4096
    assert work.untyped == 7 * count
    assert width_in(FUSED_ADAM) == 4
    assert work.completed(4).bytes == 7 * 4 * count
    assert (
        width_in("void (anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int")
        == 2
    )
    assert width_in("triton_poi_fused_cat_0") == 0


def test_foreach_reads_its_lists_and_writes_the_first() -> None:
    lists = "[[[4,8],[3]],[[4,8],[3]],[]]"
    types = '["TensorList","TensorList","Scalar"]'
    work = operator_work("aten::_foreach_add_", Inputs.parsed(lists, types))
    assert work is not None and work.untyped == 3 * 35
    assert work.call.label == "_foreach_add_ 2 tensors of 35"
    alone = operator_work(
        "aten::_foreach_mul_", Inputs.parsed("[[[4,8],[3]],[]]", '["TensorList","Scalar"]')
    )
    assert alone is not None and alone.untyped == 2 * 35


def bytes_by_start(trace: TinyTrace, folder: Path) -> list[float | None]:
    found = align(trace, folder)
    moved = found.run.table.measured["model_bytes"][found.rows]
    return [None if np.isnan(each) else float(each) for each in moved]


def test_a_call_s_bytes_lie_on_its_longest_kernel(tmp_path: Path) -> None:
    """Helpers of an operator belong to its call; a copy that a product makes is the product's."""
    tiny = TinyTrace()
    tiny.op("aten::sort", 0, 20, **{"Input Dims": [[100]], "Input type": ["float"]})
    for at, duration in ((1, 3), (5, 9)):
        tiny.launch(ADD, at, duration=duration)
    tiny.op("aten::mm", 30, 50, **{"Input Dims": [[8, 8], [8, 8]], "Input type": [BF16, BF16]})
    given = {"Input Dims": [[8, 8], [8, 8]], "Input type": [BF16, BF16]}
    tiny.op("aten::copy_", 31, 35, **given)
    tiny.launch(ADD, 32)
    tiny.launch(GEMM, 40)
    # The outer operator is the call; what nothing models has no bytes.
    tiny.op("aten::mul", 60, 80, **{"Input Dims": [[10], [10]], "Input type": ["float"] * 2})
    tiny.op("aten::fill_", 61, 70, **{"Input Dims": [[10], []], "Input type": ["float", "Scalar"]})
    tiny.launch(ADD, 62)
    tiny.op("my::kernel", 90, 95, **{"Input Dims": [[10]], "Input type": ["float"]})
    tiny.launch(ADD, 91)
    assert bytes_by_start(tiny, tmp_path) == [
        None, 4.0 * 100 + 12 * 100, None, 3 * 2.0 * 64, 12.0 * 10, None,
    ]  # fmt: skip


def test_a_kernel_without_its_launch_has_the_bytes_of_its_place_in_other_steps(
    tmp_path: Path,
) -> None:
    tiny = TinyTrace()
    sizes = (10, 20, 30)
    for step in range(3):
        at = 1000 * step
        tiny.note(f"ProfilerStep#{step + 1}", at, at + 900)
        for place, size in enumerate(sizes):
            begin = at + 100 * place
            given = {"Input Dims": [[size]], "Input type": ["float"]}
            tiny.op("aten::silu", begin, begin + 50, **given)
            if (step, place) == (1, 1):
                tiny.gpu(ADD, begin + 10)
            else:
                tiny.launch(ADD, begin, start=begin + 10)
    assert bytes_by_start(tiny, tmp_path) == [8.0 * size for size in sizes] * 3
