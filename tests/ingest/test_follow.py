"""A run that is followed: files come as the real tools write them, and figures stay true."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.ingest import discovery, follow
from chopper_core.ingest import tail as tail_of
from chopper_core.ingest.alarms import AlarmWatch, parse_alarm
from chopper_core.ingest.follow import Follower, has_end
from chopper_core.ingest.follow_lines import follow_lines
from chopper_core.ingest.open import open_run
from chopper_core.ingest.replay import replay_run
from chopper_core.ingest.tail import Tail
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards
from chopper_core.model.inputs import Gpu
from chopper_core.model.recent import RecentSamples, ThinnedSamples
from chopper_core.model.run import Run
from chopper_core.model.table import empty_table
from chopper_core.model.units import Unit
from chopper_core.record import manifest
from chopper_core.store.format import paths_of
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.ingest.test_windows import BASE_NS, STEP_GAP_US, ranks_of, written
from tests.programs.fuzz.seeds import SEEDS
from tests.sources.telemetry.telemetry_texts import DCGM_DMON
from tests.wording import Wording

HEADING = "timestamp,gpu,power_usage,hotspot_temperature,gfx_clock,gfx"
START_S = BASE_NS // 10**9
RUN = Run("run", empty_table(), (Gpu(0, 0, 0, "MI300X"), Gpu(1, 1, 1, "MI300X")), ())


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


def test_files_come_as_tools_write_them(folder: Path, follower: Follower, wording: Wording) -> None:
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
    wording.among(query(run, parse("R?view=kernels")).notes, "1 file being written")
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


def test_of_two_runs_in_a_directory_the_newest_is_followed(
    folder: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A job that was started again beside its older files: the same steps, by other processes."""
    monkeypatch.setattr(discovery, "_MAX_LOOSE", 3)  # However many ranks it has.
    for rank in ranks_of(2, 3, 2):
        written(folder, rank, 1000 + rank.rank)
    before = {source.path for source in follower.open().sources}
    assert not follower.beside
    for rank in ranks_of(2, 3, 2, 30 * STEP_GAP_US):
        path = written(folder.parent, rank, 5000 + rank.rank)
        path.rename(folder / path.name.replace("node1_10", "node1_20"))
    run = caught_up(follower)
    now = {source.path for source in run.sources}
    assert len(now) == 2 and not now & before
    wording(follower.beside, "2 runs")
    assert run.name == str(folder)
    # What the other one is: two processes, whose newest step is 4; it was written just now.
    (other,) = follower.recent.others
    assert (other.ranks, other.step) == (2, 4) and other.name.startswith("node1_10")
    wording(other.text(other.newest_s + 7300), "2 ranks", "step 4", "2 h")
    (card,) = (
        card
        for chart in query(run, parse("R?view=live")).charts
        if isinstance(chart, Cards)
        for card in chart.cards
        if card.figures == ("other run",)
    )
    assert card.text == other.text(time.time())
    many = [f"{folder}/rank{number}.json" for number in range(200)]
    assert [str(path) for path in paths_of(",".join(many))] == many


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
    tail.read(recent, RUN)
    found = {gpu: each for (name, gpu), each in recent.series.items() if name == "power_w"}
    return {gpu: each.figures[1].tolist() for gpu, each in found.items()}


def test_a_look_ends_while_lines_come_faster_than_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, recent, looks = tmp_path / "power.csv", RecentSamples(), 0
    log.write_text(HEADING + "\n" + row(0, 0) + row(0, 1))
    tail, read = Tail(log), Tail._read_lines

    def slow(self: Tail, lines: list[bytes]) -> object:
        nonlocal looks
        looks += 1
        with log.open("a") as file:
            file.write(row(looks, 0) + row(looks, 1))
        return read(self, lines)

    monkeypatch.setattr(Tail, "_read_lines", slow)
    assert tailed(tail, recent)[1] == [601.0] and looks == 1
    assert len(tailed(tail, recent)[1]) == 2 and looks == 2


