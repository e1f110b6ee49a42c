"""Statistics over instances: against pandas, which groups the same rows by itself."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.columns.derived import reduced
from chopper_core.model.address import parse, render
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, STATES, Category
from chopper_core.model.view import STATISTICS, View, as_statistic, enter, up
from chopper_core.render import render_frame as rendered
from chopper_core.util.errors import UsageError
from chopper_core.views import view_specs
from chopper_core.views.query import answer, query
from chopper_core.views.spec import ViewSpec
from tests.support import rows_of
from tests.tui.explorer import measured_run, sample_run
from tests.wording import Wording

RUN = sample_run(gpus=3, iterations=3, layers=4)
CUT = replace(RUN, partial_iterations={0: frozenset({10}), 2: frozenset({10, 12})})
COLUMNS = "elapsed_ns,kernels,busy_pct,mean_ns,instances"
STEPS = ["gpu", "iteration"]
NAMED = ("operation", "kernel")


_ACTIVITIES: dict[int, tuple[Run, pd.DataFrame]] = {}
"""Those of a run, which stays alive with them; nobody changes them."""


def activities(run: Run) -> pd.DataFrame:
    """The kernel table with labels as text, by no code of the tree or the metrics."""
    if id(run) in _ACTIVITIES:
        return _ACTIVITIES[id(run)][1]
    table = run.table
    data = {level: [table.text_of(level, int(c)) for c in table.column(level)] for level in LEVELS}
    data |= {name: getattr(table, name) for name in (*STATES, "duration_ns")}
    frame = pd.DataFrame(data)
    frame["kernels"] = (table.category == Category.KERNEL).astype(int)
    frame["count"] = 1
    frame["cut"] = [
        any(int(i) in numbers for numbers in run.partial_iterations.values())
        for i in table.iteration
    ]
    _ACTIVITIES[id(run)] = run, frame
    return frame


def expected(rows: pd.DataFrame, by: str | None, over: list[str], stat: str) -> pd.DataFrame:
    keys = list(dict.fromkeys([*([by] if by else []), *over]))
    sums = rows.groupby(keys)[[*STATES, "duration_ns", "kernels", "count"]].sum()
    elapsed = sums[list(STATES)].sum(axis=1)
    one = pd.DataFrame(
        {
            "elapsed_ns": elapsed,
            "kernels": sums["kernels"],
            "busy_pct": (100 * (elapsed - sums["idle_ns"]) / elapsed).where(elapsed > 0),
            "mean_ns": sums["duration_ns"] / sums["count"],
        }
    )
    grouped = one.groupby(level=by) if by else one.groupby(lambda _: "scope")
    found = {
        "mean": grouped.mean,
        "median": grouped.median,
        "p95": lambda: grouped.quantile(0.95),
        "max": grouped.max,
        "min": grouped.min,
        "spread": lambda: grouped.max() - grouped.min(),
    }[stat]()
    found["instances"] = grouped.size()
    return found


ADDRESSES = (
    "R",
    "R:gpu=1",
    "R?order=operation",
    "R:operation=attn_fa?order=operation",
    "R?order=layer",
    "R:gpu=2/phase=backward?order=gpu,phase,kernel",
    "R?order=operation&over=gpu",
    "R:phase=forward?order=phase,layer&over=iteration,operation",
    "R?view=kernels",
    "R:gpu=1?view=kernels&by=operation",
    "R:phase=backward?order=phase&view=kernels&by=operation",
    "R:gpu=0/iteration=11?view=kernels&by=operation",
    "R?view=overheads&by=layer",
    "R?view=launch&by=phase",
    "R:gpu=2?view=overheads&by=iteration",
    "R?view=heatmap&by=phase",
    "R?view=kernels&by=operation&over=gpu",
)


@pytest.mark.parametrize("stat", [name for name in STATISTICS if name != "sum"])
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.few(37)
@pytest.mark.parametrize("run", [RUN, CUT], ids=["whole", "cut"])
def test_it_is_what_pandas_finds(run: Run, address: str, stat: str) -> None:
    place, _, over = address.partition("&over=")
    options = f"stat={stat}{over and f'&over={over}'}"
    columns = COLUMNS.replace(",mean_ns", "") if "view=" in address else COLUMNS
    view = parse(f"{place}{'&' if '?' in place else '?'}{options}&columns={columns}")
    frame = query(run, view)
    rows = activities(run)
    for level, label in view.scope:
        rows = rows[rows[level] == label]
    levels = list(view.over) or [*STEPS, *(["layer"] if frame.level in NAMED else [])]
    assert frame.over == tuple(levels)
    counted = rows if "iteration" in dict(view.scope) else rows[~rows["cut"]]
    # In the tree truncated iterations are rows of their own.
    every = rows if not view.name and view.level == "iteration" else counted
    wanted = expected(every, frame.level, levels, stat)
    assert set(wanted.index) == {
        label for row, label in enumerate(frame.labels) if frame.row(row)["elapsed_ns"] is not None
    }
    for row, label in enumerate(frame.labels):
        for name, value in frame.row(row).items():
            if label in wanted.index:
                assert value == pytest.approx(wanted.loc[label, name], nan_ok=True)
            else:
                assert value in (None, 0)
    [scope] = expected(counted, None, levels, stat).to_dict("records")
    assert frame.total == pytest.approx({name: scope[name] for name in columns.split(",")})


def test_a_view_keeps_what_is_its_own_and_says_so(wording: Wording) -> None:
    plain, median = (query(RUN, parse(f"R?view=kernels{more}")) for more in ("", "&stat=median"))
    by_name = {column.name: column for column in median.columns}
    assert by_name["kernel_ns"].title == "median kernel time" and "instances" in by_name
    assert by_name["kernel_pct"].title == "of kernels" and by_name["p95_ns"].title == "p95"
    shares = [
        dict(zip(each.labels, each.values["kernel_pct"].numbers, strict=True))
        for each in (plain, median)
    ]
    assert shares[0] == shares[1] and plain.headline == median.headline
    wording(median.notes[0], "per gpu, iteration, layer")
    wording.among(rendered(median, "text"), "median per gpu, iteration, layer")
    assert json.loads(rendered(median, "json"))["stat"]["over"] == ["gpu", "iteration", "layer"]


@pytest.mark.parametrize("asked", ["compare", "timeline", "findings", "ranks"])
def test_a_view_without_instances_says_so(asked: str, wording: Wording) -> None:
    base = "&base=gpu=0" if asked == "compare" else ""
    plain, stat = (query(RUN, parse(f"R:gpu=1?view={asked}{base}{m}")) for m in ("", "&stat=max"))
    assert not stat.over
    wording(stat.notes[0], "no max", f"view {asked} ")
    assert [c.title for c in plain.columns] == [c.title for c in stat.columns]
    assert "stat" not in json.loads(rendered(stat, "json"))


@pytest.mark.few(14)
@pytest.mark.parametrize("run", [RUN, measured_run()], ids=["traces", "measured"])
@pytest.mark.parametrize("known", view_specs(), ids=lambda known: known.name)
def test_registered_figures_of_a_view_are_those_of_the_rows_activities(
    run: Run, known: ViewSpec
) -> None:
    """What a statistic goes over is what the view shows without one."""
    for by in known.by or ("",):
        view = View("R", name=known.name, by=by)
        try:
            found = answer(run, view)
        except UsageError:
            continue
        if not isinstance(found.rows, Partition):
            continue
        scope = Scope.of(run, found.rows.nodes, run.tree().node(()))
        for metric, values in found.columns:
            if METRICS.get(metric.name) is metric:
                computed = metric.compute(scope)
                there = values.present()
                assert (computed.present() == there).all()
                np.testing.assert_allclose(computed.numbers[there], values.numbers[there])


def test_cut_iterations_count_where_there_are_no_others() -> None:
    run = replace(RUN, partial_iterations={gpu: frozenset({10, 11, 12}) for gpu in range(3)})
    view = parse("R?stat=max&columns=elapsed_ns")
    assert query(run, view).row(0) == query(RUN, view).row(0)
    of_one = parse("R:gpu=0?stat=max&columns=elapsed_ns")
    assert query(CUT, of_one).row(0) == query(RUN, of_one).row(0)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(-1e12, 1e12), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(sorted(set(STATISTICS) - {"sum"})),
)
def test_what_is_missing_does_not_count(drawn: list[tuple[int, float, bool]], stat: str) -> None:
    drawn.sort(key=lambda each: each[0])
    node, numbers, missing = (np.array(part) for part in zip(*drawn, strict=True))
    result = reduced(stat, Values(numbers, missing), node, 5)
    frame = pd.DataFrame({"node": node, "x": numbers})[~missing]
    for number in range(5):
        known = frame.x[frame.node == number]
        value = result.at(number)
        assert (value is None) == known.empty
        if value is not None:
            if stat == "spread":
                wanted = known.max() - known.min()
            else:
                wanted = known.quantile(0.95) if stat == "p95" else getattr(known, stat)()
            assert value == pytest.approx(wanted, rel=1e-9, abs=1e-3)


def test_telemetry_and_shares() -> None:
    run = measured_run()
    names = "&columns=gfx_mhz,share_pct,start_ns"
    plain = query(run, parse(f"R:gpu=0?order=gpu,phase{names}"))
    least = query(run, parse(f"R:gpu=0?order=gpu,phase&stat=min{names}"))
    most = query(run, parse(f"R:gpu=0?order=gpu,phase&stat=max{names}"))
    for row in range(len(plain)):
        low, middle, high = (frame.row(row) for frame in (least, plain, most))
        assert low["gfx_mhz"] < middle["gfx_mhz"] < high["gfx_mhz"]
        assert low["share_pct"] == middle["share_pct"] == high["share_pct"]
        assert low["start_ns"] == middle["start_ns"]


def test_what_the_figures_are_is_said_everywhere(wording: Wording) -> None:
    frame = query(CUT, parse("R?stat=median"))
    text = rendered(frame, "text")
    wording.among(text, "median per gpu, iteration")
    assert "median time" in text
    assert "scope" in text and "total  " not in text
    wording.among(text, "steps 10, 12", "truncated", "cut=1")
    document = json.loads(rendered(frame, "json"))
    assert document["stat"] == {"name": "median", "over": ["gpu", "iteration"]}
    assert document["columns"][0]["title"] == "median time"
    assert "stat" not in json.loads(rendered(query(RUN, View("R")), "json"))
    assert "**scope**" in rendered(frame, "markdown")


def test_the_filter_sees_the_statistic_and_what_it_hides_is_time() -> None:
    frame = query(RUN, parse("R?order=operation&stat=median&filter=time>150us&base=total"))
    every = query(RUN, parse("R?order=operation&base=total"))
    times = dict(zip(every.labels, every.elapsed_ns.tolist(), strict=True))
    assert 0 < len(frame) < len(every)
    assert frame.hidden_ns == sum(times.values()) - sum(times[label] for label in frame.labels)
    assert frame.parent_ns == sum(times.values())


def test_a_difference_of_medians_needs_both() -> None:
    other = sample_run(gpus=2, iterations=2, layers=3)
    run = replace(RUN, others={"other": other})
    frame = query(run, parse("R?order=layer&stat=median&base=other"))
    rows = rows_of(frame)
    assert rows["3"]["elapsed_ns"] is not None and rows["3"]["elapsed_ns_delta"] is None
    own, base = (query(each, parse("R?order=layer&stat=median")) for each in (RUN, other))
    place, there = own.labels.index("1"), base.labels.index("1")
    difference = own.row(place)["elapsed_ns"] - base.row(there)["elapsed_ns"]
    assert rows["1"]["elapsed_ns_delta"] == pytest.approx(difference)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("R?stat=mode", "unknown statistic 'mode'; the statistics are sum, mean"),
        ("R?stat=mean&over=stream", "unknown level 'stream'"),
        ("R?over=gpu", "needs stat="),
    ],
)
def test_what_is_no_statistic_is_a_sentence(address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(address)


@pytest.mark.parametrize("view", ["", "view=kernels&", "view=comms&"])
def test_sorted_by_instances_it_has_them_once(view: str) -> None:
    frame = query(measured_run(), parse(f"R?{view}stat=mean&sort=-instances"))
    assert [column.name for column in frame.columns].count("instances") == 1


def test_the_sum_is_the_view_itself() -> None:
    assert parse("R?stat=sum&over=gpu") == View("R")
    view = as_statistic(View("R"), "p95", ("layer",))
    assert parse(render(view)) == view and up(enter(view, "0")) == view
    assert as_statistic(view, "sum") == View("R")
