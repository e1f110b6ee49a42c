"""The manifest of a recorded run, written in parts, and the anchors of its clocks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chopper_core.record import manifest
from chopper_core.record.anchors import (
    BOOTTIME,
    EPOCH,
    MONOTONIC,
    Anchor,
    Offset,
    clock_steps,
    offset_between,
    take_anchor,
)
from chopper_core.util.errors import DataError
from tests.wording import Wording

SECOND = 1_000_000_000
BOOT, DAY = 50_000 * SECOND, 1_754_585_900 * SECOND


def test_the_end_puts_all_parts_into_one_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    manifest.start_manifest(run, ["torchrun", "train.py", "--name", "a b"])
    manifest.update(run, options={"skip": 10})
    manifest.update(run, options={"steps": 3})
    manifest.publish_part(run, manifest.RecordedNode("n1", samples=12))
    manifest.publish_part(
        run, manifest.RecordedProcess("n1", 77, 0, windows=[manifest.RecordedWindow(10)])
    )
    found = manifest.read_manifest(run)
    assert found is not None and found.ended_ns is None
    assert [each.host for each in found.nodes] == ["n1"]
    manifest.finish_manifest(run, 3)
    for part in (run / "nodes").iterdir():
        part.unlink()
    # A part that is newer than the manifest counts.
    manifest.publish_part(
        run, manifest.RecordedProcess("n1", 77, 0, windows=[manifest.RecordedWindow(20)])
    )
    manifest.publish_part(run, manifest.RecordedProcess("n1", 78, 1))
    found = manifest.read_manifest(run)
    assert found is not None
    assert found.command == ["torchrun", "train.py", "--name", "a b"]
    assert found.options == {"skip": 10, "steps": 3}
    assert found.returncode == 3 and found.ended_ns >= found.started_ns
    assert [(each.host, each.samples) for each in found.nodes] == [("n1", 12)]
    assert [(each.pid, each.windows) for each in found.processes] == [
        (77, [manifest.RecordedWindow(20)]),
        (78, []),
    ]
    assert found.versions["python"]


def test_a_manifest_that_is_damaged_is_named(tmp_path: Path, wording: Wording) -> None:
    manifest.start_manifest(tmp_path, ["true"])
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "n1-5.json").write_text('{"host": "n1", "pid": "five"}')
    found = manifest.read_manifest(tmp_path)
    assert found is not None and found.processes == []
    (note,) = found.notes
    wording(note, f"{tmp_path}/processes/n1-5.json")
    (tmp_path / "run.json").write_text('{"schema": "chopper.record/1", "command"')
    with pytest.raises(DataError, match=r"run\.json isn't a manifest"):
        manifest.read_manifest(tmp_path)
    assert manifest.read_manifest(tmp_path / "processes") is None


def test_only_listed_variables_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = {"NCCL_DEBUG": "INFO", "HIP_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "8"}
    secret = {"HF_TOKEN": "x", "NCCL_SECRET_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "USER": "x"}
    for name, value in (kept | secret).items():
        monkeypatch.setenv(name, value)
    found = manifest.start_manifest(tmp_path, ["true"]).environment
    assert kept.items() <= found.items()
    assert not secret.keys() & found.keys()


def test_the_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert manifest.start_manifest(tmp_path / "a", ["true"]).git == {}
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    (tmp_path / "train.py").write_text("1")
    for arguments in (("init", "-q"), ("add", "train.py"), (*who, "commit", "-qm", "m")):
        subprocess.run(("git", *arguments), check=True)
    revision = subprocess.run(
        ("git", "rev-parse", "HEAD"), capture_output=True, text=True, check=True
    ).stdout.strip()
    assert manifest.start_manifest(tmp_path / "b", ["true"]).git == {
        "revision": revision,
        "changed": False,
    }
    (tmp_path / "train.py").write_text("2")
    assert manifest.start_manifest(tmp_path / "c", ["true"]).git["changed"] is True


def anchor(at_s: float, set_s: float = 0, slept_s: float = 0, width_ns: int = 400) -> Anchor:
    at_ns = int(at_s * SECOND)
    return Anchor(
        DAY + at_ns + int(set_s * SECOND),
        BOOT + at_ns,
        BOOT + at_ns + int(slept_s * SECOND),
        width_ns,
    )


def test_offsets_are_those_of_the_tightest_anchor() -> None:
    anchors = [anchor(0, width_ns=9000), anchor(10, width_ns=500), anchor(20, width_ns=2000)]
    assert offset_between(anchors, MONOTONIC, EPOCH, DAY) == Offset(DAY - BOOT, 251, 3)
    assert offset_between(anchors, EPOCH, BOOTTIME, BOOT) == Offset(BOOT - DAY, 251, 3)
    assert offset_between([], EPOCH, BOOTTIME, BOOT) is None
    assert clock_steps(anchors) == []


def test_after_a_step_the_nearest_anchor_counts(wording: Wording) -> None:
    anchors = [anchor(0), anchor(10), anchor(20, set_s=1.5), anchor(30, set_s=1.5)]
    early = offset_between(anchors, MONOTONIC, EPOCH, DAY + 4 * SECOND)
    late = offset_between(anchors, MONOTONIC, EPOCH, DAY + 40 * SECOND)
    assert early == Offset(DAY - BOOT, 201, 2)
    assert late == Offset(DAY - BOOT + 3 * SECOND // 2, 201, 2)
    (step,) = clock_steps(anchors)
    wording(step, "+1.5 s", "10 s")
    # CLOCK_REALTIME runs on while the host sleeps, as CLOCK_BOOTTIME does.
    (slept,) = clock_steps([anchor(0), anchor(10, slept_s=60, set_s=60)])
    wording(slept, "60 s", "10 s")


def test_an_anchor_reads_the_clocks_between_two_reads() -> None:
    first, second = take_anchor(), take_anchor()
    assert first.monotonic_ns <= first.boottime_ns + 1
    elapsed = {second.of(clock) - first.of(clock) for clock in (EPOCH, MONOTONIC, BOOTTIME)}
    assert min(elapsed) > 0
