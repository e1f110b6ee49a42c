"""The icicle: blocks that nest and add up, in the colours of a figure."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from chopper_core.model.charts import Icicle
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_tui.draw.charts import cell_at, draw
from tests.support import sample_run

RUN = "sample.json"
STATES = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


@pytest.fixture(scope="module")
def run() -> Run:
    return sample_run(2, 3, 4)


def icicle_of(run: Run, view: View) -> Icicle:
    chart = query(run, view).charts[0]
    assert isinstance(chart, Icicle)
    return chart


@pytest.mark.parametrize(
    ("path", "by", "levels"),
    [
        ((), "", ("phase", "layer", "operation", "kernel")),
        (("0", "11"), "", ("phase", "layer", "operation", "kernel")),
        (("0", "11"), "layer", ("layer", "phase", "operation", "kernel")),
        (("0", "11", "forward"), "", ("layer", "operation", "kernel")),
        ((), "gpu", ("gpu", "phase", "layer", "operation", "kernel")),
    ],
)
def test_blocks_are_as_long_as_their_time_and_lie_within_each_other(
    run: Run, path: tuple[str, ...], by: str, levels: tuple[str, ...]
) -> None:
    chart = icicle_of(run, View(RUN, path, name="icicle", by=by))
    assert tuple(row.level for row in chart.rows) == levels
    table = run.table
    wanted = dict(zip(("gpu", "iteration", "phase"), path, strict=False))
    expected: list[dict[tuple[str, ...], int]] = [defaultdict(int) for _ in levels]
    for row in range(len(table)):
        texts = {
            level: table.text_of(level, int(table.column(level)[row]))
            for level in {*levels, "gpu", "iteration", "phase"}
        }
        if any(texts[level] != text for level, text in wanted.items()):
            continue
        if not path and int(texts["iteration"]) in run.cut_iterations:
            continue
        time = sum(int(table.column(state)[row]) for state in STATES)
        for depth in range(len(levels)):
            expected[depth][tuple(texts[level] for level in levels[: depth + 1])] += time
    for depth, row in enumerate(chart.rows):
        found: dict[tuple[str, ...], int] = {}
        for block in range(len(row.labels)):
            labels, at = [], block
            for each in reversed(chart.rows[: depth + 1]):
                labels.insert(0, each.labels[at])
                at = int(each.parents[at])
            found[tuple(labels)] = int(row.ends_ns[block] - row.begins_ns[block])
            if depth:
                above, parent = chart.rows[depth - 1], int(row.parents[block])
                assert above.begins_ns[parent] <= row.begins_ns[block]
                assert row.ends_ns[block] <= above.ends_ns[parent]
        assert found == expected[depth]


def test_a_block_opens_what_is_in_it(run: Run) -> None:
    chart = icicle_of(run, View(RUN, ("0", "11"), name="icicle", by="layer"))
    row = chart.rows[1]
    block = row.labels.index("backward")
    view = chart.opens(1, block)
    assert view.name == "icicle" and view.path[:2] == ("0", "11")
    assert query(run, view).charts[0].rows[0].level == "operation"
    leaf = chart.opens(3, 0)
    assert not leaf.name and len(leaf.path) == 6


def test_a_level_above_the_scope_is_no_split(run: Run) -> None:
    with pytest.raises(UsageError, match="the levels below this scope"):
        query(run, View(RUN, ("0", "11", "forward"), name="icicle", by="phase"))


def test_it_is_drawn_with_the_names_of_wide_blocks_and_the_cursor_in_words(run: Run) -> None:
    chart = icicle_of(run, View(RUN, ("0", "11"), name="icicle"))
    lines = draw(chart, 80, 15, UNICODE.coloured(True), 0, 1)[1:]
    texts = ["".join(text for text, _ in line) for line in lines]
    assert "forward" in texts[1] and "▌backward" in texts[1]
    assert all(len(line) == 80 for line in texts[:12])
    assert texts[-1].startswith("▌ backward: ") and "%" in texts[-1]
    assert len(draw(chart, 80, 5, UNICODE.coloured(True))) <= 5
    at = texts[1].index("▌backward")
    assert cell_at([chart], 80, 15, UNICODE, at, 2) == (0, 1)
    assert cell_at([chart], 80, 15, UNICODE, at - 1, 1) == (0, 0)
    below = cell_at([chart], 80, 15, UNICODE, at, 5)
    assert below is not None and below[0] == 1
    assert chart.rows[1].parents[below[1]] == 1
    assert np.isfinite(chart.rows[0].numbers).all()
