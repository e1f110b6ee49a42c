"""Compare: the parts add up to the whole, at any level; what was planted comes first."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.analyses.sides import ANCESTOR
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES, Kind
from chopper_core.model.view import Baseline, View
from chopper_core.render import render_frame as rendered
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views import view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.support import rows_of, sample_run
from tests.tui.explorer import explorer
from tests.views.test_renamed_kernels import AFTER, BEFORE, RENAMED, run_with
from tests.wording import Wording

SPLITS = view_spec("compare").by
RUN = sample_run(gpus=3, iterations=2, layers=4)
OTHER = sample_run(gpus=3, iterations=2, layers=3, seed=2)
LONGER = sample_run(gpus=3, iterations=3, layers=4, seed=3)
RUN.others.update({"other": OTHER, "longer": LONGER})
EXACT = ("elapsed_ns", *STATES, "kernels")


def frame(address: str, run: Run = RUN) -> Frame:
    return query(run, parse(address))


def sums(of: Frame, name: str) -> float:
    return sum(of.row(row)[name] or 0 for row in range(len(of)))  # type: ignore[misc]


def time_of(run: Run, address: str, name: str = "elapsed_ns") -> float:
    asked = f"{address}{'&' if '?' in address else '?'}base=total&columns={name}"
    return query(run, parse(asked)).total[name]  # type: ignore[return-value]


@pytest.mark.few(12)
@pytest.mark.parametrize("by", SPLITS)
@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("", "other"),
        (":gpu=1", "gpu=0"),
        (":gpu=1/iteration=11", "gpu=0/iteration=10"),
        (":gpu=2/iteration=10/phase=backward", "other"),
        (":gpu=1/iteration=10/phase=backward/layer=2", "gpu=1/iteration=10/phase=forward/layer=2"),
    ],
)
def test_the_parts_add_up_to_the_whole(path: str, base: str, by: str) -> None:
    compared = frame(f"R{path}?view=compare&by={by}&base={base}&base=total")
    there = f"other{path}" if base == "other" else f"R:{base}"
    ours, theirs = time_of(RUN, f"R{path}"), time_of(OTHER if base == "other" else RUN, there)
    assert compared.total["elapsed_ns_delta"] == ours - theirs
    assert compared.total["elapsed_ns"] == ours and compared.total["base_elapsed_ns"] == theirs
    for name in EXACT:
        assert sums(compared, f"{name}_delta") == compared.total[f"{name}_delta"]
    for row in map(compared.row, range(len(compared))):
        change = row["elapsed_ns_delta"] or 0
        assert change == sum(row[f"{state}_delta"] or 0 for state in STATES)
        parts = (row["number_elapsed_ns"] or 0) + (row["each_elapsed_ns"] or 0)
        assert parts == pytest.approx(change)
        assert (row["elapsed_ns"] or 0) - (row["base_elapsed_ns"] or 0) == change


@pytest.mark.sweep
@given(
    st.sampled_from(SPLITS),
    st.sampled_from([(), ("0",), ("1", "10"), ("2", "11", "forward")]),
    st.sampled_from([(), ("0",), ("1",), ("1", "11"), ("0", "10", "backward", "2")]),
    st.sampled_from(["", "other", "longer"]),
    st.sampled_from(["elapsed_ns", "kernel_ns", "idle_ns", "kernels"]),
)
def test_they_do_wherever_the_two_are(
    by: str, path: tuple[str, ...], base: tuple[str, ...], other: str, of: str
) -> None:
    baseline = Baseline(other, base)
    view = View("R", path, name="compare", by=by, of=of, baseline=baseline, is_total=True)
    compared = query(RUN, view)
    assert sums(compared, f"{of}_delta") == pytest.approx(compared.total[f"{of}_delta"])
    sizes = [abs(compared.row(row)[f"{of}_delta"] or 0) for row in range(len(compared))]
    assert sizes == sorted(sizes, reverse=True)
    if any(sizes):
        shares = [compared.row(row)["of_change_pct"] for row in range(len(compared))]
        assert sum(abs(share) for share in shares) == pytest.approx(100)


def test_other_numbers_of_iterations_are_compared_step_by_step(wording: Wording) -> None:
    compared = frame("R?view=compare&by=phase&base=longer")
    assert compared.total["elapsed_ns"] == time_of(RUN, "R") / 6
    assert compared.total["base_elapsed_ns"] == time_of(LONGER, "longer") / 9
    single = frame("R:gpu=1?view=compare&by=phase&base=longer:gpu=1")
    assert single.total["elapsed_ns"] == time_of(RUN, "R:gpu=1") / 2
    assert single.total["base_elapsed_ns"] == time_of(LONGER, "longer:gpu=1") / 3
    assert not any("here" in note for note in single.notes)
    single = frame("R:gpu=1?view=compare&by=phase&base=longer:gpu=1&base=total")
    assert single.total["base_elapsed_ns"] == time_of(LONGER, "longer:gpu=1")
    wording.among(single.notes, "2 steps", "3 steps")


def test_what_the_profiler_cut_does_not_count_against_another_run() -> None:
    cut = replace(RUN, partial_iterations={0: frozenset([10])}, others={"other": OTHER})
    compared = query(cut, parse("R?view=compare&base=other"))
    assert any("step 10 is truncated" in note for note in compared.notes)
    whole = query(RUN, parse("R?order=iteration&columns=elapsed_ns&base=total"))
    kept = whole.row(whole.labels.index("11"))["elapsed_ns"]
    assert compared.total["elapsed_ns"] == kept / 3  # type: ignore[operator]
    assert compared.total["base_elapsed_ns"] == time_of(OTHER, "other") / 6
    # Within one run both sides miss the same, on every GPU, unless they are asked for.
    same = query(cut, parse("R:gpu=1?view=compare&base=gpu=2"))
    rest = time_of(RUN, "R:gpu=1") - time_of(RUN, "R:gpu=1/iteration=10")
    assert same.total["elapsed_ns"] == rest  # of one iteration
    taken_in = query(cut, parse("R:gpu=1?view=compare&base=gpu=2&cut=1"))
    assert taken_in.total["elapsed_ns"] == time_of(RUN, "R:gpu=1") / 2


def test_number_and_length_are_told_apart() -> None:
    """Twice as many kernels of one operation; those of another three times as long."""
    base = run_with({"more": ("a",), "longer": ("b",), "same": ("c",)})
    run = run_with({"more": ("a", "a"), "longer": ("b",), "same": ("c",)})
    table = run.table
    slow = table.operation == table.operations.index("longer")
    duration = table.duration_ns * (1 + 2 * slow)
    compute = table.compute_ns + (duration - table.duration_ns)
    longer = replace(table, duration_ns=duration, compute_ns=compute)
    run = replace(run, table=longer, others={"base": base})
    compared = query(run, parse("R?view=compare&of=compute_ns&base=base&base=total"))
    rows = rows_of(compared)
    assert rows["longer"]["number_compute_ns"] == 0
    assert rows["longer"]["each_compute_ns"] == rows["longer"]["compute_ns_delta"] != 0
    assert rows["more"]["number_compute_ns"] == rows["more"]["base_compute_ns"]
    assert rows["more"]["kernels_delta"] == 12
    assert rows["same"]["compute_ns_delta"] == 0
    assert compared.labels[-1] == "same"


def test_longer_copies_are_not_more_copies() -> None:
    """Copies and memsets are no kernels, and a row can have nothing else."""
    slower = RUN.table.duration_ns * (1 + 1 * (RUN.table.kind == Kind.COPY))
    added = slower - RUN.table.duration_ns
    table = replace(
        RUN.table, duration_ns=slower, exposed_copy_ns=RUN.table.exposed_copy_ns + added
    )
    run = replace(RUN, table=table, others={"base": RUN})
    compared = query(run, parse("R?view=compare&by=kernel&base=base"))
    copies = rows_of(compared)["Memcpy HtoD (Host -> Device)"]
    assert copies["kernels_delta"] == 0 and copies["elapsed_ns_delta"] > 0
    assert copies["number_elapsed_ns"] == 0
    assert copies["each_elapsed_ns"] == copies["elapsed_ns_delta"]


@pytest.mark.parametrize("of", ["elapsed_ns", "kernels", "bytes"])
@pytest.mark.parametrize("by", ["operation", "gpu"])
def test_a_run_differs_in_nothing_from_itself(of: str, by: str) -> None:
    sized = with_bytes(RUN, np.full(len(RUN.table), 8))
    same = query(
        replace(sized, others={"same": sized}), parse(f"R?view=compare&of={of}&by={by}&base=same")
    )
    changed = [
        name
        for name in same.values
        if name.endswith("_delta") or name.startswith(("each_", "number_"))
    ]
    for name in changed:
        assert not np.any(same.values[name].known(missing=0.0)) and not same.total.get(name)
    # No change has no direction.
    assert same.headline[0].startswith("0 ") and not same.charts
    what = "time charged" if of == "elapsed_ns" else of
    assert same.headline[1] == f"no {'GPU' if by == 'gpu' else by} differs in {what}"


def with_bytes(run: Run, sizes: Int64) -> Run:
    return replace(run, table=replace(run.table, bytes=sizes.astype(np.int64)))


def test_what_a_run_lacks_is_unknown_and_no_difference() -> None:
    """Of a run without sizes, nobody knows how many bytes it moved: it isn't all of them less."""
    sized = with_bytes(RUN, np.full(len(RUN.table), 8))
    for run, base, who in ((sized, OTHER, "the baseline"), (OTHER, sized, "this run")):
        beside = replace(run, others={"base": base})
        with pytest.raises(
            NothingToShow, match=f"bytes can't be compared, as {who} has none: the trace"
        ):
            query(beside, parse("R?view=compare&of=bytes&base=base"))
        tree = query(beside, parse("R?order=operation&columns=bytes,bytes_delta&base=base"))
        assert not tree.values["bytes_delta"].present().any() and tree.total["bytes_delta"] is None
        assert tree.values["bytes"].present().any() == (run is sized)


