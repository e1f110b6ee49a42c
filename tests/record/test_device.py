"""`chopper record --device`: the installed device sampler runs with the command.

The stand-in for the library is a shared object that does nothing; the command writes what it would.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.record import command as recording
from chopper_core.record import device
from chopper_core.record.check import check
from chopper_core.record.command import RecordOptions, record
from chopper_core.record.manifest import read_manifest
from chopper_core.util.errors import UsageError
from tests.record.test_record import FAKE, TRAIN
from tests.wording import Wording

SCRIPT = """
import os, runpy, sys, time
sys.argv = ["train.py", "8"]
begin = os.environ["CHOPPER_START_FILE"]
assert not os.path.exists(begin)
if "CHOPPER_RECORD" in os.environ:
    runpy.run_path(TRAIN, run_name="__main__")
until = time.monotonic() + 10
while not os.path.exists(begin) and time.monotonic() < until:
    time.sleep(0.02)
with open(LOG, "a") as log:
    print(os.environ["LD_PRELOAD"], os.environ["CHOPPER_COUNTERS"], file=log)
names = os.environ["CHOPPER_COUNTERS"].split(",") if os.path.exists(begin) else ()
with open(os.environ["CHOPPER_TRACE_OUTPUT"], "w") as file:
    print("kernel_name,start_ns,end_ns,duration_ns,agent_id,queue_id,correlation_id", file=file)
    print('"gemm",1000000,11000000,10000000,4,1,1', file=file)
with open(os.environ["CHOPPER_COUNTER_OUTPUT"], "w") as file:
    for line in ["timestamp_ns,counter_name,counter_value,agent_id,DIMENSION_XCC"] * bool(names):
        print(line, file=file)
    for at in range(12):
        for name in names:
            print(f"{at * 1000000},{name},{1000 * at},4,0", file=file)
"""
COUNTERS = "SQ_WAVES,GRBM_GUI_ACTIVE,SQ_BUSY_CU_CYCLES,SQ_INSTS,SQ_INSTS_VALU"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr(recording, "_SAMPLER", ("true",))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shared object that any process here can preload: its own C library."""
    maps = Path("/proc/self/maps").read_text()
    match = re.search(r"(/\S*libc\.so\S*|/\S*ld-\S+\.so\S*)", maps)
    if match is None:
        pytest.skip("no C library to preload")
    monkeypatch.setenv("CHOPPER_DEVICE_LIB", match[1])
    return match[1]


def recorded(tmp_path: Path) -> tuple[Path, list[str], list[str]]:
    """The directory, what was said, and what the sampler was started with in each execution."""
    log, said = tmp_path / "log", list[str]()
    script = SCRIPT.replace("TRAIN", repr(TRAIN)).replace("LOG", repr(str(log)))
    options = RecordOptions(tmp_path / "run", skip=4, steps=2, device=COUNTERS)
    assert record(options, [sys.executable, "-c", script], said.append) == 0
    return options.run, said, log.read_text().splitlines()


def test_each_group_is_sampled_from_the_first_step_on(
    tmp_path: Path, library: str, wording: Wording
) -> None:
    run, said, started = recorded(tmp_path)
    first, second = "SQ_WAVES,GRBM_GUI_ACTIVE,SQ_BUSY_CU_CYCLES,SQ_INSTS", "SQ_INSTS_VALU"
    assert started == [f"{library} {first}", f"{library} {second}"]
    wording.among(said, "2 of 2", "SQ_INSTS_VALU")
    found = read_manifest(run)
    assert found is not None
    assert {name: (each.state, len(each.counters)) for name, each in found.passes.items()} == {
        "device_1": ("done", 4),
        "device_2": ("done", 1),
    }
    assert not [*run.rglob(".begin")]
    opened = open_run(str(run / "device"), jobs=1)
    assert {"SQ_WAVES", "SQ_INSTS_VALU"} <= {*opened.table.measured}
    assert any(name.endswith(".SQ_WAVES") for name in opened.measured)


def test_without_an_installed_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    assert device.library() == library
    assert any(each.name == "device sampling" for each in check(tmp_path))
    monkeypatch.setenv("CHOPPER_DEVICE_LIB", str(tmp_path / "gone.so"))
    options = RecordOptions(tmp_path / "run", device="mfma")
    with pytest.raises(UsageError, match=r"gone\.so, which isn't a file: build"):
        record(options, ["true"], print)
    monkeypatch.delenv("CHOPPER_DEVICE_LIB")
    package = tmp_path / "site" / "chopper"
    (package / "profile" / "telemetry" / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    with pytest.raises(UsageError, match="none is installed"):
        record(options, ["true"], print)
    place = package / "profile" / "telemetry" / "lib" / device.LIBRARY
    place.touch()
    assert device.library() == str(place)


def test_a_command_without_steps_is_not_sampled(
    tmp_path: Path, library: str, wording: Wording
) -> None:
    said: list[str] = []
    options = RecordOptions(tmp_path / "run", device="SQ_WAVES")
    assert record(options, ["true"], said.append) == 0
    wording.among(said, "1 of 1", "no process")
