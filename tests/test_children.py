"""Processes that Chopper starts: what they import, what a shell reads, and when they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chopper_core.record.manifest import name_of_host
from tests.conftest import ROOT

CHOPPER = str(Path(sys.executable).with_name("chopper"))
PLANTED = """
with open({ran!r}, "a") as file:
    file.write(__name__ + chr(10))
raise SystemExit("a file of the working directory ran")
"""
"""A module that leaves its name, wherever it is imported."""
SAMPLED = "for i in $(seq 100); do ls ../recorded/nodes/*.json >&2 && exit; sleep 0.1; done; exit 1"
"""A command that ends once the sampler of its recording has written."""
_UNTIL_S = 30.0


def shared_folder(folder: Path, ranks: int = 3) -> tuple[Path, Path]:
    """A directory of traces in which somebody put a file for every module of Python and of ours;
    and the file in which those that run leave their names."""
    shared, ran = folder / "shared", folder / "ran"
    shared.mkdir()
    for rank in range(ranks):
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
        events = [{**kernel, "args": {"device": rank, "stream": 7}}]
        about = {"distributedInfo": {"rank": rank, "world_size": ranks}, "traceEvents": events}
        (shared / f"rank{rank}.json").write_text(json.dumps(about))
    others = {"numpy", "msgspec", "pyarrow", "chopper_core", "chopper_tui", "textual", "psutil"}
    for name in {*sys.stdlib_module_names, *others}:
        (shared / f"{name}.py").write_text(PLANTED.format(ran=str(ran)))
    return shared, ran


def environment(folder: Path) -> dict[str, str]:
    known = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    return {**known, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder)}


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", ".", "--jobs", "2"],
        ["show", ".", "--jobs", "2"],
        ["ingest", ".", "-o", "../store", "--jobs", "2"],
        ["record", "-o", "../recorded", "--", "sh", "-c", SAMPLED],
        ["record", "-o", "../recorded", "--open", "--", "true"],
    ],
)
def test_no_file_of_the_working_directory_runs(arguments: Sequence[str], tmp_path: Path) -> None:
    shared, ran = shared_folder(tmp_path)
    done = subprocess.run(
        [CHOPPER, *arguments], cwd=shared, env=environment(tmp_path), timeout=60,
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert not ran.exists(), f"ran: {ran.read_text()}\n{done.stderr}"
    assert done.returncode == 0, done.stderr


def test_the_command_that_is_recorded_keeps_its_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import os; print(os.environ.get('PYTHONSAFEPATH'))")
    done = subprocess.run(
        [CHOPPER, "record", "-o", "run", "--", sys.executable, "-c", "import own"],
        cwd=tmp_path, env=environment(tmp_path), timeout=60, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_one_module_alone_starts_pythons() -> None:
    """`util/children.py`; `multiprocessing` starts its own, under a lock of that module."""
    starts = re.compile(r"sys\.executable|get_context\(|forkserver|os\.fork\(")
    found = {
        str(path.relative_to(ROOT)): sorted(set(starts.findall(text)))
        for package in ("chopper_core", "chopper_tui")
        for path in (ROOT / package).rglob("*.py")
        if starts.search(text := path.read_text("utf-8"))
    }
    known = {"chopper_core/util/children.py", "chopper_core/util/workers.py"}
    assert set(found) == known, found


WAITING = """
import os, sys, time
from pathlib import Path
from chopper_core.util.workers import read_all
import slow
paths = [Path(path) for path in sys.argv[1:]]
read_all(paths, slow.read, lambda *about: None, 2)
"""
SLOW = """
import os, time
from pathlib import Path
def read(path, progress):
    Path(f"{path}.pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.touch()
    parent = subprocess.Popen(
        [sys.executable, "-c", WAITING, *map(str, paths)], cwd=tmp_path, env=environment(tmp_path)
    )
    try:
        pids = [int(text_of(tmp_path / f"{path.name}.pid")) for path in paths]
        before = descendants(parent.pid)
        assert set(pids) <= set(before), "two workers, and what multiprocessing keeps for them"
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not any(map(runs, before))), [each for each in before if runs(each)]


def test_the_writer_of_the_live_demo_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [CHOPPER, "demo", "--live", "--format", "jsonl"], cwd=tmp_path, env=environment(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert until(lambda: descendants(parent.pid) != []), parent.poll()
        before = descendants(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not any(map(runs, before)))


ROCM_SMI = """#!/bin/sh
echo "device,Temperature (Sensor edge) (C)"
echo "card0,45.0"
"""
SAMPLER = (sys.executable, "-P", "-m", "chopper_core.record.sampler")


def test_a_tool_of_the_sampler_writes_below_any_name(tmp_path: Path) -> None:
    """The shell that calls rocm-smi reads no path; and it ends with a sampler that is killed.

    Each takes seconds, of which it rests most: they run side by side.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "rocm-smi").write_text(ROCM_SMI)
    (folder / "rocm-smi").chmod(0o755)
    known = {**environment(tmp_path), "PATH": f"{folder}:/usr/bin:/bin"}
    processes = {}
    try:
        for name in ("a b", "x$(touch Y)", "-'\";touch Y;", "{}"):
            (tmp_path / name).mkdir()
            call = [*SAMPLER, str(tmp_path / name)]
            processes[name] = subprocess.Popen(call, cwd=tmp_path, env=known)
        for name in processes:
            log = tmp_path / name / f"telemetry-{name_of_host()}.csv"
            assert until(lambda log=log: log.is_file() and "card0" in log.read_text()), name
        before = {name: descendants(process.pid) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert not list(tmp_path.rglob("Y"))
    for name, below in before.items():
        assert below and until(lambda below=below: not any(map(runs, below))), name


def text_of(path: Path) -> str:
    assert until(lambda: path.is_file() and path.read_text() != ""), path
    return path.read_text()


def until(is_so: Callable[[], bool]) -> bool:
    """Whether something comes true, after however long."""
    end_s = time.monotonic() + _UNTIL_S
    while time.monotonic() < end_s:
        if is_so():
            return True
        time.sleep(0.05)
    return False


def descendants(process: int) -> list[int]:
    """The processes that a process and those started, as long as it lives."""
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        texts = [(task / "children").read_text() for task in tasks]
    except OSError:
        return []
    found = [int(each) for text in texts for each in text.split()]
    return [*found, *(each for child in found for each in descendants(child))]


def runs(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
