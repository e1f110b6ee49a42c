"""The overview's opportunities, against launches and products whose loss is worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chopper_core.analyses.opportunities import opportunities
from chopper_core.analyses.step_account import step_of
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Card
from chopper_core.model.overrides import Overrides
from chopper_core.views.query import query
from tests.align.traces import ADD, TinyTrace
from tests.wording import Wording

TILED = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1"
TYPES = {"bf16": "c10::BFloat16", "fp32": "float"}
Launch = tuple[str, int, int, tuple[int, int, int], str]
"""Kernel, µs, workgroups, sizes of a product or zeros, type."""
NONE = (0, 0, 0)


def cards(folder: Path, launches: list[Launch], gpu: str = "MI300X") -> list[Card]:
    trace, at = TinyTrace(), 10
    for kernel, duration, grid, (m, n, k), kind in launches:
        if m:
            given = {"Input Dims": [[m, k], [k, n]], "Input type": [TYPES[kind]] * 2}
            trace.op("aten::mm", at, at + 5, **given)  # type: ignore[arg-type]
        sizes = {"grid": [grid, 1, 1], "block": [256, 1, 1]}
        trace.launch(kernel, at + 2, start=at + 20, duration=duration, **sizes)
        at += duration + 20
    trace.note("ProfilerStep#1", 1, at)
    path = trace.write(folder / "rank0.json")
    run = open_run(str(path), jobs=1, overrides=Overrides(hardware=gpu))
    found = opportunities(step_of(run, parse("R?view=overview")), has_products=True)
    for card in found:
        assert len(query(run, parse(card.address))), card.address
    return found


def saved(found: list[Card], words: str) -> float:
    """The saving of the card with the words, in µs."""
    (card,) = (each for each in found if words in each.text)
    value, unit = re.search(r"at most ([\d.]+) (\S+) less", card.text).groups()  # type: ignore[union-attr]
    return float(value) * {"ms": 1000, "µs": 1}[unit]


def test_kernels_too_small_for_the_gpu_could_be_shorter_by_what_is_empty(
    tmp_path: Path, wording: Wording
) -> None:
    small: list[Launch] = [(ADD, 100, 76, NONE, "")] * 10
    full: list[Launch] = [(ADD, 20, 304, NONE, "")] * 5
    found = cards(tmp_path, [*small, *full])
    # Of a kernel's time beyond the shortest, three quarters of the units are empty.
    assert saved(found, "fewer workgroups") == pytest.approx(10 * 80 * 0.75)
    wording(found[0].text, "10 kernels", "fewer workgroups")


@pytest.mark.parametrize(
    ("grid", "has_tail"), [(320, True), (608, False), (560, False), (1, False)]
)
def test_a_tail_is_a_last_round_for_under_half_of_the_units(
    grid: int, has_tail: bool, tmp_path: Path
) -> None:
    found = cards(tmp_path, [(ADD, 100, grid, NONE, "")] * 10)
    tails = [card for card in found if "end with a round" in card.text]
    assert bool(tails) == has_tail
    if tails:
        assert saved(found, "end with a round") == pytest.approx(
            1000 * (608 - grid) / 608, rel=1e-3
        )


OFF = [(544, 8192, 544 / 768), (8192, 544, 544 / 768), (512, 8192, 1), (8000, 8192, 8000 / 8192)]


@pytest.mark.parametrize(("m", "n", "used"), OFF)
def test_a_product_off_its_tile_could_be_shorter_by_what_is_padded(
    m: int, n: int, used: float, tmp_path: Path
) -> None:
    found = cards(tmp_path, [(TILED, 200, 304, (m, n, 8192), "bf16")] * 4)
    off = [card for card in found if "tiles" in card.text]
    assert bool(off) == (used < 0.9)
    if off:
        assert saved(found, "tiles") == pytest.approx(800 * (1 - used), rel=1e-2)


def test_a_product_that_memory_limits_is_not_off_its_tile(tmp_path: Path) -> None:
    found = cards(tmp_path, [(TILED, 200, 304, (16, 8192, 8192), "bf16")] * 4)
    assert not [card for card in found if "tiles" in card.text]


@pytest.mark.parametrize("others", ["bf16", "fp32"])
def test_fp32_counts_only_next_to_products_of_16_bits(others: str, tmp_path: Path) -> None:
    sizes = (4096, 4096, 4096)
    found = cards(
        tmp_path, [(TILED, 900, 304, sizes, "fp32"), (TILED, 100, 304, sizes, others)] * 2
    )
    wide = [card for card in found if "in fp32" in card.text]
    assert bool(wide) == (others == "bf16")
    if wide:  # 256 and 2048 operations per clock and unit
        assert saved(found, "in fp32") == pytest.approx(1800 * (1 - 256 / 2048), rel=1e-3)


def test_nothing_is_said_of_an_unknown_gpu(tmp_path: Path) -> None:
    trace = TinyTrace()
    trace.launch(ADD, 10, duration=100, grid=[1, 1, 1], block=[64, 1, 1])
    run = open_run(str(trace.write(tmp_path / "rank0.json")), jobs=1)
    assert opportunities(step_of(run, parse("R?view=overview")), has_products=False) == []


@pytest.mark.parametrize(("rows", "is_named"), [(8, False), (8 << 20, True)])
def test_what_a_launch_limits_is_not_below_its_roof(
    rows: int, is_named: bool, tmp_path: Path
) -> None:
    """A sum of 64 numbers takes what any kernel takes; one of 64 M could take less."""
    trace, at = TinyTrace(), 10
    for duration in [5] + [5 if rows == 8 else 1900] * 20:
        given = {
            "Input Dims": [[rows, 8], [rows, 8], []],
            "Input type": ["float", "float", "Scalar"],
        }
        trace.op("aten::add", at, at + 5, **given)  # type: ignore[arg-type]
        trace.launch(ADD, at + 2, start=at + 20, duration=duration)
        at += duration + 20
    trace.note("ProfilerStep#1", 1, at)
    path = trace.write(tmp_path / "rank0.json")
    run = open_run(str(path), jobs=1, overrides=Overrides(hardware="MI300X"))
    found = opportunities(step_of(run, parse("R?view=overview")), has_products=False)
    assert any("add shape" in card.text for card in found) == is_named
