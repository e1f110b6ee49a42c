"""The floating-point operations of operators, against multiplications counted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import isnan

import pytest

from chopper_core.model.hardware import ElementType
from chopper_core.model.operator_inputs import Inputs, Shape
from chopper_core.work.operators import MODELS, Work, model_of, operator_work

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, WIDTH = 2, 32, 8, 4096, 4096, 128
SDPA = "aten::_scaled_dot_product_flash_attention"
CAUSAL, FULL = ("", "", "", "0.", "True", "False"), ("", "", "", "0.", "False", "False")
BF16 = "c10::BFloat16"


def work_of(
    name: str, shapes: Sequence[Shape], values: Sequence[str] = (), types: Sequence[str] = ()
) -> Work | None:
    return operator_work(name, Inputs(shapes, types, values))


def test_no_model_is_hidden_by_one_before_it() -> None:
    hidden = [name for each in MODELS for name in each.names if model_of(name) is not each]
    assert hidden == []


def flops_of(name: str, shapes: Sequence[Shape], values: Sequence[str] = ()) -> float | None:
    work = work_of(name, shapes, values)
    return None if work is None else work.flops


def by_loops(rows: int, inner: int, columns: int) -> int:
    """A product as its definition: a multiplication and an addition per term."""
    return sum(2 for _ in range(rows) for _ in range(columns) for _ in range(inner))


def causal_pairs(queries: int) -> int:
    """Of each query with the keys not after it, in the limit of many: half of the square."""
    return queries * queries // 2


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 4, 5), (1, 1, 1), (7, 2, 1)])
def test_a_product_multiplies_and_adds_for_each_term(rows: int, inner: int, columns: int) -> None:
    expected = by_loops(rows, inner, columns)
    matrices = [[rows, inner], [inner, columns]]
    assert flops_of("aten::mm", matrices) == expected
    assert flops_of("aten::_int_mm", matrices) == expected
    assert flops_of("aten::addmm", [[columns], *matrices, [], []]) == expected
    assert flops_of("aten::_scaled_mm", [*matrices, [], [], [], [], []]) == expected
    assert flops_of("aten::_addmm_activation", [[columns], *matrices, []]) == expected
    result, weight, given = [rows, columns], [columns, inner], [rows, inner]
    assert flops_of("_C::cutlass_scaled_mm", [result, *matrices, [1], [1]]) == expected
    assert flops_of("_rocm_C::wvSplitK", [weight, given, []]) == expected
    assert flops_of("vllm::rocm_unquantized_gemm", [given, weight, []]) == expected
    batched = [[6, rows, inner], [6, inner, columns]]
    assert flops_of("aten::bmm", batched) == 6 * expected
    assert flops_of("aten::baddbmm", [[6, rows, columns], *batched]) == 6 * expected
    assert flops_of("aten::linear", [[rows, inner], [columns, inner], []]) == expected
    assert flops_of("aten::linear", [[2, 3, rows, inner], [columns, inner]]) == 6 * expected


def test_the_result_among_the_inputs_is_written_once() -> None:
    shapes, fp8 = [[3, 5], [3, 4], [4, 5], [1], [1]], "c10::Float8_e4m3fn"
    work = work_of("_C::cutlass_scaled_mm", shapes, (), [BF16, fp8, fp8, "float", "float"])
    assert work is not None and work.bytes == 2 * 3 * 5 + 3 * 4 + 4 * 5 + 8
    work = work_of("sgl_kernel::fp8_scaled_mm", shapes[1:], ["", "", "", "", "15"],
                   [fp8, fp8, "float", "float", "Scalar"])  # fmt: skip
    assert work is not None and work.bytes == 2 * 3 * 5 + 3 * 4 + 4 * 5 + 8


def test_llama_s_projections_have_the_published_counts() -> None:
    tokens = 2 * 4096
    assert flops_of("aten::mm", [[tokens, 4096], [4096, 14336]]) == 2 * 8192 * 4096 * 14336
    # Beyond 2**53 nothing may be lost to floats at this size either.
    assert flops_of("aten::mm", [[tokens, 4096], [4096, 128256]]) == 2 * 8192 * 4096 * 128256


def test_attention_forward_is_two_products_of_the_square_or_of_half_of_it() -> None:
    query = [BATCH, HEADS, QUERIES, WIDTH]
    shapes = [query, query, query, [], [], []]
    half = 2 * 2 * BATCH * HEADS * causal_pairs(QUERIES) * WIDTH
    assert flops_of(SDPA, shapes, CAUSAL) == half
    assert flops_of(SDPA, shapes, FULL) == 2 * half


def test_attention_backward_is_five_products() -> None:
    query = [BATCH, HEADS, QUERIES, WIDTH]
    # What comes first is the gradient of the output.
    shapes = [query, query, query, query, query, [BATCH, HEADS, QUERIES], [], []]
    half = 5 * 2 * BATCH * HEADS * causal_pairs(QUERIES) * WIDTH
    assert flops_of(f"{SDPA}_backward", shapes, ("",) * 6 + ("4096", "4096", "0.", "True")) == half
    full = flops_of(f"{SDPA}_backward", shapes, ("",) * 6 + ("4096", "4096", "0.", "False"))
    assert full == 2 * half


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        (SDPA, 3, ("", "", "", "0.", "{}", "False", "0.125")),
        (SDPA, 3, ("", "", "", "0.10000000000000001", "{}", "False", "")),
        ("aten::scaled_dot_product_attention", 3, ("", "", "", "", "0.", "{}", "0.125", "True")),
        ("aten::_scaled_dot_product_efficient_attention", 3,
         ("", "", "", "", "True", "0.", "{}", "")),
        ("aten::_scaled_dot_product_cudnn_attention", 3,
         ("", "", "", "", "True", "0.", "{}", "False")),
        ("aten::_scaled_dot_product_efficient_attention_backward", 4,
         ("",) * 9 + ("0.", "[True,True,True,False]", "{}", "")),
        ("flash_attn::_flash_attn_forward", 3,
         ("", "", "", "0.", "0.088388347648318447", "{}", "-1", "-1", "0.", "", "False")),
        ("flash_attn::_flash_attn_backward", 4,
         ("",) * 9 + ("0.", "0.088388347648318447", "{}", "-1", "-1", "0.", "", "True")),
    ],
)  # fmt: skip
def test_is_causal_is_read_where_each_schema_has_it(
    name: str, shapes: int, values: tuple[str, ...]
) -> None:
    query = [[2, 64, 64, 16]] * shapes
    causal = flops_of(name, query, [text.format("True") for text in values])
    full = flops_of(name, query, [text.format("False") for text in values])
    assert causal is not None and causal > 0
    assert full == 2 * causal


@pytest.mark.parametrize("values", [(), ("", "", ""), ("", "", "", "0."), ("", "", "", "True")])
def test_attention_of_unknown_mask_has_no_count_but_is_known_to_be_one(
    values: tuple[str, ...],
) -> None:
    work = work_of(SDPA, [[2, 8, 64, 16]] * 3, values, [BF16] * 3)
    assert work is not None
    assert isnan(work.flops)


@pytest.mark.parametrize("name", [SDPA, "aten::_scaled_dot_product_efficient_attention",
                                  "aten::scaled_dot_product_attention"])  # fmt: skip
def test_grouped_queries_count_by_the_query_s_heads(name: str) -> None:
    query, key = [BATCH, HEADS, QUERIES, WIDTH], [BATCH, KEY_HEADS, KEYS, WIDTH]
    grouped = flops_of(name, [query, key, key], CAUSAL)
    assert grouped is not None
    assert grouped == flops_of(name, [query, query, query], CAUSAL)


def test_grouped_queries_backward_count_by_the_query_s_heads() -> None:
    query, key = [BATCH, HEADS, QUERIES, WIDTH], [BATCH, KEY_HEADS, KEYS, WIDTH]
    grouped = flops_of(f"{SDPA}_backward", [query, query, key, key, query], CAUSAL)
    forward = flops_of(SDPA, [query, key, key], CAUSAL)
    assert forward is not None and grouped == 2.5 * forward


PACKED_VALUES = ["", "", "", "", "", "1024", "1024", "0.", "0.0883", "True", "-1", "-1", "0."]


def scores(queries: int, keys: int, window: int) -> int:
    """Pairs that count where the last query attends to the last key, one by one."""
    last = [query + keys - queries for query in range(queries)]
    return sum(max(key - max(key - window, -1), 0) if window else key + 1 for key in last)


@pytest.mark.parametrize(
    ("queries", "keys", "window"),
    [(1024, 1024, 0), (512, 2048, 0), (1, 4096, 0), (2048, 2048, 256), (512, 2048, 300)],
)
def test_a_causal_mask_that_is_no_square_counts_the_scores_below_it(
    queries: int, keys: int, window: int
) -> None:
    key, query = [2, keys, 8, 64], [2, queries, 32, 64]
    values = ["", "", "", "0.", "0.125", "True", str(window or -1), "0", "0.", "", "False"]
    flops = flops_of("flash_attn::_flash_attn_forward", [query, key, key], values)
    expected = 4 * 2 * 32 * 64 * scores(queries, keys, window)
    assert flops == pytest.approx(expected, rel=1 / min(queries, window or queries))
    values[5] = "False"
    full = flops_of("flash_attn::_flash_attn_forward", [query, key, key], values)
    assert full is not None
    assert isnan(full) if window else full == 4 * 2 * 32 * 64 * queries * keys


@pytest.mark.parametrize(
    ("name", "tokens", "key_tokens", "longest", "is_known"),
    [
        ("flash_attn::_flash_attn_varlen_forward", 4 * 1024, 4 * 1024, "1024", True),
        ("flash_attn::_flash_attn_varlen_forward", 3 * 1024, 4 * 1024, "1024", False),
        ("flash_attn::_flash_attn_varlen_forward", 4 * 1024, 4 * 2048, "2048", True),
        ("flash_attn::_flash_attn_varlen_forward", 4 * 1024, 4 * 2047, "2048", False),
        ("aiter::mha_batch_prefill", 4 * 1024, 99999, "1024", True),
        ("aiter::mha_batch_prefill", 4 * 1024, 4 * 2048, "2048", False),
    ],
)
def test_packed_sequences_count_where_all_must_be_as_long_as_the_longest(
    name: str, tokens: int, key_tokens: int, longest: str, is_known: bool
) -> None:
    query, key = [tokens, 32, 128], [key_tokens, 8, 128]
    values = [*PACKED_VALUES[:6], longest, *PACKED_VALUES[7:9]]
    # AITER's schema has `zero_tensors` before the mask.
    values += ["False", "True", "-1"] if name.startswith("aiter") else PACKED_VALUES[9:]
    types = [BF16] * 3 + ["int"] * 2 + ["Scalar"] * 9
    work = work_of(name, [query, key, key, [5], [5], *[[]] * 9], values, types)
    assert (work is not None) == is_known
    if work is not None:
        keys = int(longest)
        expected = 4 * 4 * 32 * 128 * scores(1024, keys, 0)
        assert work.flops == pytest.approx(expected, rel=1e-3)
        assert work.bytes == 2 * 128 * (2 * 32 * tokens + 2 * 8 * 4 * keys)


def test_values_narrower_than_keys_make_narrower_products() -> None:
    """Scores of width 24, weighted sums of width 16; backward three and two of them."""
    query, value = [1, 2, 8, 24], [1, 2, 8, 16]
    pairs = 2 * 8 * 8
    assert flops_of(SDPA, [query, query, value], FULL) == 2 * pairs * (24 + 16)
    backward = flops_of(f"{SDPA}_backward", [value, query, query, value], FULL)
    assert backward == 2 * pairs * (3 * 24 + 2 * 16)


def test_the_flash_attn_package_has_the_sequence_before_the_heads() -> None:
    query, key = [BATCH, QUERIES, HEADS, WIDTH], [BATCH, KEYS, KEY_HEADS, WIDTH]
    expected = flops_of(SDPA, [[BATCH, HEADS, QUERIES, WIDTH]] * 3, CAUSAL)
    values = ("", "", "", "0.", "0.125", "True")
    assert flops_of("flash_attn::_flash_attn_forward", [query, key, key], values) == expected
    backward = flops_of("flash_attn::_flash_attn_backward", [query, query, key, key, query], values)
    assert expected is not None and backward == 2.5 * expected


def test_fewer_keys_than_queries_are_fewer_products() -> None:
    query, key = [1, 1, 64, 16], [1, 1, 32, 16]
    whole = flops_of(SDPA, [query, query, query], FULL)
    assert whole is not None
    assert flops_of(SDPA, [query, key, key], FULL) == whole / 2


# A convolution: batch, channels in and out, groups, then per direction size, taps, stride,
# padding, dilation.
Direction = tuple[int, int, int, int, int]
CONVOLUTIONS: list[tuple[int, int, int, int, list[Direction]]] = [
    (2, 3, 4, 1, [(7, 3, 1, 0, 1)]),
    (2, 3, 4, 1, [(7, 3, 2, 1, 1), (6, 3, 2, 1, 1)]),
    (1, 4, 8, 2, [(8, 3, 1, 1, 1), (5, 1, 1, 0, 1)]),
    (1, 6, 6, 6, [(9, 3, 1, 2, 2), (9, 3, 3, 2, 2)]),
    (1, 2, 2, 1, [(4, 2, 2, 0, 1), (5, 3, 1, 1, 1), (6, 2, 3, 2, 1)]),
]


def windows(size: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """The places where the whole window lies on the padded line, tried one by one."""
    line = range(-padding, size + padding)
    return sum(
        all(start + tap * dilation in line for tap in range(taps)) for start in line[::stride]
    )


def multiplications(
    batch: int, channels: int, filters: int, groups: int, directions: list[Direction]
) -> int:
    """Of every output element with every tap of every channel of its group, one by one."""
    outputs = product(range(batch), range(filters), *(range(windows(*d)) for d in directions))
    taps = list(product(range(channels // groups), *(range(d[1]) for d in directions)))
    return sum(len(taps) for _ in outputs)


def lists(directions: list[Direction]) -> tuple[str, str, str]:
    """Stride, padding and dilation as a trace without its spaces has them."""
    stride, padding, dilation = (
        "[" + ",".join(str(direction[place]) for direction in directions) + "]"
        for place in (2, 3, 4)
    )
    return stride, padding, dilation


@pytest.mark.parametrize(("batch", "channels", "filters", "groups", "directions"), CONVOLUTIONS)
def test_a_convolution_multiplies_and_adds_for_each_tap(
    batch: int, channels: int, filters: int, groups: int, directions: list[Direction]
) -> None:
    image = [batch, channels, *(d[0] for d in directions)]
    weight = [filters, channels // groups, *(d[1] for d in directions)]
    stride, padding, dilation = lists(directions)
    expected = 2 * multiplications(batch, channels, filters, groups, directions)
    assert expected > 0
    group = str(groups)
    rest = ("False", "[0]", group)
    given = {
        "aten::convolution": ("", "", "", stride, padding, dilation, *rest),
        "aten::_convolution": ("", "", "", stride, padding, dilation, *rest, "True", "False"),
        "aten::conv2d": ("", "", "", stride, padding, dilation, group),
        "aten::cudnn_convolution": ("", "", padding, stride, dilation, group, "True", "False"),
        "aten::miopen_convolution": ("", "", "", padding, stride, dilation, group, "True"),
    }
    for name, values in given.items():
        assert flops_of(name, [image, weight, [], [], [], [], []], values) == expected, name
    # Each gradient takes the same: every output element meets every tap once.
    output = [batch, filters, *(windows(*d) for d in directions)]
    for mask, parts in (("[True,True,False]", 2), ("[False,True,True]", 1)):
        values = ("", "", "", "[0]", stride, padding, dilation, *rest, mask)
        work = work_of("aten::convolution_backward", [output, image, weight], values)
        assert work is not None
        assert (work.flops, work.element, work.parts) == (expected, ElementType.UNKNOWN, parts)


def test_resnet_s_first_convolution_has_the_published_count() -> None:
    """118 million multiplications for an image of 224 x 224."""
    values = ("", "", "", "[2,2]", "[3,3]", "[1,1]", "False", "[0,0]", "1")
    shapes = [[1, 3, 224, 224], [64, 3, 7, 7], []]
    assert flops_of("aten::convolution", shapes, values) == 2 * 118_013_952


def test_a_transposed_convolution_spreads_each_input_element() -> None:
    """4 x 5 input elements, each times a 3 x 3 window of 8 filters, for 6 channels."""
    values = ("", "", "", "[2,2]", "[1,1]", "[1,1]", "True", "[0,0]", "1")
    shapes = [[2, 6, 4, 5], [6, 8, 3, 3], []]
    expected = 2 * 2 * 6 * (4 * 5) * 8 * 9
    assert flops_of("aten::convolution", shapes, values) == expected
    backward = ("", "", "", "[0]", *values[3:], "[True,True,False]")
    assert flops_of("aten::convolution_backward", [[2, 8, 7, 9], *shapes[:2]], backward) == expected


def test_one_number_stands_for_every_direction() -> None:
    shapes = [[1, 2, 9, 8], [3, 2, 3, 3]]
    short = ("", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1")
    long = ("", "", "", "[2,2]", "[1,1]", "[1,1]", "False", "[0,0]", "1")
    assert flops_of("aten::convolution", shapes, short) == 2 * (5 * 4) * 3 * 2 * 9
    assert flops_of("aten::convolution", shapes, short) == flops_of(
        "aten::convolution", shapes, long
    )


@pytest.mark.parametrize(
    ("types", "element"),
    [
        ((BF16, BF16), ElementType.BF16),
        (("c10::Half", "c10::Half"), ElementType.FP16),
        (("float", "float"), ElementType.FP32),
        (("double", "double"), ElementType.FP64),
        (("signed char", "signed char"), ElementType.INT8),
        (("c10::Float8_e4m3fn", "c10::Float8_e5m2"), ElementType.FP8),
        (("c10::Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"), ElementType.FP8),
        ((BF16, "float"), ElementType.UNKNOWN),
        (("c10::complex<float>", "c10::complex<float>"), ElementType.UNKNOWN),
        (("", ""), ElementType.UNKNOWN),
        ((BF16,), ElementType.UNKNOWN),
        ((), ElementType.UNKNOWN),
    ],
)
def test_the_type_is_that_of_what_is_multiplied(
    types: tuple[str, ...], element: ElementType
) -> None:
    for name, shapes in (("aten::mm", [[3, 4], [4, 5]]), ("aten::bmm", [[2, 3, 4], [2, 4, 5]])):
        work = work_of(name, shapes, (), types)
        assert work is not None and work.element == element
    bias = work_of("aten::addmm", [[5], [3, 4], [4, 5]], (), ("float", *types))
    assert bias is not None and bias.element == element


def test_inputs_are_read_from_what_a_trace_has() -> None:
    inputs = Inputs.parsed('[[2,3],[],[[1],[2]],"x"]', '["float","",7]', '["","[1,2]","True","1"]')
    assert inputs.shapes == [[2, 3], [], [], []]
    assert inputs.types == ["float", "", ""]
    assert [inputs.value(place) for place in range(5)] == [None, [1, 2], True, 1, None]
    assert Inputs.parsed("{", "7", "null") == Inputs([], [], [], [])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::add", [[4, 4], [4, 4]]),
        ("aten::softmax", [[2, 8, 16, 16]]),
        ("my::mm", [[3, 4], [4, 5]]),
        ("aten::mm", []),
        ("aten::mm", [[3, 4]]),
        ("aten::mm", [[3, 4], [5, 6]]),
        ("aten::mm", [[3, 4], []]),
        ("aten::mm", [[2, 3, 4], [4, 5]]),
        ("aten::addmm", [[5]]),
        ("aten::addmm", [[5], [3, 4], [6, 5]]),
        ("aten::bmm", [[3, 4], [4, 5]]),
        ("aten::bmm", [[2, 3, 4], [2, 5, 6]]),
        ("aten::linear", [[3, 4], [5, 6]]),
        ("aten::linear", [[], [5, 6]]),
        (SDPA, []),
        (SDPA, [[2, 32, 128, 64]]),
        (SDPA, [[2, 128, 64]] * 3),
        (f"{SDPA}_backward", [[2, 32, 128, 64]] * 3),
        ("", []),
        # Without stride, padding and dilation the output's size isn't known.
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]]),
        ("aten::conv2d", [[3, 8, 8], [4, 3, 3, 3]]),
        ("aten::convolution", [[1, 3], [4, 3]]),
        ("aten::convolution_backward", [[1, 4, 6, 6], [1, 3, 8, 8], [4, 3, 3, 3]]),
    ],
)
def test_what_is_not_known_has_no_count(name: str, shapes: list[list[int]]) -> None:
    assert flops_of(name, shapes, CAUSAL if "scaled" in name else ()) is None


@pytest.mark.parametrize(
    "values",
    [
        ("", "", "", "same", "[1,1]", "[1,1]", "False", "[0,0]", "1"),
        ("", "", "", "[0,0]", "[1,1]", "[1,1]", "False", "[0,0]", "1"),
        ("", "", "", "[1,1,1]", "[1,1]", "[1,1]", "False", "[0,0]", "1"),
        ("", "", "", "[1,1]", "[1,1]", "[1,1]", "", "[0,0]", "1"),
    ],
)
def test_a_convolution_of_odd_steps_has_no_count(values: tuple[str, ...]) -> None:
    assert flops_of("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], values) is None


def test_an_empty_product_takes_nothing() -> None:
    assert flops_of("aten::mm", [[0, 4], [4, 5]]) == 0
    assert flops_of(SDPA, [[2, 8, 0, 16]] * 3, CAUSAL) == 0


@pytest.mark.parametrize(
    ("name", "shapes", "is_full"),
    [
        # A mask of its own: PyTorch allows none beside a causal one.
        ("aten::scaled_dot_product_attention", [[2, 8, 64, 16]] * 3 + [[2, 1, 64, 64]], True),
        ("aten::scaled_dot_product_attention", [[2, 8, 64, 16]] * 3 + [[64, 64]], True),
        ("aten::scaled_dot_product_attention", [[2, 8, 64, 16]] * 3 + [[]], False),
        # One query sees all keys.
        (SDPA, [[2, 8, 1, 16], [2, 8, 64, 16], [2, 8, 64, 16]], True),
        # The fourth input of a backward is no mask.
        (f"{SDPA}_backward", [[2, 8, 64, 16]] * 6, False),
    ],
)
def test_inputs_that_show_that_attention_is_not_causal(
    name: str, shapes: list[list[int]], is_full: bool
) -> None:
    work = work_of(name, shapes, (), [BF16] * 3)
    assert work is not None
    if is_full:
        queries, keys = shapes[0][2], shapes[1][2]
        assert work.flops == 2 * 2 * 2 * 8 * queries * keys * 16
    else:
        assert isnan(work.flops)
        assert work.masked(True).flops * 2 == work.masked(False).flops > 0
