"""Kernels that were launched before the profile take the place of equal ones in a recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.column_names import FLOPS
from chopper_core.model.table import Rule
from tests.align.traces import ADD, GEMM, Aligned, TinyTrace, align

LAYERS, STEP = 20, 20 * 4 + 2
"""A layer has four kernels; an embedding precedes the layers, a head follows them."""


def kernels() -> list[tuple[str, int, str]]:
    """Kernel, layer (-1: none) and module of each in a step."""
    layer = [(GEMM, "Linear"), (ADD, "Norm"), (GEMM, "MLP"), (ADD, "Act")]
    inside = [(kernel, each, name) for each in range(LAYERS) for kernel, name in layer]
    return [("embedding_kernel", -1, "Embedding"), *inside, ("head_gemm_kernel", -1, "Head")]


def trace(lost: int, recorded: int = STEP, *, steps: int = 2, changed: int = -1) -> TinyTrace:
    """So many kernels without a launch, the last of which is `changed` places before the end of
    another name; then a step of which the last are recorded, and whole ones."""
    made, at = TinyTrace(), 100
    names = [kernel for kernel, _, _ in kernels()]
    before = (names * 20)[: len(names) * 20 - (0 if recorded == STEP else recorded)][-lost:]
    for place, name in enumerate(before):
        name = "other_kernel" if place == lost - 1 - changed else name
        made.gpu(name, at, correlation=None)
        at += 10
    for step in range(steps):
        own = kernels()[-recorded:] if step == 0 else kernels()
        begin, open_layer = at, None
        made.module("Model_0", at, at + 20 * len(own) + 5)
        for kernel, layer, name in own:
            if layer >= 0 and layer != open_layer:
                made.module(f"DecoderLayer_{layer}", at + 1, at + 20 * 4 - 1)
                open_layer = layer
            made.module(f"{name}_{max(layer, 0)}", at + 2, at + 18)
            inputs = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}
            made.op("aten::mm", at + 3, at + 10, **inputs)  # type: ignore[arg-type]
            made.launch(kernel, at + 4, start=at + 12, duration=5)
            at += 20
        made.note(f"ProfilerStep#{step + 7}", begin, at)
    return made


def labels(found: Aligned, lost: int) -> list[tuple[str, str]]:
    pairs = zip(found.texts("layer"), found.texts("operation"), strict=True)
    return list(pairs)[:lost]


def truth(lost: int, skipped: int = 0) -> list[tuple[str, str]]:
    """Of so many kernels before the last `skipped` ones of a step."""
    places = [(str(layer) if layer >= 0 else "none", name) for _, layer, name in kernels()]
    every = places * 20
    return every[: len(every) - skipped][-lost:]


@pytest.mark.parametrize("lost", [64, 70, STEP, STEP + 10, 2 * STEP + 3])
def test_they_have_the_labels_and_the_work_of_their_place(tmp_path: Path, lost: int) -> None:
    found = align(trace(lost), tmp_path)
    assert labels(found, lost) == truth(lost)
    rules = [each.rules["operation_rule"] for each in found.activities[:lost]]
    assert set(rules) == {Rule.CONTEXT}
    flops = found.run.table.measured[FLOPS]
    gemms = sum(kernel in (GEMM, "head_gemm_kernel") for kernel, _, _ in (kernels() * 3)[-lost:])
    linked = 2 * (2 * LAYERS + 1)
    assert (flops == 2 * 8 * 4 * 16).sum() == gemms + linked


def test_the_first_recorded_step_may_be_the_end_of_one(tmp_path: Path) -> None:
    found = align(trace(70, recorded=25), tmp_path)
    assert labels(found, 70) == truth(70, skipped=25)


def test_another_kernel_ends_what_is_known(tmp_path: Path) -> None:
    """Only what follows it, up to the recorded step, has a place."""
    found = align(trace(STEP, changed=70), tmp_path)
    assert labels(found, STEP)[-70:] == truth(70)
    assert {layer for layer, _ in labels(found, STEP)[:-70]} == {"none"}


@pytest.mark.parametrize("changed", [0, 5, 63])
def test_few_kernels_or_another_end_have_no_place(tmp_path: Path, changed: int) -> None:
    found = align(trace(STEP, changed=changed), tmp_path)
    assert {layer for layer, _ in labels(found, STEP)} == {"none"}
