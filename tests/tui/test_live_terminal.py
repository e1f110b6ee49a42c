"""A followed run in a real pseudo-terminal, while a job writes into its directory."""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.ingest.test_follow import HEADING, row
from tests.ingest.test_windows import STEP_GAP_US, ranks_of, written
from tests.programs.monkey.session import KEYS
from tests.tui.terminal_harness import Terminal

LAG_S = 2.0
MOST_BYTES = {(80, 24): 1500, (200, 60): 6000}
GPUS = 8
LEAVING = ("q", "ctrl+c", "ctrl+z")


class Job:
    """Writes telemetry and traces as the tools do."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.folder, self.gpus, self.second = folder, gpus, 0
        folder.mkdir()
        self.log = folder / "power.csv"
        self.log.write_text(f"{HEADING}\n")
        self.write_samples(4)

    def write_samples(self, seconds: int) -> None:
        lines = ""
        for _ in range(seconds):
            self.second += 1
            lines += "".join(row(self.second, gpu) for gpu in range(self.gpus))
        with self.log.open("a") as file:
            file.write(lines)

    def write_window(self, first: int, at_us: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks_of(2, first, 3, at_us):
            if rank.rank in ranks:
                part = written(self.folder, rank, 1000 * first + rank.rank, ".part")
                part.rename(str(part).removesuffix(".part"))

    @property
    def mhz(self) -> str:
        """The latest clock."""
        return str(1700 - self.second % 50)


@contextmanager
def watching(
    folder: Path, *options: str, size: tuple[int, int] = (80, 24), view: str = ""
) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "chopper_tui", f"{folder}{view}", *options]
    home = {name: str(folder.parent / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME",
            "XDG_STATE_HOME")}  # fmt: skip
    with Terminal(command=command, size=size, **home) as terminal:
        yield terminal


def body(terminal: Terminal) -> list[str]:
    """The lines between the header, whose breadcrumb has the age of the data, and the status."""
    return [line.rstrip() for line in terminal.screen.display[2:-2]]


def until_position(terminal: Terminal, position: str) -> None:
    """Wait until the breadcrumb's line ends with the cursor's row of all rows."""
    terminal.until(lambda: terminal.screen.display[1].rstrip().endswith(position))


def bytes_in(terminal: Terminal, seconds: float) -> int:
    """The bytes that come in so many seconds."""
    before, until = len(terminal.output), time.monotonic() + seconds
    while time.monotonic() < until:
        terminal.quiet(0.2)
    return len(terminal.output) - before


def go(terminal: Terminal, where: str) -> None:
    """Go to an address, and there to the first row: a run that is followed begins on its newest."""
    terminal.send(f":go {where}\r")
    terminal.quiet(0.6)
    terminal.send("g")


@pytest.mark.sweep  # It waits for seconds, and for its share of a busy machine.
def test_a_job_is_followed_to_what_its_finished_directory_shows(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.write_window(3, 0, (0,))
    with watching(job.folder, "--watch", "--jobs", "1") as terminal:
        until_position(terminal, "1/1")
        # A rank that comes late, and its telemetry; the cursor goes to it.
        job.write_window(3, 0, (1,))
        until_position(terminal, "/2")
        terminal.send("j")
        # A line in two parts.
        job.write_samples(3)
        terminal.until_text(f" {job.mhz} ")
        with job.log.open("a") as file:
            text = row(8, 0) + row(8, 1)
            file.write(text[:30])
            file.flush()
            terminal.quiet(1.5)
            assert f" {job.mhz} " in terminal.text
            file.write(text[30:])
        job.second = 8
        terminal.until_text(f" {job.mhz} ")
        # A second window, its gzip half there at first.
        first, late = ranks_of(2, 20, 3, STEP_GAP_US)
        packed = gzip.compress(written(job.folder.parent, first, 20000).read_bytes())
        target = job.folder / written(job.folder.parent, first, 20000).name
        half = target.with_name(target.name + ".gz")
        half.write_bytes(packed[: len(packed) // 2])
        written(job.folder, late, 20001)
        terminal.quiet(1.5)
        half.write_bytes(packed)
        terminal.until_text("step 22: ")
        # Rotated, truncated, replaced by a copy; then the clock is set back and goes on.
        job.log.rename(job.folder / "power.csv.old")
        job.log.write_text(f"{HEADING}\n")
        job.write_samples(4)
        terminal.until_text(f" {job.mhz} ")
        job.log.write_text(f"{HEADING}\n")
        job.write_samples(4)
        terminal.until_text(f" {job.mhz} ")
        copy = tmp_path / "copy.csv"
        copy.write_text(job.log.read_text())
        copy.replace(job.log)
        job.second -= 3
        job.write_samples(12)
        terminal.until_text(f" {job.mhz} ")
        written(job.folder, ranks_of(2, 40, 3, 2 * STEP_GAP_US)[0], 40000)
        written(job.folder, ranks_of(2, 40, 3, 2 * STEP_GAP_US)[1], 40001)
        terminal.until_text("step 42: ")
        gone = job.folder / written(job.folder.parent, late, 20001).name
        gone.unlink()
        terminal.until_text("deleted")
        written(job.folder, late, 20001)
        terminal.until(lambda: "deleted" not in terminal.text)
        # It rests: all figures are those of the directory, and the cursor is where it was.
        terminal.until_text("last data")
        bytes_in(terminal, 4.0)
        cursor = next(line for line in terminal.screen.display if "▌" in line)
        assert cursor.split()[1] == "1"
        with watching(job.folder, "--jobs", "1", view=":?view=live") as other:
            until_position(other, "/2")
            for where in ("?view=overview", "?view=kernels", "gpu=1?cut=1", "?view=throughput",
                          "gpu=0/iteration=21", "?view=findings", "?view=power"):  # fmt: skip
                go(terminal, where)
                go(other, where)
                for _ in range(100):  # Charts come when they are drawn.
                    if body(terminal) == body(other):
                        break
                    bytes_in(terminal, 0.3)
                    bytes_in(other, 0.3)
                assert body(terminal) == body(other), f"{where}\n{terminal.text}\n{other.text}"
        terminal.send("q")
        assert terminal.wait() == 0


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_an_update_comes_soon_in_few_bytes_and_little_time(
    size: tuple[int, int], tmp_path: Path
) -> None:
    job = Job(tmp_path / "run", GPUS)
    job.write_samples(400)
    with watching(job.folder, "--watch", "--jobs", "1", size=size) as terminal:
        until_position(terminal, f"1/{GPUS}")
        terminal.quiet(1.5)
        lags, sizes, updates = [], [], 6
        before_s = terminal.processor_s()
        for _ in range(updates):
            began, before = time.monotonic(), len(terminal.output)
            job.write_samples(1)
            terminal.until_text(f" {job.mhz} ")
            lags.append(time.monotonic() - began)
            terminal.quiet(0.4)
            sizes.append(len(terminal.output) - before)
        took_s = (terminal.processor_s() - before_s) / updates
        print(f"{size}: lag {lags}, bytes {sizes}, processor {1e3 * took_s:.1f} ms per update")
        assert min(lags) <= LAG_S and sorted(sizes)[updates // 2] <= MOST_BYTES[size]
        assert bytes_in(terminal, 4.0) < 600  # Nothing but the age of the data.


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
def test_random_keys_while_data_arrives(seed: int, tmp_path: Path) -> None:
    random, job = Random(seed), Job(tmp_path / "run")
    job.write_window(3, 0)
    keys = [key for key in KEYS if key not in LEAVING and len(key) == 1]
    keys += 3 * ["\r", "\x1b", "\t", ":", "/", " ", "0", "j", "k"]
    until = time.monotonic() + float(os.environ.get("CHOPPER_SECONDS", "30"))
    first = 20
    with watching(job.folder, "--watch", "--jobs", "1", "--interval", "0.5") as terminal:
        until_position(terminal, "/2")
        while time.monotonic() < until:
            job.write_samples(random.randint(0, 3))
            if random.random() < 0.05:
                job.write_window(first, STEP_GAP_US * first)
                first += 10
            if random.random() < 0.02:
                job.log.write_text(f"{HEADING}\n")
            if random.random() < 0.05:
                random.choice(sorted(job.folder.glob("node1*"))).unlink()
                job.write_window(first, STEP_GAP_US * first)
                first += 10
            text = "".join(random.choices(keys, k=random.randint(1, 6)))
            terminal.send(text.replace("q", ""))
            terminal.quiet(random.random() / 4)
            assert terminal.process.poll() is None, terminal.text
        terminal.send("\x1b" * 5)
        terminal.quiet(1.0)
        terminal.send("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.text


def test_reloads_from_the_first_screen_on_while_files_change(tmp_path: Path) -> None:
    random, job = Random(0), Job(tmp_path / "run")
    job.write_window(3, 0)
    with watching(job.folder, "--watch", "--jobs", "1", "--interval", "0.5") as terminal:
        terminal.until(lambda: b"?1049h" in terminal.output)
        for number in range(12):
            job.write_samples(1)
            job.write_window(20 + 10 * number, STEP_GAP_US * (20 + 10 * number))
            terminal.send("R")
            terminal.quiet(random.choice([0.0, 0.05, 0.2]))
        terminal.send("\x1b[27u?")
        terminal.until_text("─ Help ─")
        terminal.send("\x03")
        assert terminal.wait() == 0 and terminal.is_restored()