def test_what_only_some_rows_lack_is_nothing_there() -> None:
    """A run that has sizes moves nothing where it has none, so that the rows add up."""
    comm = RUN.table.kind == Kind.COMM
    sized, other = (with_bytes(RUN, np.where(which, 8, -1)) for which in (comm, ~comm))
    both = replace(sized, others={"other": other})
    for address in ("R?view=compare&of=bytes", "R?order=operation&columns=bytes_delta"):
        compared = query(both, parse(f"{address}&base=other"))
        assert sums(compared, "bytes_delta") == pytest.approx(compared.total["bytes_delta"])
    gone = query(both, parse("R:phase=data?order=phase,operation&columns=bytes_delta&base=other"))
    assert gone.total["bytes_delta"] == sums(gone, "bytes_delta") < 0


def test_notes_say_which_run_they_are_about() -> None:
    outside = RUN.table.iteration == 10
    early = replace(
        RUN, table=replace(RUN.table, iteration=np.where(outside, NO_LABEL, RUN.table.iteration))
    )
    compared = query(replace(RUN, others={"early": early}), parse("R?view=compare&base=early"))
    (note,) = (note for note in compared.notes if "outside steps" in note)
    assert "outside steps of the baseline: left out unless cut=1" in note
    own = query(replace(early, others={"other": RUN}), parse("R?view=compare&base=other"))
    assert any("outside steps: left out unless cut=1" in note for note in own.notes)


