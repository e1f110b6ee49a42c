"""A view beside its baseline: against plain dictionaries, and the differences add up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, STATES
from chopper_core.model.view import Baseline, View, enter, up
from chopper_core.render import render_frame as rendered
from chopper_core.util.errors import NoSuchNode, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.support import rows_of, sample_run
from tests.wording import Wording

OTHER = sample_run(gpus=2, iterations=3, layers=3)
RUN = replace(sample_run(gpus=3, iterations=2, layers=4), others={"other": OTHER})
LABELS = st.lists(st.text(min_size=1, max_size=4), max_size=6).map(tuple)


def rows(frame: Frame) -> dict[str, dict[str, int | float | None]]:
    return rows_of(frame)


def frame(address: str, run: Run = RUN) -> Frame:
    return query(run, parse(address))


@pytest.mark.parametrize("path", ["", ":gpu=1", ":gpu=1/iteration=11/phase=backward"])
@pytest.mark.parametrize("order", ["", "operation,gpu", "phase,layer"])
def test_rows_are_those_of_both_and_differ_as_they_do(path: str, order: str) -> None:
    if order and path:
        return
    option = f"order={order}&" if order else ""
    names = ("elapsed_ns", "busy_pct", "kernels")
    compared = frame(
        f"R{path}?{option}base=other&columns="
        + ",".join(f"{n},{n}_delta,{n}_delta_pct" for n in names)
    )
    plain = f"R{path}?{option}columns={','.join(names)}"
    ours, base = rows(frame(plain)), rows(frame(plain, OTHER))
    assert set(compared.labels) == {*ours, *base}
    for label, row in rows(compared).items():
        for name in names:
            left, right = (side.get(label, {}).get(name) for side in (ours, base))
            if name == "busy_pct":
                wanted = None if left is None or right is None else left - right
            else:
                # A row that a side lacks took no time there.
                left, right = left or 0, right or 0
                wanted = left - right
            assert row[name] == left
            assert row[f"{name}_delta"] == (wanted if wanted is None else pytest.approx(wanted))
            if left is None or not right:
                assert row[f"{name}_delta_pct"] is None
            else:
                assert row[f"{name}_delta_pct"] == pytest.approx(100 * (left - right) / right)


@given(
    st.sampled_from([(), ("0",), ("0", "10"), ("1", "11", "backward")]),
    st.sampled_from([(), ("1",), ("2", "11"), ("0", "10", "forward")]),
    st.sampled_from(["", "other"]),
)
def test_differences_add_up(path: tuple[str, ...], base: tuple[str, ...], other: str) -> None:
    columns = tuple(part for name in STATES for part in (name, f"{name}_delta"))
    view = View("R", path, columns=columns, baseline=Baseline(other, base), is_total=True)
    compared = query(RUN, view)
    for name in STATES:
        total = sum(row[f"{name}_delta"] or 0 for row in rows(compared).values())
        if view.row_baseline is not None:
            # Each row is compared with one of them: that adds up to nothing.
            row, other_rows = view.row_baseline, rows(compared)
            assert compared.total[f"{name}_delta"] is None and other_rows[row][f"{name}_delta"] == 0
            continue
        assert total == compared.total[f"{name}_delta"]


def test_the_largest_change_comes_first_in_either_direction() -> None:
    compared = frame("R:gpu=1/iteration=11?order=gpu,iteration,operation&base=gpu=0/iteration=11")
    changes = [abs(row["elapsed_ns_delta"] or 0) for row in rows(compared).values()]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0
    assert compared.sort == "-elapsed_ns_delta"


def test_rows_without_a_partner_lead_to_where_they_are(wording: Wording) -> None:
    compared = frame("R?base=other&order=layer")
    document = json.loads(rendered(compared, "json"))
    wording.among(rendered(compared, "text"), "1 row is new")
    for row in document["rows"]:
        run = OTHER if row["address"].startswith("other") else RUN
        assert len(query(run, parse(row["address"].partition("&base")[0])))


def test_a_node_that_the_baseline_lacks_has_all_rows_alone(wording: Wording) -> None:
    address = (
        "R:gpu=2?base=other&columns=elapsed_ns,elapsed_ns_delta,elapsed_ns_delta_pct,busy_pct_delta"
    )
    alone, plain = frame(address), frame("R:gpu=2?columns=elapsed_ns")
    assert set(alone.labels) == set(plain.labels)
    for label, row in rows(alone).items():
        time = rows(plain)[label]["elapsed_ns"]
        assert list(row.values()) == [time, time, None, None]
    assert alone.total["elapsed_ns_delta"] == plain.total["elapsed_ns"]
    assert alone.total["busy_pct_delta"] is None
    wording(alone.notes[0], "gpu 2", "0, 1")
    for view in ("compare", "determinism"):
        with pytest.raises(NoSuchNode, match="the baseline lacks this node: no gpu 2"):
            frame(f"R:gpu=2?view={view}&base=other")
    with pytest.raises(NoSuchNode, match=r"^no gpu 9"):
        frame("R:gpu=9?base=other")


def test_other_numbers_of_iterations_are_said(wording: Wording) -> None:
    notes = " ".join(frame("R:gpu=1?base=other").notes)
    assert "here" not in notes
    notes = " ".join(frame("R:gpu=1?base=other&base=total").notes)
    wording(notes, "2 steps here", "3 steps in the baseline")
    assert "steps here" not in " ".join(frame("R:gpu=1?base=gpu=0&base=total").notes)


def test_a_baseline_that_is_not_open_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="nowhere is not open"):
        frame("R?base=nowhere")


BASELINES = st.none() | st.builds(
    Baseline, st.sampled_from(["", "other", "runs/a b"]), st.none() | LABELS
).filter(lambda base: base.run != "" or base.path is not None)


@given(LABELS, BASELINES)
def test_addresses_with_a_baseline_come_back(
    path: tuple[str, ...], baseline: Baseline | None
) -> None:
    view = View("R", path[: len(LEVELS)], baseline=baseline)
    assert parse(render(view)) == view


@given(LABELS, LABELS, st.text(min_size=1))
def test_the_baseline_goes_along(path: tuple[str, ...], base: tuple[str, ...], label: str) -> None:
    view = View("R", path[:5], baseline=Baseline("other", base))
    inside = enter(view, label)
    assert inside.baseline == Baseline("other", (*base, label))
    assert up(inside) == view


def test_the_total_of_one_gpu_and_several_is_a_mean() -> None:
    """The rows are those of both sides, whose difference is that of their means."""
    one = replace(sample_run(gpus=1, iterations=1), others={"other": OTHER})
    for run, base in ((one, "other"), (replace(OTHER, others={"one": one}), "one")):
        compared = query(run, parse(f"R?columns=elapsed_ns,elapsed_ns_delta&base={base}"))
        assert len(compared) == 2 and compared.total_title == "mean"
        ours, theirs = (
            query(each, parse("R?columns=elapsed_ns")) for each in (run, run.others[base])
        )
        change = ours.total["elapsed_ns"] - theirs.total["elapsed_ns"]  # type: ignore[operator]
        assert compared.total["elapsed_ns_delta"] == pytest.approx(change)
