"""Every step of a recorded process: what its hooks publish, and what a watcher makes of it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.follow import Follower
from chopper_core.ingest.follow_lines import follow_lines
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards
from chopper_core.model.recent_steps import ProcessNow, RecentSteps
from chopper_core.model.training import TrainedSteps
from chopper_core.record import command as recording
from chopper_core.record import manifest
from chopper_core.record.command import RecordOptions, record
from chopper_core.record.hooks import step_ring
from chopper_core.record.hooks.step_ring import SLOTS, StepRing
from chopper_core.record.hooks.steps import StepLog
from chopper_core.record.manifest import RING, STEPS
from chopper_core.sources.trainer.step_ring import RingReader, read
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.wording import Wording

FAKE = Path(__file__).parent / "fake"
TRAIN = str(FAKE / "train.py")
MS = 10**6
START_NS = 1_790_000_000 * 10**9


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(recording, "_SAMPLER", ("true",))


def entries(path: Path) -> list[tuple[int, ...]]:
    """The steps of a ring that hasn't gone round, read from its bytes."""
    content = path.read_bytes()
    count = struct.unpack_from("<q", content, 24)[0]
    return [struct.unpack_from("<8q", content, 80 + 64 * at) for at in range(count)]


def test_a_recording_without_windows_has_every_step(tmp_path: Path, wording: Wording) -> None:
    run, said = tmp_path / "run", list[str]()
    command = [sys.executable, TRAIN, "12", "eval", "save", "accumulate"]
    assert record(RecordOptions(run, steps=0), command, said.append) == 0
    assert len(said) == 1
    wording(said[0].partition(" (")[0], "1 process", str(run))
    (ring,) = (run / STEPS).glob(f"*{RING}")
    found = entries(ring)
    assert [each[0] for each in found] == list(range(11))
    for step, begin, took, tokens, evaluation, checkpoint, profiled, _ in found:
        assert began_next(found, step) in (None, pytest.approx(begin + took, abs=5 * MS))
        assert tokens == -1 and profiled == 0
        assert 0 < evaluation < took
        assert (2 * MS <= checkpoint < took) == (step % 3 == 2)
    opened = open_run(str(run))
    steps = opened.side(TrainedSteps)
    assert steps.step_ns.tolist() == [each[2] for each in found]
    assert steps.rank.tolist() == [0] * 11
    frame = query(opened, parse(f"{run}:?view=training&by=stage"))
    assert sorted(frame.labels) == ["checkpoint", "evaluation"]


def began_next(found: list[tuple[int, ...]], step: int) -> int | None:
    return next((each[1] for each in found if each[0] == step + 1), None)


def test_steps_near_a_window_are_marked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(RecordOptions(run, skip=5, steps=2), [sys.executable, TRAIN, "40", "slow"], str)
    (ring,) = (run / STEPS).glob(f"*{RING}")
    how = [each[6] for each in entries(ring)]
    assert how[:8] == [0, 0, 0, 0, step_ring.NEAR, step_ring.TRACED, step_ring.TRACED, 2]
    assert how[-1] == 0
    # The steps of the trace are those of the ring, which say that the profiler slows some.
    assert open_run(str(run)).side(TrainedSteps).step.tolist() == list(range(39))


class Batch:
    def __init__(self, *shape: int, dtype: str = "torch.int64") -> None:
        self.shape, self.dtype = shape, dtype

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return int(np.prod(self.shape))


class Net(SimpleNamespace):
    training = True

    def children(self) -> list[Any]:
        return [each for each in vars(self).values() if isinstance(each, Net)]

    def named_modules(self) -> list[tuple[str, Any]]:
        return [("", self), *(pair for each in self.children() for pair in each.named_modules())]


def test_tokens_are_those_of_the_largest_embedding_else_those_given(tmp_path: Path) -> None:
    log = StepLog(str(tmp_path), "host-1")
    words, places = Net(num_embeddings=50_000), Net(num_embeddings=2048)
    model = Net(words=words, places=places)
    wrapper = Net(module=model)
    log.watch(wrapper)
    calls: list[tuple[Any, Batch, bool]] = [
        (words, Batch(4, 128), True),
        (places, Batch(128), True),
        (words, Batch(4, 128), True),
        (words, Batch(8, 128), False),  # an evaluation, or recomputed by backward
    ]
    log.begin(0)
    for module, batch, trains in calls:
        if id(module) in log.watched:
            log.before_call(module, (batch,), trains=trains)
    log.begin(1)
    for _ in range(3):
        log.before_call(wrapper, (Batch(2, 64),), trains=True)
        log.before_call(model, (Batch(2, 64),), trains=True)
        log.after_call(model, trains=True)
        log.after_call(wrapper, trains=True)
    log.begin(2)
    log.before_call(wrapper, (Batch(2, 64, dtype="torch.float32"),), trains=True)
    log.begin(3)
    found = entries(tmp_path / STEPS / f"host-1{RING}")
    assert [each[3] for each in found] == [1024, 384, -1]


