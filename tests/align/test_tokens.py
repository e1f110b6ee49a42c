"""Tokens of a step: from the embedding's shape, else from the attention of the first layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.model.address import parse
from chopper_core.views.query import query
from tests.align.traces import FLASH, TinyTrace, align

GATHER = "void at::native::indexSelectLargeIndex<float>()"
QUERY = [2, 16, 512, 64]


def embedding(trace: TinyTrace, at: int, weight: list[int], indices: list[int] | None) -> None:
    dims = {} if indices is None else {"Input Dims": [weight, indices, [], [], []]}
    trace.op("aten::embedding", at, at + 6, **dims)
    trace.op("aten::index_select", at + 1, at + 5)
    trace.launch("void at::native::small_copy()", at + 2, duration=1)
    trace.launch(GATHER, at + 3, start=at + 20)


def attention(trace: TinyTrace, at: int, layer: int, name: str, query_shape: list[int]) -> None:
    trace.note(f"Layer{layer}", at, at + 8)
    trace.op(name, at + 1, at + 7, **{"Input Dims": [query_shape] * 3})
    trace.launch(FLASH, at + 2, start=at + 20)


def tokens_by_iteration(trace: TinyTrace, folder: Path) -> dict[str, object]:
    found = query(align(trace, folder).run, parse("R?order=iteration&columns=tokens"))
    return {label: found.row(number)["tokens"] for number, label in enumerate(found.labels)}


def test_the_embedding_of_the_most_entries_counts(tmp_path: Path) -> None:
    trace = TinyTrace()
    for step in range(2):
        trace.note(f"ProfilerStep#{step}", 1_000 * step, 1_000 * step + 900)
        for micro_batch in range(2):
            at = 1_000 * step + 100 + 200 * micro_batch
            embedding(trace, at, [50_000, 64], [4, 128 + step])
            embedding(trace, at + 60, [1_024, 64], [1, 128])
    assert tokens_by_iteration(trace, tmp_path) == {"0": 2 * 4 * 128, "1": 2 * 4 * 129}


@pytest.mark.parametrize(
    ("name", "shape", "tokens"),
    [
        ("aten::_scaled_dot_product_flash_attention", [2, 16, 512, 64], 1024),
        ("flash_attn::_flash_attn_forward", [2, 512, 16, 64], 1024),
        ("flash_attn::_flash_attn_varlen_forward", [700, 16, 64], 700),
        ("aten::_scaled_dot_product_flash_attention", [700, 16, 64], None),
    ],
)
def test_else_the_attention_of_the_first_layer(
    tmp_path: Path, name: str, shape: list[int], tokens: int | None
) -> None:
    trace = TinyTrace()
    trace.note("Iteration7", 0, 900)
    embedding(trace, 20, [50_000, 64], None)
    for layer in range(3):
        attention(trace, 100 + 50 * layer, layer, name, shape)
    assert tokens_by_iteration(trace, tmp_path) == {"7": tokens}


def test_a_lost_launch_does_not_lose_tokens(tmp_path: Path) -> None:
    trace = TinyTrace()
    for step in range(3):
        at = 1_000 * step
        trace.note(f"Iteration{step}", at, at + 900)
        attention(trace, at + 100, 0, "aten::_scaled_dot_product_flash_attention", QUERY)
        trace.launch("void elementwise()", at + 300)
    trace.note("Iteration3", 3_000, 3_900)
    run = align(trace, tmp_path).run
    column = run.table.measured["tokens"]
    assert column[np.isfinite(column)].tolist() == [1024.0] * 3


def test_without_shapes_they_are_not_known(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.note("Iteration0", 0, 900)
    embedding(trace, 20, [50_000, 64], None)
    assert tokens_by_iteration(trace, tmp_path) == {"0": None}