def test_it_says_which_time_of_a_kernel_is_compared(wording: Wording) -> None:
    """Kernels and Compare show two times of the same rows, each with the other one as a column."""
    changes = "kernel_ns_delta,elapsed_ns_delta"
    kernels = frame(f"R?view=kernels&base=other&columns={changes}")
    charged = frame("R?view=compare&by=kernel&base=other")
    durations = frame("R?view=compare&by=kernel&of=kernel_ns&base=other")
    assert "time charged" in charged.headline[0] and "kernel time" in durations.headline[0]
    assert "time charged" in charged.charts[0].title
    for compared in (charged, durations):
        wording.among(compared.notes, "signs")
        rows = rows_of(compared)
        for label, row in rows_of(kernels).items():
            assert rows[label]["kernel_ns_delta"] == row["kernel_ns_delta"]
            assert rows[label]["elapsed_ns_delta"] == row["elapsed_ns_delta"]
    by_layer = frame("R?view=compare&by=layer&base=other")
    assert "kernel_ns_delta" in by_layer.row(0)
    assert not any("signs" in note for note in by_layer.notes)


def test_rows_without_a_partner_and_renamed_kernels_are_said() -> None:
    run = replace(run_with(AFTER), others={"before": run_with(BEFORE)})
    compared = query(run, parse("after?view=compare&by=kernel&base=before"))
    partners = {label: compared.row(row)["partner"] for row, label in enumerate(compared.labels)}
    assert {label: name for label, name in partners.items() if name} == {
        **RENAMED,
        "x": "new",
    }
    back = replace(run_with(BEFORE), others={"after": run_with(AFTER)})
    compared = query(back, parse("before?view=compare&by=kernel&base=after"))
    assert compared.row(compared.labels.index("x"))["partner"] == "removed"


@pytest.mark.few(8)
@pytest.mark.parametrize("by", [each for each in SPLITS if each != ANCESTOR])
@pytest.mark.parametrize("base", ["other", "gpu=0/iteration=10", "other:gpu=0/iteration=10"])
def test_rows_lead_to_what_they_say(by: str, base: str) -> None:
    path = "" if base == "other" else ":gpu=1/iteration=11"
    compared = frame(f"R{path}?view=compare&by={by}&base={base}")
    document = json.loads(rendered(compared, "json"))
    for row in document["rows"]:
        view = parse(row["address"])
        where = OTHER if view.run == "other" else RUN
        assert not view.name
        inside = query(where, replace(view, columns=("elapsed_ns",)))
        if view.run == "R" and row["elapsed_ns"] is not None:
            assert inside.total["elapsed_ns"] == row["elapsed_ns"]
        if view.baseline is not None:
            assert inside.total["elapsed_ns_delta"] == row["elapsed_ns_delta"]


