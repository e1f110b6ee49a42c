"""Memory: what is held at the peak against a plain loop, in every scope; the figures of Qwen."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import LineChart
from chopper_core.model.view import View
from chopper_core.render import render_frame
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views import view_spec
from chopper_core.views.query import answer, query
from chopper_core.views.shared import held_memory
from tests.allocating import WEIGHTS, allocating_run, events_of
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.support import rows_of, sample_run

QWEN = REAL_DATA / "mi300x_qwen05b.json.gz"
SCOPES = ((), ("0",), ("1",), ("1", "5"), ("1", "5", "forward"), ("0", "4", "forward", "1"))


ALL = (
    "held_bytes,held_pct,growth_bytes,alloc_bytes,allocations,releases,largest_alloc_bytes,"
    "kept_bytes,alloc_lifetime_ns"
)


def test_operators_are_those_of_a_plain_loop() -> None:
    for rank in range(2):
        held: dict[str, int] = {}
        events = events_of(rank)
        operators = [e for e in events if e.get("cat") == "cpu_op"]
        alive: dict[int, tuple[str, int]] = {}
        most = growth_most = 0
        growth: dict[str, int] = defaultdict(int)
        gained: dict[str, int] = defaultdict(int)
        for each in events:
            if each["name"] != "[memory]":
                continue
            size, address = each["args"]["Bytes"], each["args"]["Addr"]
            names = [
                e["name"] for e in operators if e["ts"] <= each["ts"] <= e["ts"] + e["dur"]
            ] or ["outside operators"]
            growth[names[0]] += size
            if size > 0:
                alive[address] = (names[0], size)
                gained[names[0]] += 1
            else:
                del alive[address]
            growth_most = WEIGHTS + sum(size for _, size in alive.values())
            if growth_most > most:
                most, held = growth_most, defaultdict(int)
                for name, own in alive.values():
                    held[name] += own
        frame = query(
            allocating_run(), View("R", (str(rank),), name="memory", by="operator", is_total=True)
        )
        rows = rows_of(frame)
        assert frame.total["held_bytes"] == most
        assert rows.pop("before the trace")["held_bytes"] == WEIGHTS
        assert {name: row["held_bytes"] for name, row in rows.items() if row["held_bytes"]} == held
        assert {name: row["growth_bytes"] for name, row in rows.items()} == growth
        assert {name: n for name, n in gained.items() if n} == {
            name: row["allocations"] for name, row in rows.items() if row["allocations"]
        }


@pytest.mark.parametrize("by", view_spec("memory").by)
def test_held_bytes_add_up_to_the_peak_of_every_scope(by: str) -> None:
    run = allocating_run()
    for path in SCOPES:
        frame = query(
            run, View("R", path, name="memory", by=by, columns=tuple(ALL.split(",")), is_total=True)
        )
        tree = query(run, View("R", path, columns=("peak_bytes", "alloc_bytes"), is_total=True))
        assert frame.values["held_bytes"].numbers.sum() == frame.total["held_bytes"]
        assert frame.total["held_bytes"] == tree.total["peak_bytes"]
        for name in ("growth_bytes", "alloc_bytes", "allocations", "releases", "kept_bytes"):
            assert frame.values[name].numbers.sum() == frame.total[name]
        assert frame.total["alloc_bytes"] == tree.total["alloc_bytes"]
        result = answer(run, frame.view)
        for row in range(len(result.rows.labels)):
            query(run, result.opens(row))


def test_the_peak_is_drawn_and_its_holder_named() -> None:
    run = allocating_run()
    frame = query(run, parse("R?view=memory"))
    assert "peak of GPU 1" in frame.headline[0] and "% of it free" in frame.headline[0]
    assert " of mlp_up · " in frame.headline[1]
    chart = frame.charts[0]
    assert isinstance(chart, LineChart)
    reserved, allocated = (each.numbers for each in chart.series)
    assert allocated.max() == pytest.approx(frame.total["held_bytes"])
    assert reserved.min() == 64 << 20
    by_iteration = query(run, parse("R?view=memory&by=iteration"))
    assert "step 4" in by_iteration.headline[1]
    for form in ("text", "json", "csv", "markdown"):
        assert render_frame(frame, form)


@pytest.mark.parametrize(
    ("by", "label", "name"),
    [
        ("operation", "before the trace", "allocated before the trace"),
        ("operator", "outside operators", "allocated outside any operator"),
        ("layer", "none", "allocated outside any layer"),
        ("gpu", "3", "of GPU 3"),
        ("phase", "forward", "of forward"),
    ],
)
def test_the_headline_names_the_holder(by: str, label: str, name: str) -> None:
    assert held_memory._holder(by, label) == name


def test_the_holders_of_a_later_scope_are_those_that_kept_it_before() -> None:
    """What a layer's peak consists of was allocated by the layers before it too."""
    run = allocating_run()
    rows = rows_of(
        query(run, parse("R:gpu=0/iteration=5/phase=forward/layer=1?view=memory&by=layer"))
    )
    assert rows["0"]["held_bytes"] and not rows["0"]["alloc_bytes"]
    assert rows["1"]["held_bytes"] and rows["1"]["alloc_bytes"]


def test_a_run_without_allocations_says_why() -> None:
    with pytest.raises(NothingToShow, match="profile_memory=True"):
        answer(sample_run(), View("R", name="memory"))
    kernel = parse(
        "R:gpu=0/iteration=4/phase=forward/layer=0/operation=mlp_up/kernel=mlp_up_kernel"
    )
    with pytest.raises(UsageError, match="leave the kernel out"):
        answer(allocating_run(), View("R", kernel.path, name="memory"))


@pytest.mark.skipif(not QWEN.is_file(), reason=f"no real traces at {REAL_DATA}")
def test_the_memory_of_qwen() -> None:
    run = open_run(str(QWEN), jobs=1)
    frame = query(run, parse(f"R?view=memory&by=operator&cut=1&base=total&columns={ALL}"))
    rows = rows_of(frame)
    assert frame.total["held_bytes"] == 2_219_047_936
    empty, product_ = rows["aten::empty"], rows["aten::mm"]
    assert (empty["growth_bytes"], empty["allocations"]) == (15_240_146_944, 361)
    assert (product_["growth_bytes"], product_["allocations"]) == (-4_353_294_336, 96)
    events = sum(int(row["allocations"] or 0) + int(row["releases"] or 0) for row in rows.values())
    assert events == 2_588
    # The cache of keys and values grows layer by layer.
    by_layer = rows_of(query(run, parse("R?view=memory&by=layer&cut=1")))
    assert {by_layer[str(layer)]["held_bytes"] for layer in range(1, 22)} == {36_634_624}


def test_scopes_and_splits_take_every_statistic_and_filter() -> None:
    run = allocating_run()
    for by, text in product(view_spec("memory").by, ("text", "json")):
        frame = query(run, parse(f"R?view=memory&by={by}&filter=held_bytes>0&sort=growth_bytes"))
        assert render_frame(frame, text)
