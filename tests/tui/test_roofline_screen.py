"""The roofline on the screen: the cursor's row is marked, and its benchmark is copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from tests.align.traces import GEMM, TinyTrace, align
from tests.tui.explorer import explorer

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    tiny = TinyTrace(members={"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]})
    for number in range(1, 5):
        sizes = {"Input Dims": [[512, 256 * number], [256 * number, 1024]]}
        tiny.op(
            "aten::mm", 100 * number, 100 * number + 50, **sizes, **{"Input type": ["float"] * 2}
        )
        tiny.launch(GEMM, 100 * number + 1, duration=60 - 10 * number)
    folder: Path = tmp_path_factory.mktemp("roofline")
    return align(tiny, folder).run


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_the_picture_follows_the_cursor(run: Run, size: tuple[int, int]) -> None:
    async with explorer(size, run, View(run.name, name="roofline")) as at:
        seen = set()
        for row in range(4):
            label = f"mm 512x1024x{256 * (row + 1)} fp32"
            assert at.label == label
            (sentence,) = (line for line in at.lines() if f"◆ {label}:" in line)
            assert "TFLOP/s," in sentence
            (place,) = (
                (number, line.index("◆"))
                for number, line in enumerate(at.lines())
                if "◆" in line and line != sentence
            )
            seen.add(place)
            await at.press("j")
        assert len(seen) == 4


async def test_a_sort_shows_the_worst_of_the_roof_first_and_again_the_best(run: Run) -> None:
    async with explorer((80, 24), run, View(run.name, name="roofline")) as at:
        await at.command("sort % roof")
        shares = at.frame.values["model_roof_pct"].known().tolist()
        assert shares == sorted(shares) and len({*shares}) == 4
        # The chooser sorts to the same side.
        await at.command("sort own")
        await at.press("o", *"% roof", "enter")
        assert at.frame.values["model_roof_pct"].known().tolist() == shares
        await at.press("o", *"% roof", "enter")
        assert at.frame.values["model_roof_pct"].known().tolist() == shares[::-1]


async def test_a_key_copies_the_benchmark_of_the_row(run: Run) -> None:
    async with explorer(SIZES[0], run, View(run.name, name="roofline")) as at:
        await at.press("j", "B")
        assert at.app.clipboard.startswith("hipblaslt-bench --api_method c -m 1024 -n 512 -k 512 ")
        await at.command("bench torch")
        assert "torch.randn(512,512," in at.app.clipboard
        await at.press("1", "B")
        assert "a benchmark runs a shape" in at.status
        assert "torch.randn(512,512," in at.app.clipboard


async def test_it_is_zoomed_and_shows_the_points_in_sight(run: Run) -> None:
    async with explorer((120, 40), run, View(run.name, name="roofline")) as at:
        whole = at.text()
        await at.press("+")
        assert at.text() != whole and "no scale" not in at.status
        await at.press("Z")
        assert at.text() == whole