def test_telemetry_is_tailed_over_rotation_truncation_and_a_clock_step(tmp_path: Path) -> None:
    log, recent = tmp_path / "power.csv", RecentSamples()
    tail = Tail(log)
    assert not tail.read(recent, RUN)  # before it exists
    log.write_text("")
    assert not tail.read(recent, RUN)
    log.write_text(HEADING[:10])
    assert not tail.read(recent, RUN)
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
    # Written again up to the same size, between two looks.
    log.write_text(f"{other}{START_S + 2},1,50,8\n")
    assert tailed(tail, recent)[1] == [601.0, 8.0]
    log.write_text(f"{other}{START_S + 2},1,50,7\n")
    # The clock is set back by five seconds; the tool starts again, with other columns.
    with log.open("a") as file:
        file.write(f"timestamp,gpu,power_usage\n{START_S - 3},1,500\n{START_S + 3},1,N/A\n")
    assert tailed(tail, recent)[1] == [500.0, 601.0, 7.0]
    with log.open("a") as file:
        file.write(f"{START_S + 4},1,501\n")
    assert tailed(tail, recent)[1] == [500.0, 601.0, 7.0, 501.0]
    assert not tail.read(recent, RUN)


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
        replay_run(folder, tmp_path / "into")
    assert not (tmp_path / "into").exists()


LOGS = [
    name
    for name in SEEDS
    if re.search(r"smi (?!.*dmon)|nvidia-smi|dcgm[ -][ce]|zeus|own|charllm$", name)
]