def test_a_ring_that_goes_round_is_read_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / f"a{RING}"
    ring, reader, known = StepRing(str(path), START_NS), RingReader(path), list[int]()
    for step in range(3 * SLOTS + 5):
        ring.add((step, START_NS + step * MS, MS, 7, 0, 0, 0))
        if step % 700 == 699:
            known += reader.new_steps()[:, 0].tolist()
    known += reader.new_steps()[:, 0].tolist()
    assert known == list(range(3 * SLOTS + 5))
    # Who comes late sees the last ones, but for the slot that may be written just now.
    assert read(path).step.tolist() == list(range(2 * SLOTS + 6, 3 * SLOTS + 5))
    assert path.stat().st_size == step_ring.HEADER.size + SLOTS * step_ring.ENTRY.size


def test_damage_costs_the_steps_that_it_hits(tmp_path: Path) -> None:
    path = tmp_path / f"a{RING}"
    ring = StepRing(str(path), START_NS)
    for step in range(4):
        ring.add((step, START_NS + step * MS, -5 if step == 1 else MS, -1, 0, 0, 0))
    log = read(path)
    assert log.step.tolist() == [0, 2, 3] and log.losses.unreadable_events == 1
    path.write_bytes(path.read_bytes()[:150])
    assert read(path).step.tolist() == [0]
    for content in (b"", path.read_bytes()[:60], b"x" * 400, step_ring.MAGIC + b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(DataError, match="ring of steps"):
            read(path)
    path.unlink()
    StepRing(str(path), START_NS)
    with pytest.raises(DataError, match="holds no step that ended"):
        read(path)


def rows(*steps: tuple[int, int], begin_ns: int = START_NS) -> Any:
    """Steps of so many ms, one after the other."""
    found = []
    for number, took_ms in steps:
        found.append((number, begin_ns, took_ms * MS, 1000, 0, 0, 0))
        begin_ns += took_ms * MS
    return np.array(found, np.int64).reshape(-1, 7)


def now(
    rank: int, step: int, *, doing: str = "the forward of step {}", born: int = 0
) -> ProcessNow:
    born_ns = START_NS + born
    return ProcessNow(rank, born_ns, doing, "step" in doing, born_ns, step)


def test_the_steps_of_a_job() -> None:
    steps = RecentSteps()
    times = {rank: [100 + 10 * (rank == 3) + at % 7 for at in range(50)] for rank in range(4)}
    for rank, own in times.items():
        steps.add(f"r{rank}", now(rank, 50), rows(*enumerate(own)), 0.0)
    # Rank 2 has ended one more: it counts once all have.
    steps.add("r2", now(2, 51), rows((50, 500)), 0.0)
    job = steps.job()
    mean = [sum(own[at] for own in times.values()) / 4 for at in range(50)]
    assert job.number.tolist() == list(range(50))
    assert (job.time_ns / MS).tolist() == pytest.approx(mean)
    assert job.usual_ns() / MS == pytest.approx(float(np.median(mean[3:])))
    assert job.usual_ns(0.95) / MS == pytest.approx(float(np.quantile(mean[3:], 0.95)))
    rate, tokens = job.per_second()
    assert rate == pytest.approx(1e3 * 50 / sum(mean))
    assert tokens == pytest.approx(1e3 * 1000 * 50 / sum(mean))
    medians = {rank: np.median(own[3:]) for rank, own in times.items()}
    rank, slower = steps.slowest()
    assert rank == 3 and slower == pytest.approx(110 / medians[0] + 0.03 - 1, abs=0.03)
    # A rank that is gone holds up none.
    for rank in (0, 1, 2):
        steps.add(f"r{rank}", now(rank, 60), rows(*((at, 90) for at in range(51, 60))), 0.0)
    assert steps.job().number[-1] == 59


def test_a_stall_names_who_is_where(wording: Wording) -> None:
    steps, began_s = RecentSteps(), START_NS / 1e9
    for rank in range(3):
        steps.add(f"r{rank}", now(rank, 9), rows(*((at, 100) for at in range(9))), began_s)
    steps.add("r1", now(1, 8, doing="the loop after step {}, such as its loader"), rows(), began_s)
    assert steps.stall(began_s + 9) == ""
    said = "no step for 40 s: rank 1 is in the loop after step 8, such as its loader; "
    said += "2 ranks are in the forward of step 9"
    assert steps.stall(began_s + 47) == said
    assert steps.stall(began_s + 200).startswith("no step for 3 min: ")
    steps.add("r1", now(1, 8, doing="an evaluation"), rows(), began_s + 50)
    assert steps.stall(began_s + 90) == ""
    wording(steps.doing(began_s + 90), "rank 1 ", "evaluation", "40 s")


def test_a_job_that_is_started_again_is_followed() -> None:
    steps, later = RecentSteps(), 3600 * 10**9
    for rank in range(2):
        steps.add(f"a{rank}", now(rank, 9), rows(*((at, 100) for at in range(9))), 0.0)
    again = rows(*((at, 50) for at in range(4, 8)), begin_ns=START_NS + later)
    for rank in range(2):
        steps.add(f"b{rank}", now(rank, 8, born=later), again, 1.0)
    assert [len(each) for each in steps.starts()] == [2, 2]
    assert steps.job().number.tolist() == [4, 5, 6, 7]
    # Without ranks, a process after the end of another is another start.
    alone = RecentSteps()
    alone.add("a", now(-1, 9), rows((0, 100)), 0.0)
    alone.add("b", now(-1, 9, born=later), again, 0.0)
    assert [len(each) for each in alone.starts()] == [1, 1]


def test_every_second_of_a_followed_job(tmp_path: Path) -> None:
    """A scripted job on two nodes: what is shown at each look against an own account of it."""
    run = tmp_path / "run"
    rings = [StepRing(str(run / STEPS / f"n{rank}-x-1{RING}"), START_NS) for rank in range(2)]
    done: list[list[int]] = [[], []]
    at_ns = [START_NS, START_NS]

    def steps(count: int) -> None:
        for _ in range(count):
            for rank, ring in enumerate(rings):
                number = len(done[rank])
                took = (200 + number % 11 + 9 * rank) * MS
                ring.add((number, at_ns[rank], took, 4096, 0, 0, 0))
                at_ns[rank] += took
                done[rank].append(took)
                ring.note(step_ring.FORWARD, at_ns[rank], number + 1)

    for rank, ring in enumerate(rings):
        ring.name(rank, 2)
    steps(5)
    follower = Follower(str(run), jobs=1)
    try:
        opened = follower.open()
        for _ in range(60):
            steps(5)
            follower.poll()
            assert follower.tail()
            mean = [sum(pair) / 2 for pair in zip(*done, strict=True)]
            frame = query(follower.run or opened, parse(f"{run}:?view=live"))
            head = frame.headline[0]
            assert head.startswith(f"step {len(mean) - 1:,}: {mean[-1] / MS:.4g}")
            assert f"median {np.median(mean[3:]) / MS:.4g} ms" in head
            assert "rank 1 is slowest, +" in head
            chart = frame.charts[0]
            assert chart.numbers.tolist() == [each / MS for each in mean[-240:]]
            assert frame.row(1)["now_step"] == len(mean) - 1
        assert not follower.tail()  # Nothing new: nothing is drawn.
        number = len(done[0])
        for rank, ring in enumerate(rings):
            ring.add((number, at_ns[rank], 900 * MS, 4096, 640 * MS, 50 * MS, 0))
            done[rank].append(900 * MS)
        mean.append(900 * MS)
        follower.poll()
        assert follower.tail()
        frame = query(follower.run or opened, parse(f"{run}:?view=live"))
        within = "0.64 s evaluation, 0.05 s checkpoint"
        assert f"step {number}: 900 ms ({within})" in frame.headline[0]
        (cards,) = (each.cards for each in frame.charts if isinstance(each, Cards))
        assert f"step {number}: 900 ms, of it {within}" in {card.text for card in cards}
        kept = follower.recent.steps.current
        assert all(len(each.rows) <= 1024 for each in kept)
        manifest.start_manifest(run, ["true"])
        manifest.finish_manifest(run, 0)
        follower.every_s = 0.01
        lines = [*follow_lines(follower)]
        steps_of = [each for each in map(json.loads, lines) if "published_step" in each]
        assert [each["step_time_ns"] for each in steps_of] == mean
    finally:
        follower.close()


def test_the_end_of_a_job_is_noticed_where_nothing_else_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ring = StepRing(str(run / STEPS / f"n0-x-1{RING}"), START_NS)
    ring.name(0, 1)
    ring.add((0, START_NS, 200 * MS, 4096, 0, 0, 0))
    follower = Follower(str(run), jobs=1, every_s=0.01)
    try:
        follower.open()
        manifest.start_manifest(run, ["true"])
        manifest.finish_manifest(run, 0)
        for _ in range(500):
            follower.poll()
            if follower.recent.has_ended:
                break
            time.sleep(follower.every_s)
        assert follower.recent.has_ended
    finally:
        follower.close()


def test_a_child_that_is_forked_has_no_steps_of_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    forward = lambda self, value: value\n"
        "net, adam = Net(), torch.optim.Adam()\n"
        "for step in range(4):\n    net(1)\n    adam.step()\n"
        "if not os.fork():\n    net(1)\n    adam.step()\n    os._exit(0)\n"
        "os.wait()\n"
    )
    code = record(RecordOptions(tmp_path / "run", steps=0), [sys.executable, "-c", script], str)
    assert code == 0
    found = sorted((tmp_path / "run" / STEPS).glob(f"*{RING}"), key=os.path.getmtime)
    assert [len(entries(each)) for each in found] in ([3], [0, 3], [3, 0])


def test_a_full_disk_costs_the_steps_alone(tmp_path: Path) -> None:
    """The ring is given up, and the training goes on."""
    run = tmp_path / "run"
    run.mkdir()
    (run / STEPS).write_text("in the way")
    script = f"import sys; sys.argv = ['', '5']; exec(open({TRAIN!r}).read())"
    environ = recording.hook_environment(RecordOptions(run), os.environ)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
