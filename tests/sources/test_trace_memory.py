"""A large trace is read in little memory: a process has a limit on its address space."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.limited import NEEDS_LINUX, run_limited

HEADROOM_MB = 56
"""Above what the process has after its imports; about 29 are needed."""
EVENTS = 240_000
IMPORTS = """
import json
from chopper_core.sources.kineto.reader import read as read_trace
"""
READ = """
trace = read_trace(path)
assert trace.losses.notes == [], trace.losses.notes
assert (trace.activities.duration_ns == 2_500).all()
print(len(trace.activities), len(trace.ranges), int(trace.ranges.start_ns[-1]))
"""
WHOLE = "json.loads(path.read_bytes())"

pytestmark = NEEDS_LINUX


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("large") / "rank0.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for number in range(EVENTS):
            is_kernel = number % 4 == 0
            event = {
                "ph": "X",
                "cat": "kernel" if is_kernel else "cpu_op",
                "name": f"kernel_{number % 100}" if is_kernel else "aten::mm",
                "pid": 0,
                "tid": 7,
                "ts": 10 * number,
                "dur": 2.5,
                "args": {
                    "External id": number,
                    "correlation": number,
                    "Input Dims": [[number % 50, 4096], [4096, 4096]],
                    "Call stack": "a frame of a module and its forward " * 4,
                },
            }
            file.write(f"{',' * (number > 0)}\n{json.dumps(event)}")
        file.write("]}")
    assert path.stat().st_size > 75e6
    return path


@pytest.mark.sweep
@pytest.mark.few(1)
@pytest.mark.parametrize("is_packed", [False, True])
def test_it_is_read_within_the_limit(plain: Path, is_packed: bool) -> None:
    path = plain
    if is_packed:
        path = plain.with_suffix(".json.gz")
        path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    done = run_limited(IMPORTS, READ, path, HEADROOM_MB)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(EVENTS // 4),
        str(EVENTS * 3 // 4),
        str(10_000 * (EVENTS - 1)),
    ]


@pytest.mark.sweep
def test_the_limit_is_too_low_for_all_at_once(plain: Path) -> None:
    done = run_limited(IMPORTS, WHOLE, plain, HEADROOM_MB)
    assert done.returncode != 0 and "MemoryError" in done.stderr