def test_without_a_baseline_it_says_how_to_set_one(wording: Wording) -> None:
    compared = frame("R:gpu=1/iteration=11?view=compare")
    assert "b on a row" in compared.headline[0] and "base=RUN" in compared.headline[0]
    assert compared.labels == ["other", "longer", "GPU 0", "GPU 2", "step 10"]
    # Each of the scope's own GPUs beside the one in the middle, each iteration after another.
    times = query(RUN, parse("R?columns=elapsed_ns"))
    order = sorted(range(3), key=lambda row: times.row(row)["elapsed_ns"] or 0)
    middle = order[1]
    others = [f"GPU {row} vs GPU {middle}" for row in range(3) if row != middle]
    whole = frame("R?view=compare")
    assert whole.labels == ["other", "longer", *others]
    why = f"each GPU next to GPU {middle}, whose time is in the middle"
    assert whole.headline[1:] == (why,) and compared.headline[1:] != (why,)
    last = frame("R:gpu=1?view=compare")
    assert last.labels[-1] == "step 11 vs step 10"
    (note,) = last.headline[1:]
    wording(note, "each step")
    inside = query(RUN, parse(last.addresses(len(last) - 1)))
    assert inside.view.path == ("1", "11")
    assert inside.total["elapsed_ns_delta"] == last.row(len(last) - 1)["scope_ns_delta"]
    for row, label in enumerate(compared.labels):
        view = parse(compared.addresses(row))
        assert view.name == "compare" and view.baseline is not None
        delta = compared.row(row)["scope_ns_delta"]
        there = query(RUN, view)
        if label != "longer":
            assert delta == there.total["elapsed_ns_delta"]


def test_one_gpu_and_step_compare_layers_and_one_layer_has_nothing_like_it() -> None:
    one = sample_run(gpus=1, iterations=1, layers=4)
    compared = frame("S?view=compare", one)
    assert len(compared) == 3 and all(label.startswith("layer ") for label in compared.labels)
    for row in range(len(compared)):
        there = query(one, parse(compared.addresses(row)))
        assert compared.row(row)["scope_ns_delta"] == there.total["elapsed_ns_delta"]
    with pytest.raises(NothingToShow, match="nothing in the run is like it"):
        frame("S?view=compare", sample_run(gpus=1, iterations=1, layers=1))


def test_only_sums_can_be_taken_apart() -> None:
    with pytest.raises(UsageError, match="busy_pct does not add up over parts"):
        frame("R?view=compare&base=other&of=busy_pct")


def test_two_runs_of_the_demo(run: Run, wording: Wording) -> None:
    """FSDP1 copies with `_post_backward_hook` what FSDP2 does by operations of its own: the same
    work, of which each was removed or new."""
    beside = replace(run, others={"fsdp1": demo_run("fsdp1")})
    compared = query(beside, parse("fsdp2?view=compare&base=fsdp1"))
    partners = {label: compared.row(row)["partner"] for row, label in enumerate(compared.labels)}
    hook = "FullyShardedDataParallel._post_backward_hook"
    assert partners["FSDP::post_backward_reduce"] == hook
    assert partners["FSDP::all_gather_copy_out"] == "split_with_sizes"
    assert compared.total["elapsed_ns_delta"] == sums(compared, "elapsed_ns_delta")
    wording.among(compared.notes, "outside steps")
    clock = compared.total["gfx_mhz_delta"]
    assert clock is not None and 60 < clock < 100


@pytest.mark.sweep
async def test_keys_from_a_scope_to_the_comparison_and_back() -> None:
    async with explorer((120, 40), view=View("sample.json", ("1",))) as at:
        await at.press("8")
        assert at.frame.level == "baseline" and "b on a row" in at.text()
        assert at.label == "GPU 0"
        await at.press("enter")
        assert at.frame.view.baseline == Baseline("", ("0",)) and at.frame.level == "operation"
        assert at.frame.sort == "-elapsed_ns_delta"
        label = at.label
        await at.press("enter")
        assert at.frame.view.name == "" and at.path == ("1", label)
        assert at.frame.view.baseline == Baseline("", ("0", label))
        await at.press("escape")
        assert at.frame.view.name == "compare" and at.label == label
        await at.press("escape")
        assert at.frame.level == "baseline"
        await at.press("enter", "p", "down", "enter")
        assert at.frame.level == "kernel" and at.frame.view.baseline is not None


async def test_the_figure_is_chosen(wording: Wording) -> None:
    view = View("sample.json", ("1",), name="compare", baseline=Baseline("", ("0",)))
    async with explorer((120, 40), view=view) as at:
        await at.command("of kernels")
        assert at.frame.columns[0].name == "kernels"
        await at.command("of busy_pct")
        wording(at.status, "add up")
        assert at.frame.columns[0].name == "kernels"
