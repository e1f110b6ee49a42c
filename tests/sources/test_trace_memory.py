"""A large trace is read in little memory: a process has a limit on its address space."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HEADROOM_MB = 48
"""Above what the process has after its imports."""
EVENTS = 240_000
LIMITED = """
import json, resource, sys
from pathlib import Path
from chopper_core.sources.kineto.reader import read_trace

path, headroom = Path(sys.argv[1]), int(sys.argv[2])
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (headroom << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""
READ = """
trace = read_trace(path)
assert trace.losses.notes == [], trace.losses.notes
assert (trace.activities.duration_ns == 2_500).all()
print(len(trace.activities), len(trace.ranges), int(trace.ranges.start_ns[-1]))
"""
WHOLE = "json.loads(path.read_bytes())"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the limit on addresses is that of Linux"
)


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


def _run(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    # One arena and one thread: what others reserve, they don't use.
    return subprocess.run(
        [sys.executable, "-c", LIMITED + code, str(path), str(HEADROOM_MB)],
        cwd=ROOT,
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("is_packed", [False, True])
def test_it_is_read_within_the_limit(plain: Path, is_packed: bool) -> None:
    path = plain
    if is_packed:
        path = plain.with_suffix(".json.gz")
        path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    done = _run(path, READ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(EVENTS // 4),
        str(EVENTS * 3 // 4),
        str(10_000 * (EVENTS - 1)),
    ]


def test_the_limit_is_too_low_for_all_at_once(plain: Path) -> None:
    done = _run(plain, WHOLE)
    assert done.returncode != 0 and "MemoryError" in done.stderr
