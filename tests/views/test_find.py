"""Names found anywhere, outliers, hidden rows: against a slow computation of the same."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.outliers import outliers
from chopper_core.columns import Values
from chopper_core.model.table import LEVELS, STATES
from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.views import find as find_module
from chopper_core.views.find import find_everywhere, hit_rows, names_everywhere
from chopper_core.views.query import query
from tests.support import Row, run_of, sample_run

PIVOTED = ("kernel", "operation", "gpu", "iteration", "phase", "layer")


@pytest.mark.parametrize("order", [LEVELS, PIVOTED])
@pytest.mark.parametrize("text", ["attn", "cijk MT256x256", "^mlp_up$", "!attn !cijk", "."])
def test_the_hits_are_the_nodes_whose_names_match(text: str, order: tuple[str, ...]) -> None:
    run = sample_run(gpus=2)
    table = run.table
    expected: dict[tuple[str, ...], int] = defaultdict(int)

    def fits(name: str) -> bool:
        return all(
            (re.search(term.removeprefix("!"), name, re.IGNORECASE) is None) == (term[0] == "!")
            for term in text.split()
        )

    for row in range(len(table)):
        labels = [table.text_of(level, int(table.column(level)[row])) for level in order]
        for level in ("operation", "kernel"):
            depth = order.index(level)
            if fits(labels[depth]):
                own = sum(int(table.column(state)[row]) for state in STATES)
                expected[tuple(labels[: depth + 1])] += own
    found = find_everywhere(run, View("", order=order, is_total=True), text, limit=10_000)
    assert {hit.path: hit.elapsed_ns for hit in found.hits} == dict(expected)
    assert found.nodes == len(found.hits)
    of_names: dict[tuple[str, str], list[float]] = defaultdict(list)
    for hit in found.hits:
        of_names[hit.level, hit.path[-1]].append(hit.elapsed_ns)
    named = names_everywhere(run, View("", order=order, is_total=True), text)
    assert {(each.level, each.name): (each.places, each.elapsed_ns) for each in named.by_name} == {
        name: (len(times), sum(times)) for name, times in of_names.items()
    }
    assert (named.names, named.nodes) == (found.names, found.nodes)
    one = named.by_name[0]
    alone = find_everywhere(run, View("", order=order, is_total=True), text, limit=10_000, one=one)
    assert alone.nodes == one.places and {hit.path[-1] for hit in alone.hits} == {one.name}
    times = [hit.elapsed_ns for hit in found.hits]
    assert times == sorted(times, reverse=True)
    few = find_everywhere(run, View("", order=order, is_total=True), text, limit=3)
    assert [hit.elapsed_ns for hit in few.hits] == times[:3] and few.nodes == found.nodes


def test_nothing_found_and_nothing_asked() -> None:
    for find in (find_everywhere, names_everywhere):
        assert find(sample_run(), View(""), "no_such_name").nodes == 0
        for text in ("", "  ", "(", "time>1ms"):
            with pytest.raises(UsageError):
                find(sample_run(), View(""), text)


def test_hits_in_a_table() -> None:
    run = sample_run()
    frame = query(run, View(run.name, ("0", "10", "forward", "1")))
    rows = hit_rows(frame, "attn")
    assert [frame.labels[row] for row in rows] == [n for n in frame.labels if "attn" in n] != []
    with pytest.raises(UsageError, match="not in this table"):
        hit_rows(frame, "prep_overhead_ns>1")


def test_outliers_follow_the_stated_rule() -> None:
    random = np.random.default_rng(5)
    numbers = np.concatenate([random.normal(100, 3, 200), [130.0, 60.0, np.nan]])
    missing = np.isnan(numbers)
    found = outliers(Values(numbers, missing))
    known = [float(x) for x in numbers if not np.isnan(x)]
    median = statistics.median(known)
    limit = 3.5 * 1.4826 * statistics.median(abs(x - median) for x in known)
    assert found.median == pytest.approx(median) and found.limit == pytest.approx(limit)
    assert found.rows == tuple(i for i, x in enumerate(numbers) if abs(x - median) > limit)
    assert {200, 201} <= set(found.rows) and 202 not in found.rows


@pytest.mark.parametrize("numbers", [[1, 2, 3], [5, 5, 5, 5, 9], []])
def test_where_the_rule_says_nothing(numbers: list[int]) -> None:
    with pytest.raises(UsageError):
        outliers(Values(np.array(numbers, np.int64)))


def test_hidden_rows_and_their_time() -> None:
    rows = [Row(0, 980, operation="big"), Row(980, 15, operation="mid")]
    run = run_of([*rows, Row(995, 5, operation="small")])
    view = View(run.name, order=("operation", *(n for n in LEVELS if n != "operation")))
    frame = query(run, replace(view, filter="share_pct>=1%"))
    assert list(frame.labels) == ["big", "mid"]
    assert (frame.hidden, frame.hidden_ns, frame.parent_ns) == (1, 5, 1000)
    assert frame.hidden_text == "1 hidden (0.5%)"
    assert query(run, view).hidden_text == "0 hidden"


def test_places_of_a_name_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who types the same filter in one view after another waits for it once."""
    run = sample_run()
    first = names_everywhere(run, View("R"), "attn")
    assert first.names and all(each.places for each in first.by_name)
    monkeypatch.setattr(find_module, "_places", None)
    assert names_everywhere(run, View("R", name="kernels"), "attn") == first
    with pytest.raises(TypeError):
        names_everywhere(run, View("R"), "norm")
