"""A run that is followed: files come as the real tools write them, and figures stay true."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest import follow
from chopper_core.ingest.follow import Follower, has_end
from chopper_core.ingest.open import open_run
from chopper_core.ingest.replay import replay
from chopper_core.ingest.tail import Tail
from chopper_core.model.address import parse
from chopper_core.model.inputs import Gpu
from chopper_core.model.recent import RecentSamples, ThinnedSamples
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.ingest.test_windows import BASE_NS, STEP_GAP_US, ranks_of, written

HEADING = "timestamp,gpu,power_usage,hotspot_temperature,gfx_clock,gfx"
START_S = BASE_NS // 10**9
GPUS = (Gpu(0, 0, 0, "MI300X"), Gpu(1, 1, 1, "MI300X"))


def row(second: int, gpu: int) -> str:
    return (
        f"{START_S + second},{gpu},{600 + second % 90 + gpu},{80 + gpu},{1700 - second % 50},99\n"
    )


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(follow, "_REST_S", -1.0)
    monkeypatch.setattr(follow, "_SHARE", 0)
    monkeypatch.setattr(follow, "_PAUSE", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def follower(folder: Path) -> Iterator[Follower]:
    made = Follower(str(folder), jobs=1)
    yield made
    made.close()


def caught_up(follower: Follower) -> Run:
    """The run once nothing is left to read."""
    idle = 0
    while idle < 3:
        follower.tail()
        idle = 0 if follower.poll() is not None or follower._reading is not None else idle + 1
        time.sleep(0.002)
    assert follower.run is not None and not follower.problem
    return follower.run


def figures(run: Run, address: str) -> object:
    frame = query(run, parse(address))
    rows = [frame.row(at) for at in range(len(frame))]
    return list(frame.labels), rows, dict(frame.total), frame.headline


def is_that_of_the_finished_directory(run: Run, folder: Path) -> bool:
    whole = open_run(str(folder), jobs=1)
    views = ("", "gpu=0?cut=1", "?view=throughput&cut=1", "?view=kernels", "?view=power")
    for view in views:
        address = f"x:{view}"
        assert figures(run, address) == figures(whole, address), view
    return [source.path for source in run.sources] == [source.path for source in whole.sources]


def test_files_come_as_tools_write_them(folder: Path, follower: Follower) -> None:
    log = folder / "telemetry.csv"
    log.write_text(HEADING + "\n" + "".join(row(at, gpu) for at in range(4) for gpu in (0, 1)))
    first, late = ranks_of(2, 3, 2)
    written(folder, first, 1000)
    run = follower.open()
    assert [gpu.rank for gpu in run.gpus][:1] == [0]
    clock = follower.recent.series["gfx_mhz", 0]
    assert len(clock) == 4

    # A line in two parts, then a rank that comes late, under a temporary name first.
    with log.open("a") as file:
        file.write(row(4, 0)[:9])
        file.flush()
        follower.tail()
        assert len(clock) == 4
        file.write(row(4, 0)[9:] + row(4, 1))
    part = written(folder, late, 1001, ".part")
    run = caught_up(follower)
    assert len(clock) == 5 and len(run.sources) == 1
    part.rename(str(part).removesuffix(".part"))
    run = caught_up(follower)
    assert len(run.sources) == 2 and is_that_of_the_finished_directory(run, folder)

    # A second window: its gzip is half there, and is read once it is whole.
    again, other = ranks_of(2, 20, 2, STEP_GAP_US)
    packed = gzip.compress(written(folder.parent, again, 2000).read_bytes())
    half = folder / f"node1_100.{BASE_NS + 2000}.pt.trace.json.gz"
    half.write_bytes(packed[: len(packed) // 2])
    written(folder, other, 2001)
    run = caught_up(follower)
    assert len(run.sources) == 3 and any("still being written" in why for _, why in run.failed)
    half.write_bytes(packed)
    run = caught_up(follower)
    assert len(run.sources) == 4 and is_that_of_the_finished_directory(run, folder)

    # A file that is gone.
    half.unlink()
    run = caught_up(follower)
    assert len(run.sources) == 3 and is_that_of_the_finished_directory(run, folder)


def test_a_trace_whose_writer_is_gone_is_read_as_far_as_it_got(
    folder: Path, follower: Follower
) -> None:
    one, two = ranks_of(2, 3, 2)
    written(folder, one, 1000)
    text = written(folder.parent, two, 1001).read_text()
    cut = folder / f"node1_101.{BASE_NS + 1001}.pt.trace.json"
    cut.write_text(text[: int(len(text) * 0.9)])
    assert not has_end(cut)
    assert len(follower.open().sources) == 1
    past = time.time() - follow.UNFINISHED_S - 1
    os.utime(cut, (past, past))
    run = caught_up(follower)
    assert len(run.sources) == 2 and run.sources[1].losses


def test_unchanged_ranks_are_not_read_again(
    folder: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chopper_core.ingest import batches

    read: list[str] = []
    plain = batches.read_rank

    def counted(path: Path, *more: object) -> Run:
        read.append(path.name)
        return plain(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "read_rank", counted)
    for window, at_us in enumerate((0, STEP_GAP_US)):
        for rank in ranks_of(2, 3 + 10 * window, 2, at_us):
            written(folder, rank, 1000 * (window + 1) + rank.rank)
        if not window:
            follower.open()
    assert len(read) == 2
    caught_up(follower)
    assert sorted(read) == sorted(path.name for path in folder.iterdir())


def tailed(tail: Tail, recent: RecentSamples) -> dict[int, list[float]]:
    tail.read(recent, GPUS)
    found = {gpu: each for (name, gpu), each in recent.series.items() if name == "power_w"}
    return {gpu: each.figures[1].tolist() for gpu, each in found.items()}


def test_telemetry_is_tailed_over_rotation_truncation_and_a_clock_step(tmp_path: Path) -> None:
    log, recent = tmp_path / "power.csv", RecentSamples()
    tail = Tail(log)
    assert not tail.read(recent, GPUS)  # before it exists
    log.write_text("")
    assert not tail.read(recent, GPUS)
    log.write_text(HEADING[:10])
    assert not tail.read(recent, GPUS)
    log.write_text(HEADING + "\n" + row(0, 0) + row(0, 1))
    assert tailed(tail, recent) == {0: [600.0], 1: [601.0]}
    # Rotated: another file under the name, with columns in another order.
    log.rename(tmp_path / "power.csv.1")
    other = "timestamp,gpu,gfx,power_usage\n"
    log.write_text(f"{other}{START_S + 1},0,50,700\n")
    assert tailed(tail, recent) == {0: [600.0, 700.0], 1: [601.0]}
    # Truncated, and shorter than before.
    log.write_text(f"{other}{START_S + 2},1,50,7\n")
    assert tailed(tail, recent)[1] == [601.0, 7.0]
    # The clock is set back by five seconds; the tool starts again, with other columns.
    with log.open("a") as file:
        file.write(f"timestamp,gpu,power_usage\n{START_S - 3},1,500\n{START_S + 3},1,N/A\n")
    assert tailed(tail, recent)[1] == [500.0, 601.0, 7.0]
    with log.open("a") as file:
        file.write(f"{START_S + 4},1,501\n")
    assert tailed(tail, recent)[1] == [500.0, 601.0, 7.0, 501.0]
    assert not tail.read(recent, GPUS)


def test_a_day_of_samples_is_thinned_and_its_figures_stay() -> None:
    values = np.random.default_rng(3).normal(600, 40, 86_400)
    times = START_S * 10**9 + np.arange(86_400, dtype=np.int64) * 10**9
    thinned = ThinnedSamples()
    for at in range(0, len(values), 600):
        thinned.add(times[at : at + 600], values[at : at + 600])
    low, mean, high, count = thinned.figures
    assert len(thinned) <= 2048 and count.sum() == len(values)
    assert (low.min(), high.max()) == (values.min(), values.max())
    assert float(mean @ count) == pytest.approx(values.sum())
    # The latest are all there; a span is the mean of its own samples.
    assert mean[-600:].tolist() == values[-600:].tolist()
    begin, end = (np.searchsorted(times, each[3]) for each in (thinned.begins_ns, thinned.ends_ns))
    assert mean[3] == pytest.approx(values[begin : end + 1].mean())
    assert thinned.begins_ns[0] == times[0] and thinned.ends_ns[-1] == times[-1]


def test_the_finer_of_two_files_counts() -> None:
    recent, at = RecentSamples(), np.array([10**9, 2 * 10**9], np.int64)
    about = "power", Unit.WATTS
    recent.add("power_w", about, 0, (at, np.array([1.0, 2.0])), (10**9, "a.csv"))
    recent.add("power_w", about, 0, (at, np.array([3.0, 4.0])), (10**6, "b.csv"))
    recent.add("power_w", about, 0, (at, np.array([5.0, 6.0])), (10**9, "a.csv"))
    assert recent.series["power_w", 0].figures[1].tolist() == [3.0, 4.0]
    recent.newest_s = 100.0
    assert (recent.age(102.0), recent.age(112.4)) == ("live", "last data 12 s ago")


def test_a_run_without_steps_can_not_be_replayed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{folder} has no complete step, or no telemetry/"):
        replay(folder, tmp_path / "into")
    assert not (tmp_path / "into").exists()
