"""Several windows of the profiler: one run on one time axis."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.step_times import step_times
from chopper_core.ingest.discovery import holds_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.view import ALL_TIME
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.live import newest_window
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import signal_chart
from tests.training import Rank, step
from tests.wording import Wording

BASE_NS = 1_790_000_000_000_000_000
STEP_GAP_US = 5_000_000


def ranks_of(world: int, first: int, steps: int, at_us: int = 0) -> list[Rank]:
    """Ranks with so many steps from a first one on, from a time on."""
    ranks = [Rank(number, world) for number in range(world)]
    for each in ranks:
        each.now = each.free = at_us
        each.members["baseTimeNanoseconds"] = BASE_NS
    for number in range(first, first + steps):
        begins = [each.now for each in ranks]
        step(ranks, number, [64 + 16 * each.rank for each in ranks], layers=2)
        for each, begin in zip(ranks, begins, strict=True):
            each.sync()
            each.note(f"ProfilerStep#{number}", begin, each.now)
    return ranks


def written(folder: Path, rank: Rank, time_ns: int, suffix: str = "") -> Path:
    """A trace under the name that torch's TensorBoard handler gives it."""
    path = folder / f"node1_{100 + rank.rank}.{BASE_NS + time_ns}.pt.trace.json{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    document = {**rank.members, "traceEvents": rank.events}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def both(tmp_path: Path) -> list[Run]:
    """The run of two windows, and each window as a run of its own."""
    runs = []
    for window, (first, at_us) in enumerate([(3, 0), (20, STEP_GAP_US)]):
        for rank in ranks_of(2, first, 3, at_us):
            written(tmp_path / "run", rank, 1000 + 100 * window + rank.rank)
            written(tmp_path / f"window{window}", rank, 1000 + rank.rank)
        runs.append(open_run(str(tmp_path / f"window{window}"), jobs=1))
    assert not holds_runs(str(tmp_path / "run"))
    return [open_run(str(tmp_path / "run"), jobs=1), *runs]


def rows_of(run: Run, address: str) -> dict[str, dict[str, object]]:
    frame = query(run, parse(address))
    return {label: frame.row(at) for at, label in enumerate(frame.labels)}


def test_windows_of_a_rank_are_one_rank(both: list[Run]) -> None:
    whole, *windows = both
    assert [gpu.index for gpu in whole.gpus] == [0, 1] and len(whole.sources) == 4
    assert not whole.failed
    for gpu in "01":
        address = f"x:gpu={gpu}?cut=1&columns=elapsed_ns,compute_ns,idle_ns,exposed_comm_ns,kernels"
        parts = [rows_of(run, address) for run in windows]
        steps = rows_of(whole, address)
        outside = [part.pop("none", {}) for part in parts]
        names = {name for part in outside for name in part}
        both_outside = {name: sum(part.get(name, 0) for part in outside) for name in names}
        assert steps.pop("none", {}) == both_outside
        assert steps == parts[0] | parts[1]
        # A kernel is in the iteration and the operation that its own window puts it in.
        deep = f"x:gpu={gpu}/iteration=21/phase=forward/layer=1?columns=elapsed_ns,kernels"
        assert rows_of(whole, deep) == rows_of(windows[1], deep)


def test_time_between_windows_is_charged_to_nothing(both: list[Run]) -> None:
    whole, *windows = both
    spans = [run.end_ns - run.origin_ns for run in windows]
    table = whole.table
    states = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    for gpu in (0, 1):
        own = table.gpu == gpu
        charged = sum(int(table.column(state)[own].sum()) for state in states)
        spent = 0
        for run in windows:
            mine, steps = run.table.gpu == gpu, run.side(HostSteps).spans(gpu)
            begins = np.append(run.table.start_ns[mine], steps.start_ns)
            ends = np.append(run.table.start_ns[mine] + run.table.duration_ns[mine], steps.end_ns)
            spent += int(ends.max() - begins.min())
        assert charged == spent
    assert whole.end_ns - whole.origin_ns > sum(spans) + 1_000_000_000
    for name in ("busy_pct", "compute_pct", "comm_pct"):
        curve = whole.signal(name).curves[0]
        known = [run.signal(name).curves[0] for run in windows]
        bounds = [np.array([run.origin_ns, run.end_ns - 1000]) for run in windows]
        for each, own, other in zip(windows, bounds, known, strict=True):
            assert curve.means(own) == pytest.approx(other.means(own), rel=1e-9), each.name
        # In between nothing is known, and the whole is the mean over what is.
        between = np.array([windows[0].end_ns + 1_000_000, windows[1].origin_ns - 1_000_000])
        assert np.isnan(curve.means(between)).all()
        mine = [np.array([each.edges_ns[0], each.edges_ns[-1]]) for each in known]
        lengths = [float(np.diff(each)[0]) for each in mine]
        shares = [float(one.means(at)[0]) for one, at in zip(known, mine, strict=True)]
        everywhere = np.array([mine[0][0], mine[1][1]])
        assert curve.means(everywhere)[0] == pytest.approx(np.average(shares, weights=lengths))


