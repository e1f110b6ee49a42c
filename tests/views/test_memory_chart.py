"""The memory chart: a row per figure of the counters, and the picture of the units."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from chopper_core.columns import METRICS, Scope
from chopper_core.columns.metric import Theme
from chopper_core.model.address import parse
from chopper_core.model.charts import MemoryChart
from chopper_core.model.run import Run
from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.util.errors import NothingToShow
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_tui.draw.charts import draw
from tests.demo import demo_run
from tests.support import sample_run
from tests.wording import Wording


def at(run: Run, rest: str) -> Frame:
    return query(run, parse(f"{run.name}{rest}"))


def chart_of(frame: Frame) -> MemoryChart:
    (chart,) = (each for each in frame.charts if isinstance(each, MemoryChart))
    return chart


def test_rows_are_the_figures_of_the_scope() -> None:
    run = demo_run()
    frame = at(run, ":gpu=0?view=memchart")
    names = [name for name, each in METRICS.items() if each.theme is Theme.COUNTERS]
    assert sorted(frame.labels) == sorted(names)
    view = parse(f"{run.name}:gpu=0")
    nodes = run.tree_of(view).node(view.path)
    for name in ("mfma_util_pct", "fabric_read_gbps", "counter_mhz"):
        row = list(frame.labels).index(name)
        expected = METRICS[name].compute(Scope.of(run, nodes)).at(0)
        assert frame.values["figure_value"].at(row) == pytest.approx(expected)
    # A sum is per step: the demo has two complete ones.
    row = list(frame.labels).index("waves")
    assert frame.values["figure_value"].at(row) == pytest.approx(
        METRICS["waves"].compute(Scope.of(run, nodes)).at(0) / 2
    )
    # What wasn't counted comes last, and is missing.
    last = list(frame.labels).index("l2_hit_pct")
    assert frame.values["figure_value"].at(last) is None


def test_the_scope_may_be_anything_and_gpus_without_counters_say_so(wording: Wording) -> None:
    run = demo_run()
    whole, operation = (
        at(run, "?view=memchart"),
        at(run, ":operation=mlp_gp?order=operation&view=memchart"),
    )
    wording.among(whole.notes, "2 GPUs of 8")
    rows = [list(each.labels).index("mfma_util_pct") for each in (whole, operation)]
    busy = [
        each.values["figure_value"].at(row)
        for each, row in zip((whole, operation), rows, strict=True)
    ]
    assert busy[0] is not None and busy[1] is not None and busy[1] > busy[0]
    with pytest.raises(NothingToShow, match="counters"):
        at(replace(run, name="x"), ":gpu=3?view=memchart")
    with pytest.raises(NothingToShow, match="no hardware counters of rocprofv3"):
        at(sample_run(), "?view=memchart")


@pytest.mark.parametrize(("width", "height"), [(40, 8), (76, 14), (116, 20), (196, 40)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_picture_fits_and_names_the_units(width: int, height: int, glyphs: object) -> None:
    chart = chart_of(at(demo_run(), ":gpu=0?view=memchart"))
    lines = draw(chart, width, height, glyphs)  # type: ignore[arg-type]
    assert len(lines) <= height
    texts = ["".join(text for text, _ in line) for line in lines]
    assert all(cell_width(text) <= width for text in texts)
    if width >= 76:
        wanted: Sequence[str] = ("compute", "LDS", "L1 vector", "L2", "fabric", "HBM", "MFMA")
        assert [name for name in wanted if not any(name in text for text in texts)] == []
        # The rate of reads is between L2 and the fabric, with what is read of the peak.
        assert any("1.06" in text for text in texts)
    if glyphs is ASCII:
        assert all(text.isascii() for text in texts)
    else:
        corners = {"".join(texts).count(each) for each in "╭╮╰╯"}
        assert len(corners) == 1, "every box is closed"
