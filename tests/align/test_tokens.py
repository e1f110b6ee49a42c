"""Tokens of a step: from the embedding's shape, else from the attention of the first layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.views.query import query
from tests.align.traces import FLASH, TinyTrace, align
from tests.realdata.conftest import FOLDER

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


def operator(trace: TinyTrace, at: int, name: str, shapes: list[list[int]]) -> None:
    trace.op(name, at, at + 4, **{"Input Dims": shapes})
    trace.launch("void elementwise()", at + 1, start=at + 20)


def tokens_by_iteration(trace: TinyTrace, folder: Path) -> dict[str, object]:
    found = query(align(trace, folder).run, parse("R?order=iteration&columns=tokens"))
    tokens = {label: found.row(number)["tokens"] for number, label in enumerate(found.labels)}
    # What is outside of steps has none.
    assert tokens.pop("none", None) is None
    return tokens


def test_the_embedding_of_the_most_entries_counts(tmp_path: Path) -> None:
    trace = TinyTrace()
    for step in range(2):
        trace.note(f"ProfilerStep#{step}", 1_000 * step, 1_000 * step + 900)
        for micro_batch in range(2):
            at = 1_000 * step + 100 + 200 * micro_batch
            embedding(trace, at, [50_000, 64], [4, 128 + step])
            embedding(trace, at + 60, [1_024, 64], [1, 128])
            operator(trace, at + 90, "aten::mm", [[512, 64], [64, 50_000]])
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
        embedding(trace, at + 20, [50_000, 64], None)
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


SDPA = "aten::_scaled_dot_product_flash_attention"
HEAD = ("aten::linear", [[2, 77, 64], [50_000, 64], []])
TIED = ("aten::mm", [[154, 64], [64, 50_000]])
IMAGE = ("aten::conv2d", [[28, 3, 224, 224], [64, 3, 7, 7]])
COMPILED_IMAGE = ("aten::convolution", [[28, 3, 224, 224], [64, 3, 7, 7]])
SEQUENCE_FILTER = ("aten::convolution", [[2, 64, 77], [64, 1, 4]])
CLASSIFIER = ("aten::addmm", [[1_000], [28, 64], [64, 1_000]])
INTERACTION = ("aten::bmm", [[28, 27, 64], [28, 64, 27]])
TEXT = ([50_000, 64], [2, 77])
PACKED = ([50_000, 64], [154])
CLASSES = ([1_001, 64], [28])

Operator = tuple[str, list[list[int]]]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("table", "operators", "attends", "tokens"),
    [
        pytest.param(TEXT, [HEAD], True, 154, id="language model"),
        pytest.param(TEXT, [TIED], False, 154, id="state-space language model"),
        pytest.param(PACKED, [TIED], True, 154, id="packed sequences"),
        pytest.param(PACKED, [], True, None, id="one index per sample without a head"),
        pytest.param(TEXT, [], True, 154, id="first pipeline stage or encoder"),
        pytest.param(TEXT, [SEQUENCE_FILTER], True, 154, id="one-dimensional convolution"),
        pytest.param(TEXT, [IMAGE, HEAD], True, 154, id="vision language model"),
        pytest.param(None, [IMAGE, CLASSIFIER], False, None, id="ResNet"),
        pytest.param(None, [CLASSIFIER], True, None, id="attention over patches"),
        pytest.param(None, [IMAGE, CLASSIFIER], True, None, id="vision transformer"),
        pytest.param(CLASSES, [IMAGE], True, None, id="diffusion by class"),
        pytest.param(CLASSES, [], True, None, id="diffusion by class, latents only"),
        pytest.param(CLASSES, [CLASSIFIER], True, None, id="almost as many classes"),
        pytest.param(TEXT, [IMAGE], True, None, id="diffusion by text"),
        pytest.param(TEXT, [COMPILED_IMAGE], True, None, id="compiled diffusion by text"),
        pytest.param(PACKED, [INTERACTION], False, None, id="recommendation, one feature"),
        pytest.param(TEXT, [INTERACTION], False, None, id="recommendation, several features"),
    ],
)
def test_tokens_only_where_a_language_model_reads_them(
    tmp_path: Path,
    table: tuple[list[int], list[int]] | None,
    operators: list[Operator],
    attends: bool,
    tokens: int | None,
) -> None:
    trace = TinyTrace()
    trace.note("Iteration7", 0, 900)
    if table is not None:
        embedding(trace, 20, *table)
    if attends:
        attention(trace, 100, 0, SDPA, QUERY)
    for place, (name, shapes) in enumerate(operators):
        operator(trace, 300 + 50 * place, name, shapes)
    assert tokens_by_iteration(trace, tmp_path) == {"7": tokens}


REAL = {
    "mi300x_resnet_act_ckpt_rank0of8.json.gz": None,
    "mi300x_train_resnet18.json.gz": None,
    "v100_dlrm_8rank": None,
    "mi300x_qwen05b.json.gz": 8_944,
    "mi300x_sglang_prefill.json.gz": 15_360,
    "vllm_decode_graph.json.gz": 32,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REAL)
def test_tokens_of_real_runs(name: str) -> None:
    file = FOLDER / name
    if not file.exists():
        pytest.skip(f"no {file}")
    run = open_run(str(file))
    column = run.table.measured.get("tokens", np.full(1, np.nan))
    assert set(column[np.isfinite(column)].tolist()) == ({REAL[name]} if REAL[name] else set())