def test_steps_are_those_of_all_windows(both: list[Run], tmp_path: Path) -> None:
    whole, *windows = both
    whole_steps = step_times(whole, parse("x"))
    each = [step_times(run, parse("x")) for run in windows]
    counted = {
        number: time
        for run in each
        for number, time in zip(run.iterations, run.each_ns.tolist(), strict=True)
    }
    assert dict(zip(whole_steps.iterations, whole_steps.each_ns.tolist(), strict=True)) == counted
    assert whole.cut_iterations == windows[0].cut_iterations | windows[1].cut_iterations
    write_store(whole, tmp_path / "kept.chopper")
    stored = read_store(tmp_path / "kept.chopper")
    assert step_times(stored, parse("x")).iterations == whole_steps.iterations
    assert stored.sources == whole.sources
    lanes = query(stored, parse("x?view=timeline"))
    assert list(lanes.labels) == list(query(whole, parse("x?view=timeline")).labels)


def test_repeated_steps_are_no_windows_of_one_run(tmp_path: Path, wording: Wording) -> None:
    for at, at_us in enumerate((0, STEP_GAP_US)):
        for rank in ranks_of(2, 3, 2, at_us):
            written(tmp_path, rank, 1000 + 100 * at + rank.rank)
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.sources) == 2 and len(run.failed) == 2
    for _, why in run.failed:
        wording(why, "steps")


def test_folders_of_windows_below_a_manifest_are_one_run(tmp_path: Path) -> None:
    for first, at_us in ((3, 0), (20, STEP_GAP_US)):
        for rank in ranks_of(2, first, 2, at_us):
            folder = tmp_path / "run" / f"step{first}"
            folder.mkdir(parents=True, exist_ok=True)
            rank.write(folder / f"rank{rank.rank}.json")
    assert holds_runs(str(tmp_path / "run"))
    (tmp_path / "run" / "run.json").write_text('{"schema": "chopper.record/1"}')
    assert not holds_runs(str(tmp_path / "run"))
    run = open_run(str(tmp_path / "run"), jobs=1)
    assert [source.rank for source in run.sources] == [0, 0, 1, 1]
    assert {int(code) for code in run.table.iteration} >= {3, 4, 20, 21}


def test_every_view_answers_for_windows_far_from_each_other(tmp_path: Path) -> None:
    """Between them more time passes than 32 bits of ns hold."""
    for first, at_us in ((3, 0), (20, 3 * STEP_GAP_US)):
        for rank in ranks_of(2, first, 2, at_us):
            written(tmp_path, rank, 1000 * first + rank.rank)
    run = open_run(str(tmp_path), jobs=1)
    for name in ("findings", "overview", "live", "timeline", "ranks", "graph", "launch"):
        assert len(query(run, parse(f"x?view={name}")).labels), name


def test_curves_of_live_are_those_of_the_newest_window(tmp_path: Path) -> None:
    """One 70 hours before it, or just before it, belongs to them only if no gap is between."""
    for gap_us, are_both in ((70 * 3600 * 10**6, False), (10**5, True)):
        folder = tmp_path / str(gap_us)
        for window, at_us in enumerate((0, gap_us)):
            for each in ranks_of(2, 3 + 10 * window, 2, at_us):
                written(folder, each, 1000 * (window + 1) + each.rank)
        run = open_run(str(folder), jobs=1)
        start, ends = run.table.start_ns, run.table.start_ns + run.table.duration_ns
        first_ns = int(start[run.table.iteration >= 13].min())
        window = newest_window(run)
        if are_both:
            assert window == ALL_TIME
            continue
        assert window.from_ns is not None and window.to_ns is not None
        assert first_ns - 10**6 <= window.from_ns + run.origin_ns <= first_ns
        chart = signal_chart(run, replace(parse(f"{run.name}:"), window=window), 50)
        assert window.to_ns + run.origin_ns >= int(ends.max())
        assert np.isfinite(chart.values).mean() > 0.8
