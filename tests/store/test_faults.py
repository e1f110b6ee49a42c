"""Kills and faults while a store is written: the old one, the new one, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chopper_core.util import atomic
from tests.programs import faults

QUICK = ("fresh", "replaced", "into", "finished", "cached", "full disk", "changed source")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_leaves_the_old_the_new_or_none(name: str) -> None:
    assert faults.fault(name, 4)


@pytest.mark.sweep
def test_a_minute_of_faults() -> None:
    outcomes, failures = faults.play(2026, seconds=60)
    assert outcomes and not failures


@pytest.mark.parametrize("is_reaped", [True, False])
def test_temporary_folders_of_dead_writers_are_removed(tmp_path: Path, is_reaped: bool) -> None:
    """Also those of a writer whose parent has not asked for its end."""
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitid(os.P_PID, dead, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
    own = atomic.temporary_path(tmp_path / "a", "new")
    gone = own.name.replace(f"-{os.getpid()}-", f"-{dead}-")
    elsewhere = own.name.replace(own.name.split(".")[2].split("-")[0], "0123abcd")
    names = [own.name, gone, elsewhere, gone.replace(".a.", ".b."), ".a.notes.new", "a.new"]
    for name in (*names, gone.replace(".new", ".old")):
        (tmp_path / name).mkdir()
    (tmp_path / elsewhere / "kernels.arrow").write_bytes(b"")
    left = {path.name for path in tmp_path.iterdir()} - {gone, gone.replace(".a.", ".b.")}
    atomic.remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == left, "the only copy of `a` stays"
    (tmp_path / "a").mkdir()
    for path in (tmp_path / elsewhere / "kernels.arrow", tmp_path / elsewhere):
        os.utime(path, (0, 0))
    atomic.remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {own.name, "a", ".a.notes.new", "a.new"}
    if not is_reaped:
        os.waitpid(dead, 0)