@pytest.mark.few(26)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(("step", "mark"), [(0, b""), (37, b""), (34, b""), (37, b"\xef\xbb\xbf")])
def test_every_format_of_telemetry_is_tailed(
    name: str, step: int, mark: bytes, folder: Path
) -> None:
    """In pieces of whole lines or of any bytes: the samples are those of the file as a whole."""
    SEEDS[name](folder)
    run = open_run(str(folder), jobs=1)
    for path in {Path(each.path) for each in run.telemetry}:
        whole, part, data = RecentSamples(), RecentSamples(), path.read_bytes()
        Tail(path).read(whole, run)
        data = data if data.startswith(b"PAR1") else mark + data
        tail, rounds = Tail(path), data.splitlines(keepends=True)
        path.write_bytes(b"")
        pieces = [data[at : at + step] for at in range(0, len(data), step)] if step else rounds
        with path.open("ab", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                tail.read(part, run)
        assert whole.series and whole.series.keys() == part.series.keys()
        for key, series in whole.series.items():
            values = part.series[key].figures[1].tolist()
            # The first share under a limiter may be one that the tool gives itself.
            first = len(values) - len(series) if key[0] == "throttle_pct" else 0
            assert values[first:] == series.figures[1].tolist()
            gaps = np.diff(part.series[key].begins_ns[first:])
            assert gaps.tolist() == np.diff(series.begins_ns).tolist()


def test_samples_go_on_in_another_file_and_after_a_clock_was_set_back(tmp_path: Path) -> None:
    recent, old, new = RecentSamples(), tmp_path / "a.csv", tmp_path / "b.csv"
    old.write_text(f"{HEADING}\n" + "".join(row(at, 0) for at in range(30)))
    first, second = Tail(old), Tail(new)
    first.read(recent, RUN)
    series = recent.series["power_w", 0]
    # Another file of the same samples adds nothing; one that goes on where it ends does.
    new.write_text(old.read_text() + row(30, 0))
    second.read(recent, RUN)
    assert len(recent.series["power_w", 0]) == 30
    with new.open("a") as file:
        file.write("".join(row(at, 0) for at in range(40, 43)))
    second.read(recent, RUN)
    assert recent.series["power_w", 0] is series and len(series) == 33
    # The whole file is replaced by a longer copy, as rsync does it.
    copy = tmp_path / "copy"
    copy.write_text(new.read_text() + row(43, 0))
    copy.replace(new)
    second.read(recent, RUN)
    assert len(series) == 30 + 4 and series.figures[1][-1] == 643.0
    # The clock is set back by an hour: what comes now is the newest all the same.
    with new.open("a") as file:
        file.write(row(-3600, 0) + row(-3599, 0))
    second.read(recent, RUN)
    with new.open("a") as file:
        file.write(row(-3598, 0))
    second.read(recent, RUN)
    assert series.figures[1][-4:].tolist() == [643.0, 600.0, 601.0, 602.0]
    assert np.diff(series.begins_ns[-3:]).tolist() == [10**9, 10**9]


def test_lines_without_times_are_stamped_as_they_come(tmp_path: Path) -> None:
    log, recent, heading = tmp_path / "dcgm.txt", RecentSamples(), DCGM_DMON.splitlines()[:2]
    log.write_text("\n".join(heading) + "\n")
    tail, line = Tail(log), "GPU 0     {}.0  41  1980  0.930  1024  1000000  1\n"
    for number in range(700):
        with log.open("a") as file:
            file.write(line.format(100 + number))
        os.utime(log, (START_S + number, START_S + number))
        tail.read(recent, RUN)
    series = recent.series["power_w", 0]
    assert series.figures[1].tolist() == [100.0 + number for number in range(700)]
    assert series.begins_ns.tolist() == [(START_S + n) * 10**9 for n in range(700)]


def test_a_file_of_a_day_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, recent = tmp_path / "power.csv", RecentSamples()
    log.write_text(f"{HEADING}\n" + "".join(row(at, gpu) for at in range(300) for gpu in (0, 1)))
    monkeypatch.setattr(tail_of, "_PIECE", 1000)
    Tail(log).read(recent, RUN)
    assert recent.series["power_w", 1].figures[1].tolist() == [601.0 + n % 90 for n in range(300)]


def test_no_sample_between_two_looks_escapes_an_alarm(tmp_path: Path, wording: Wording) -> None:
    log, recent = tmp_path / "power.csv", RecentSamples()
    log.write_text(f"{HEADING}\n{row(0, 0)}")
    tail, watch = (
        Tail(log),
        AlarmWatch([parse_alarm("gfx_mhz<1000 for 2s"), parse_alarm("power_w>700")]),
    )

    def look(*rows: tuple[int, int, int]) -> list[tuple[str, bool]]:
        with log.open("a") as file:
            file.writelines(f"{START_S + at},0,{power},80,{mhz},99\n" for at, power, mhz in rows)
        tail.read(recent, RUN)
        watch.look(RUN, recent)
        return [(event.text, event.holds) for event in recent.events]

    assert look() == []
    # A peak of one sample, and a low clock that is over when its lines come.
    came = look((1, 600, 900), (2, 900, 900), (3, 600, 900), (4, 600, 1700))
    first, second = [text for text, _ in came]
    wording(first, "GPU 0", "gfx 900 MHz", "gfx_mhz<1000 for 2s")
    wording(second, "GPU 0", "power 900 W", "power_w>700")
    assert not any(holds for _, holds in came) and look((5, 600, 1700)) == came
    # One that goes on is one alarm, with the latest figure, until it ends.
    assert look((6, 800, 1700))[2:] == [("GPU 0: power 800 W (power_w>700)", True)]
    assert look((7, 801, 1700))[2:] == [("GPU 0: power 801 W (power_w>700)", True)]
    assert look((8, 600, 1700))[2:] == [("GPU 0: power 801 W (power_w>700)", False)]


def test_every_new_step_is_compared_and_the_baseline_counts(folder: Path, tmp_path: Path) -> None:
    for rank in ranks_of(2, 3, 3):
        written(folder, rank, 1000 + rank.rank)
    run, recent = open_run(str(folder), jobs=1), RecentSamples()
    watch = AlarmWatch([parse_alarm("step_time>+5%")])
    watch.look(run, recent)
    for rank in ranks_of(2, 20, 3, STEP_GAP_US):
        written(folder, rank, 2000 + rank.rank)
    watch.look(open_run(str(folder), jobs=1), recent)
    assert recent.events == []
    # Against a baseline of half the time, each step rings; of signals, its mean counts.
    power = folder / "power.csv"
    power.write_text(f"{HEADING}\n" + "".join(row(at, gpu) for at in range(4) for gpu in (0, 1)))
    base = open_run(str(folder), jobs=1)
    run = replace(base, others={base.name: base})
    Tail(power).read(recent, run)
    AlarmWatch([parse_alarm("step_time>-50%"), parse_alarm("power_w>-1%")]).look(run, recent)
    assert [event.gpu for event in recent.open_alarms] == [None, 0, 1]
    assert "to the baseline" in recent.events[0].text


def test_lines_have_every_sample_and_end_with_the_recording(
    folder: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder / "power.csv"
    log.write_text(HEADING + "\n" + row(0, 0))
    manifest.start_manifest(folder, ["train"])
    follower.open()
    monkeypatch.setattr(follower, "every_s", 0.0)
    lines = (json.loads(str(line)) for line in follow_lines(follower))
    found = [next(lines)]
    with log.open("a") as file:
        file.write("".join(row(at, gpu) for at in range(1, 4) for gpu in (0, 1)))
    manifest.finish_manifest(folder, 0)
    found += lines
    samples = [
        (each["time_ns"] // 10**9 - START_S, int(gpu), values["power_w"])
        for each in found
        for gpu, values in each["gpus"].items()
    ]
    # A GPU that comes later is known once the run was read again.
    wanted = [(at, gpu, 600.0 + at + gpu) for at in range(4) for gpu in (0, 1)]
    assert sorted(samples) == [(0, 0, 600.0), *wanted[2:]]
    assert follower.recent.age(time.time()) == "ended"


def test_a_deleted_file_and_a_failed_look_are_said(
    folder: Path, follower: Follower, wording: Wording
) -> None:
    for rank in ranks_of(2, 3, 2):
        written(folder, rank, 1000 + rank.rank)
    follower.open()
    gone = sorted(folder.iterdir())[1]
    text = gone.read_text()
    gone.unlink()
    assert len(caught_up(follower).sources) == 1
    wording(follower.recent.gone, "node1_101.…trace.json", "deleted")
    gone.write_text(text)
    assert len(caught_up(follower).sources) == 2 and not follower.recent.gone

    def fails(_: object) -> Run:
        raise OSError(28, "No space left on device")

    follower._read_run, fails = fails, follower._read_run  # type: ignore[method-assign,assignment]
    gone.write_text(text + " ")
    while not follower.problem:
        follower.poll()
        time.sleep(0.002)
    assert "No space left on device" in follower.problem and follower.run is not None


def test_a_renamed_file_is_no_deleted_one(folder: Path, follower: Follower) -> None:
    for rank in ranks_of(2, 3, 2):
        written(folder, rank, 1000 + rank.rank)
    follower.open()
    own = sorted(folder.iterdir())[1]
    own.rename(own.with_name(own.name.replace("node1", "node7")))
    assert len(caught_up(follower).sources) == 2
    follower.poll()
    assert not follower.recent.gone


@pytest.mark.parametrize("name", ["node1_101.old", ".node1_101.json", "kept/node1_101.txt"])
def test_a_file_renamed_to_what_is_not_read_is_said_and_no_deleted_one(
    name: str, folder: Path, follower: Follower, wording: Wording
) -> None:
    for rank in ranks_of(2, 3, 2):
        written(folder, rank, 1000 + rank.rank)
    (folder / "kept").mkdir()
    follower.open()
    own = sorted(folder.glob("node1*"))[1]
    own.rename(folder / name)
    assert len(caught_up(follower).sources) == 1
    follower.poll()
    wording(follower.recent.gone, "node1_101.…trace.json renamed", Path(name).name)
    # Another file with the inode of a deleted one is none that was renamed.
    (folder / name).unlink()
    (folder / "notes.txt").write_text("another file")
    follower.poll()
    wording(follower.recent.gone, "node1_101.…trace.json", "deleted")


def test_of_a_large_file_the_samples_near_traces_are_those_of_the_whole(
    folder: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    for window, at_us in enumerate((0, STEP_GAP_US)):
        for rank in ranks_of(2, 3 + 10 * window, 2, at_us):
            written(folder, rank, 1000 * (window + 1) + rank.rank)
    log = folder / "power.csv"
    rows = "".join(row(at, gpu) for at in range(-500, 500) for gpu in (0, 1))
    log.write_text(f"{HEADING}\n{rows}")
    monkeypatch.setattr(tail_of, "_BLOCK", 400)
    run = follower.open()
    samples = [each.samples for each in run.telemetry]
    whole = open_run(str(folder), jobs=1)
    assert samples[0] < 0.4 * whole.telemetry[0].samples
    for view in ("", "gpu=0?cut=1", "?view=kernels", "gpu=1/iteration=13?view=timeline"):
        assert figures(run, f"x:{view}") == figures(whole, f"x:{view}")
    # A file that isn't in order of time is read as a whole.
    log.write_text(f"{HEADING}\n{row(900, 0)}{rows}")
    assert Tail(log).excerpt([]) is not None
    log.write_text("timestamp,gpu,power_usage\n" + "N/A,0,N/A\n" * 900)
    assert Tail(log).excerpt([]) is None


_DAY = """
import re, sys
from chopper_core.ingest.follow import Follower
follower = Follower(sys.argv[1], jobs=1)
line = "{},{},{},{},60,{},99,30,1300,1024,196592,12,3,N/A\\n"
with open(sys.argv[1] + "/power.csv", "a") as log:
    for second in range(86400):
        log.write("".join(line.format(1795600000 + second, gpu, 600 + second % 90, 80 + gpu,
                                      1700 - second % 50) for gpu in range(8)))
        if second % 1200 == 60:
            log.flush()
            if follower.run is None:
                follower.open()
            follower.tail()
            follower._read_run(lambda *_: None)
# The largest resident set of the rusage is also that of the process that started this one.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
follower.close()
"""


@pytest.mark.sweep
def test_a_day_of_eight_gpus_takes_little_memory(folder: Path, tmp_path: Path) -> None:
    (folder / "power.csv").write_text(
        "timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clock,gfx,mem,"
        "mem_clock,vram_used,vram_total,pviol,tviol,phot_tviol\n"
    )
    command = [sys.executable, "-c", _DAY, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) <= 150
