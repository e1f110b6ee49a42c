"""The floating-point operations of operators, against products counted by hand."""

from __future__ import annotations

from math import prod

import pytest

from chopper_core.align.flops import operator_flops

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, WIDTH = 2, 32, 8, 4096, 4096, 128
SDPA = "aten::_scaled_dot_product_flash_attention"


def by_loops(rows: int, inner: int, columns: int) -> int:
    """A product as its definition: a multiplication and an addition per term."""
    return sum(2 for _ in range(rows) for _ in range(columns) for _ in range(inner))


def causal_pairs(queries: int) -> int:
    """Of each query with the keys not after it, in the limit of many: half of the square."""
    return queries * queries // 2


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 4, 5), (1, 1, 1), (7, 2, 1)])
def test_a_product_multiplies_and_adds_for_each_term(rows: int, inner: int, columns: int) -> None:
    expected = by_loops(rows, inner, columns)
    assert operator_flops("aten::mm", [[rows, inner], [inner, columns]]) == expected
    bias = [columns]
    assert (
        operator_flops("aten::addmm", [bias, [rows, inner], [inner, columns], [], []]) == expected
    )
    scaled = [[rows, inner], [inner, columns], [], [], [], [], []]
    assert operator_flops("aten::_scaled_mm", scaled) == expected
    batched = [[6, rows, inner], [6, inner, columns]]
    assert operator_flops("aten::bmm", batched) == 6 * expected
    assert operator_flops("aten::baddbmm", [[6, rows, columns], *batched]) == 6 * expected


def test_llama_s_projections_have_the_published_counts() -> None:
    tokens = 2 * 4096
    assert operator_flops("aten::mm", [[tokens, 4096], [4096, 14336]]) == 2 * 8192 * 4096 * 14336
    # Beyond 2**53 nothing may be lost to floats at this size either.
    assert operator_flops("aten::mm", [[tokens, 4096], [4096, 128256]]) == 2 * 8192 * 4096 * 128256


def test_causal_attention_forward_is_two_products_of_half_the_square() -> None:
    query = [BATCH, HEADS, QUERIES, WIDTH]
    products = 2
    expected = products * 2 * BATCH * HEADS * causal_pairs(QUERIES) * WIDTH
    assert operator_flops(SDPA, [query, query, query, [], []]) == expected


def test_causal_attention_backward_is_five_products_of_half_the_square() -> None:
    query = [BATCH, HEADS, QUERIES, WIDTH]
    # What comes first is the gradient of the output.
    shapes = [query, query, query, query, query, [BATCH, HEADS, QUERIES], [], []]
    expected = 5 * 2 * BATCH * HEADS * causal_pairs(QUERIES) * WIDTH
    assert operator_flops(f"{SDPA}_backward", shapes) == expected


@pytest.mark.parametrize("name", [SDPA, "aten::_scaled_dot_product_efficient_attention",
                                  "aten::scaled_dot_product_attention"])  # fmt: skip
def test_grouped_queries_count_by_the_query_s_heads(name: str) -> None:
    query, key = [BATCH, HEADS, QUERIES, WIDTH], [BATCH, KEY_HEADS, KEYS, WIDTH]
    grouped = operator_flops(name, [query, key, key])
    repeated = operator_flops(name, [query, query, query])
    assert grouped is not None
    assert grouped == repeated


def test_grouped_queries_backward_count_by_the_query_s_heads() -> None:
    query, key = [BATCH, HEADS, QUERIES, WIDTH], [BATCH, KEY_HEADS, KEYS, WIDTH]
    grouped = operator_flops(f"{SDPA}_backward", [query, query, key, key, query])
    forward = operator_flops(SDPA, [query, key, key])
    assert forward is not None and grouped == 2.5 * forward


def test_the_flash_attn_package_has_the_sequence_before_the_heads() -> None:
    query, key = [BATCH, QUERIES, HEADS, WIDTH], [BATCH, KEYS, KEY_HEADS, WIDTH]
    expected = operator_flops(SDPA, [[BATCH, HEADS, QUERIES, WIDTH]] * 3)
    assert operator_flops("flash_attn::_flash_attn_forward", [query, key, key]) == expected
    backward = operator_flops("flash_attn::_flash_attn_backward", [query, query, key, key, query])
    assert expected is not None and backward == 2.5 * expected


def test_fewer_keys_than_queries_are_fewer_products() -> None:
    query, key = [1, 1, 64, 16], [1, 1, 32, 16]
    whole = operator_flops(SDPA, [query, query, query])
    assert whole is not None
    assert operator_flops(SDPA, [query, key, key]) == whole / 2


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
        (SDPA, []),
        (SDPA, [[2, 32, 128, 64]]),
        (f"{SDPA}_backward", [[2, 32, 128, 64], [2, 32, 128, 64]]),
        ("", []),
    ],
)
def test_what_is_not_known_has_no_count(name: str, shapes: list[list[int]]) -> None:
    assert operator_flops(name, shapes) is None


def test_an_empty_product_takes_nothing() -> None:
    assert operator_flops("aten::mm", [[0, 4], [4, 5]]) == 0 * prod((4, 5))
