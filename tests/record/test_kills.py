"""Whatever kills a recording, its directory opens, or a sentence says what is missing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.record.manifest import read_manifest
from chopper_core.render.info import info_text
from chopper_core.util.errors import DataError
from tests.conftest import ROOT

FAKE = Path(__file__).parent / "fake"
RECORD = """
import sys
from pathlib import Path
from chopper_core.record import command
command._SAMPLER = ("true",)
options = command.RecordOptions(Path("run"), skip=2, steps=STEPS, every=EVERY)
sys.exit(command.record(options, sys.argv[1:], print))
"""


def start(folder: Path, *words: str, steps: int = 3, every: int = 5) -> subprocess.Popen[bytes]:
    """A recording in a process group of its own, with the training in it."""
    script = RECORD.replace("STEPS", str(steps)).replace("EVERY", str(every))
    path = os.pathsep.join((str(ROOT), str(FAKE)))
    return subprocess.Popen(
        [sys.executable, "-c", script, sys.executable, str(FAKE / "train.py"), "90", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "RANK": "0"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def training_of(run: Path) -> int:
    """The process id of the training, once it has begun a window."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for path in (run / "processes").glob("*.json"):
            if '"recording"' in path.read_text():
                return int(path.stem.rpartition("-")[2])
        time.sleep(0.005)
    raise AssertionError("no window began")


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(50))
def test_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    run = tmp_path / "run"
    with start(tmp_path, "slow") as recording:
        time.sleep(chance.uniform(0.2, 1.8))
        who = chance.choice(["all", "recorder", "training"])
        with suppress(ProcessLookupError, FileNotFoundError):  # It has ended.
            if who == "all":
                os.killpg(recording.pid, signal.SIGKILL)
            elif who == "recorder":
                recording.kill()
                time.sleep(chance.uniform(0, 0.3))
                os.killpg(recording.pid, signal.SIGKILL)
            else:
                children = Path(f"/proc/{recording.pid}/task/{recording.pid}/children").read_text()
                for child in children.split():
                    os.kill(int(child), signal.SIGKILL)
        recording.wait(20)
    for trace in run.glob("step*/*.json*"):
        if trace.suffix != ".part":
            assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    if not run.exists():
        return
    try:
        opened = open_run(str(run))
    except DataError as error:
        assert len(str(error)) > 20
        assert not [*run.glob("step*/*.json.gz")]
        return
    text = str(info_text(opened))
    manifest = read_manifest(run)
    assert manifest is not None
    unwritten = [each for each in manifest.processes[0].windows if each.state != "written"]
    if manifest.ended_ns is None:
        assert "the recording has no end: it was killed, or is still running" in text
    if unwritten:
        assert f"no trace of steps {unwritten[0].first}" in text
    if manifest.ended_ns is not None and manifest.returncode:
        assert f"the recorded command ended with exit code {manifest.returncode}" in text


def test_signals_reach_the_command_which_ends_as_without(tmp_path: Path) -> None:
    with start(tmp_path, "slow", steps=80, every=0) as recording:
        training_of(tmp_path / "run")
        time.sleep(0.1)
        recording.send_signal(signal.SIGTERM)
        assert recording.wait(20) == 128 + signal.SIGTERM
        assert recording.stdout is not None
        said = recording.stdout.read().decode()
    assert "the process ended in this window" in said
    assert open_run(str(tmp_path / "run")).table.iteration.tolist()


@pytest.mark.sweep
def test_a_process_in_native_code_ends_by_sigterm_too(tmp_path: Path) -> None:
    """Its trace is lost, as no handler runs; it ends as it would have, a few seconds later."""
    with start(tmp_path, "slow", "stuck") as recording:
        process = training_of(tmp_path / "run")
        time.sleep(0.5)
        os.kill(process, signal.SIGTERM)
        assert recording.wait(20) == 128 + signal.SIGTERM
        assert recording.stdout is not None
        said = recording.stdout.read().decode()
    assert "the process was killed while recording" in said
