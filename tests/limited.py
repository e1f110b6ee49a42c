"""Code in a process of its own that may take so much memory, and no more."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

NEEDS_LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the limit on addresses is that of Linux"
)
_STACK = 1 << 20
"""Of every thread, in bytes: how many there are shall not matter, and 8 MB each would."""
_LIMIT = """
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def run_limited(
    before: str, code: str, path: Path, headroom_mb: int
) -> subprocess.CompletedProcess[str]:
    """Run code on `path` within so many MB above what the process has after its beginning."""
    # One arena: what others reserve, they don't use.
    alone = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    start = f"import resource, sys\nfrom pathlib import Path\n{before}\npath = Path(sys.argv[1])\n"
    return subprocess.run(
        [sys.executable, "-c", f"{start}{_LIMIT}{code}", str(path), str(headroom_mb)],
        cwd=ROOT,
        env={**os.environ, **alone, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        preexec_fn=_small_stacks,
    )


def _small_stacks() -> None:
    resource.setrlimit(
        resource.RLIMIT_STACK, (_STACK, resource.getrlimit(resource.RLIMIT_STACK)[1])
    )


@contextmanager
def within(size: int) -> Iterator[None]:
    """Let this process allocate so many bytes more: what takes more ends in a MemoryError.

    `tracemalloc` would count them too, but its end crashes where another thread allocates
    (Python before 3.12.9 and 3.13.2).
    """
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("what a process has allocated is read from Linux")
    has = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, ((int(has.split()[1]) << 10) + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
