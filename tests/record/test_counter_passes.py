"""Counter passes with stand-ins for AMD's tools: packing, resuming, refusing, ending."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from record.recorded import STAND_INS

from chopper_core.columns import METRICS
from chopper_core.record import command as recording
from chopper_core.record import manifest
from chopper_core.record.command import RecordOptions, record
from chopper_core.record.counters import SETS, accepted, check_tool, planned, run_passes
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.cli import main
from tests.wording import Wording

SLOTS = {"SQ": 8, "TCC": 4, "TCP": 4, "GRBM": 2, "TA": 2}
"""Of MI300X, by AMD's rocprof-compute."""


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("rocprofv3", "rocprofv3-avail"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        shutil.copy(STAND_INS / name, folder / name)
    python = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{python}:/usr/bin:/bin")


@pytest.mark.parametrize("spec", [*SETS, "mfma,memory,overheads", "SQ_WAVES,TA_TA_BUSY_sum,mfma"])
def test_passes_fit_the_hardware_and_count_everything_once(spec: str) -> None:
    passes = planned(spec)
    for counters in passes:
        blocks = Counter(name.partition("_")[0] for name in counters)
        assert all(count <= SLOTS[block] for block, count in blocks.items()), counters
    every = [name for counters in passes for name in counters]
    assert len(every) == len(set(every))
    wanted = {
        name
        for word in spec.split(",")
        for group in SETS.get(word, ((word,),))
        for name in group
    }  # fmt: skip
    assert set(every) == wanted


def test_sets_give_the_metrics_that_they_are_named_for() -> None:
    gives = {}
    for name, groups in SETS.items():
        # Each dispatch has a duration.
        counters = {"counter_duration_ns", *(each for group in groups for each in group)}
        of = ((metric.name, set(metric.counters)) for metric in METRICS.values())
        gives[name] = {metric for metric, needed in of if needed and needed <= counters}
    assert gives["overheads"] >= {"mfma_util_pct", "mfma_flop", "mfma_efficiency_pct"}
    assert gives["mfma"] >= {"mfma_inst_cycles", "occupancy_pct", "ipc", "valu_util_pct"}
    assert gives["memory"] >= {"l2_hit_pct", "fabric_read_gbps", "fabric_write_gbps"}
    assert gives["memory"] >= {"hbm_read_pct", "l1_l2_gbps", "vl1d_hit_pct", "counter_mhz"}


def test_parts_of_a_ratio_are_of_one_execution() -> None:
    passes = planned("memory,overheads")
    for together in (("TCC_HIT_sum", "TCC_MISS_sum"), ("TCC_EA0_RDREQ_sum", "TCC_BUBBLE_sum")):
        assert any(set(together) <= set(counters) for counters in passes)


def test_derived_counters_have_a_pass_of_their_own() -> None:
    assert planned("MfmaUtil,SQ_WAVES,OccupancyPercent") == [
        ("MfmaUtil",),
        ("SQ_WAVES",),
        ("OccupancyPercent",),
    ]


@pytest.mark.parametrize("spec", ["mfna", "", " , ", "SQ WAVES", "--pmc"])
def test_a_set_that_does_not_exist(spec: str) -> None:
    with pytest.raises(UsageError, match="the sets are overheads, mfma, memory"):
        planned(spec)


def test_what_the_gpu_refuses_is_halved_or_left_out(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    said: list[str] = []
    monkeypatch.setenv("ROCPROF", json.dumps({"limit": 2, "unknown": ["C"]}))
    assert accepted([("A", "B", "C", "D", "E")], said.append) == [("A", "B"), ("D", "E")]
    (note,) = said
    wording(note, "C is", "rocprofv3-avail")
    # A tool that accepts nothing finds no GPU: it says nothing about counters.
    monkeypatch.setenv("ROCPROF", json.dumps({"limit": 0}))
    assert accepted([("A", "B", "C")], said.append) == [("A", "B", "C")]


def test_a_directory_in_which_the_tool_reads_a_variable() -> None:
    with pytest.raises(UsageError, match="takes %…% in the name of a directory for a variable"):
        check_tool(Path("a%pid%"))


@pytest.mark.parametrize("form", ["rocpd", "csv"])
def test_check_prints_the_passes_that_would_run(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """rocprofv3 of ROCm 7 and later writes rocpd, that of ROCm 6 knows no such format."""
    tool = tmp_path / "bin" / "rocprofv3"
    if form == "csv":
        tool.write_text(tool.read_text().replace("{csv,rocpd}", "{csv,json}"))
    words = ["--check", "-o", str(tmp_path / "run"), "--counters", "SQ_WAVES,MfmaUtil"]
    assert main(["record", *words, "--", "torchrun", "train.py", "a b"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("pass ")]
    assert len(lines) == 2 and not (tmp_path / "run").exists()
    for number, (counter, line) in enumerate(zip(["SQ_WAVES", "MfmaUtil"], lines, strict=True), 1):
        assert line.startswith(f"pass {number}  rocprofv3 --pmc {counter} --kernel-trace")
        assert f"-f {form} " in line and line.endswith("-- torchrun train.py 'a b'")
        assert f"-d RUN/counters/pass_{number} " in line


def test_without_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_tool(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="rocprofiler-sdk"):
        check_tool(tmp_path)


def test_passes_of_a_folder_that_was_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a recorded run"):
        run_passes(tmp_path, ["false"], [("A",)], os.environ, print)


def begun(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    manifest.start_manifest(run, ["python"])
    manifest.finish_manifest(run, 0)
    return run


def test_passes_are_resumed_and_one_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wording: Wording
) -> None:
    run, log = begun(tmp_path), tmp_path / "log"
    command = [sys.executable, "-c", f"open({str(log)!r}, 'a').write('x')"]
    passes = [("A",), ("B",), ("C",)]
    said: list[str] = []
    refusing = {**os.environ, "ROCPROF": json.dumps({"refuse": ["B"]})}
    run_passes(run, command, passes, refusing, said.append)
    wording(said[2], "pass 2 of 3", "signal 6")
    found = manifest.read_manifest(run)
    assert found is not None
    assert {name: each.state for name, each in found.passes.items()} == {
        "pass_1": "done",
        "pass_2": "failed",
        "pass_3": "done",
    }
    assert sorted(path.name for path in (run / "counters").glob("pass_*")) == ["pass_1", "pass_3"]
    assert len(list((run / "counters" / "pass_1").iterdir())) == 3
    assert log.read_text() == "xx"
    # Again, now that B works: A and C are there already.
    run_passes(run, command, passes, os.environ, said.append)
    assert log.read_text() == "xxx"
    found = manifest.read_manifest(run)
    assert found is not None and found.passes["pass_2"].state == "done"
    # Others get numbers of their own.
    run_passes(run, command, [("A",), ("D",)], os.environ, said.append)
    assert (run / "counters" / "pass_4").is_dir()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("settings", "code", "why"),
    [({"silent": True}, 0, "rocprofv3 wrote nothing"), ({}, 7, "exit code 7")],
)
def test_why_a_pass_failed(
    tmp_path: Path, settings: dict[str, object], code: int, why: str
) -> None:
    run = begun(tmp_path)
    environ = {**os.environ, "ROCPROF": json.dumps(settings)}
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    run_passes(run, command, [("A",)], environ, lambda _: None)
    found = manifest.read_manifest(run)
    assert found is not None and found.passes["pass_1"].reason == why
    assert not (run / "counters" / "pass_1").exists()


def test_ctrl_c_ends_the_passes(tmp_path: Path) -> None:
    run, log = begun(tmp_path), tmp_path / "log"
    command = [sys.executable, "-c", f"open({str(log)!r}, 'w'); import time; time.sleep(60)"]

    def interrupt() -> None:
        while not log.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    # What a shell runs in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        run_passes(run, command, [("A",), ("B",)], os.environ, lambda _: None)
    finally:
        signal.signal(signal.SIGINT, before)
    found = manifest.read_manifest(run)
    assert found is not None
    assert {name: each.reason for name, each in found.passes.items()} == {"pass_1": "interrupted"}


MEETS = """
import os, sys, time
from pathlib import Path
out, node = Path(os.environ["OUT"]), sys.argv[1]
number = len([*out.glob(f"{node}-*")])
(out / f"{node}-{number}").touch()
until = time.monotonic() + 15
while len([*out.glob(f"*-{number}")]) < 2 and time.monotonic() < until:
    time.sleep(0.01)
sys.exit(len([*out.glob(f"*-{number}")]) != 2)
"""
"""A command that needs that of the other node, as by torchrun."""


def test_a_pass_counts_on_one_node_while_the_others_run_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wording: Wording
) -> None:
    run, said = tmp_path / "run", dict[str, list[str]]()
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(recording, "_SAMPLER", ("true",))
    monkeypatch.setattr(recording, "_POLL_S", 0.05)
    monkeypatch.setattr(manifest, "name_of_host", lambda: threading.current_thread().name)
    codes = {}

    def node(name: str, spec: str) -> None:
        options = RecordOptions(run, counters=spec)
        command = [sys.executable, "-c", MEETS, name]
        codes[name] = record(options, command, said.setdefault(name, []).append)

    def both(spec: str) -> None:
        nodes = [threading.Thread(target=node, args=("first", "SQ_WAVES,MfmaUtil"), name="first")]
        nodes.append(threading.Thread(target=node, args=("other", spec), name="other"))
        nodes[0].start()
        while manifest.read_manifest(run) is None:
            time.sleep(0.01)
        nodes[1].start()
        for each in nodes:
            each.join()

    both("SQ_WAVES,MfmaUtil")
    assert codes == {"first": 0, "other": 0}
    found = manifest.read_manifest(run)
    assert found is not None
    assert [each.state for each in found.passes.values()] == ["done", "done"]
    # The command ran three times on each node, and each time with the other's.
    assert len([*(tmp_path / "out").iterdir()]) == 6
    (note,) = said["other"][-2:-1]
    wording(note, "first node", "MfmaUtil")
    # A node that isn't to take part is named, and holds nothing up for long.
    shutil.rmtree(run)
    monkeypatch.setattr(recording, "_PASSES_S", 0.2)
    both("")
    (why,) = (each for each in said["first"] if each.startswith("counters are not collected"))
    wording(why, "other ", "--counters")


ROCTX = """
#include <stdio.h>
#include <stdlib.h>
static void note(const char *what, const char *name) {
    FILE *file = fopen(getenv("ROCTX_LOG"), "a");
    fprintf(file, "%s%s\\n", what, name);
    fclose(file);
}
int roctxProfilerResume(unsigned long long thread) { note("resume", ""); return 0; }
int roctxProfilerPause(unsigned long long thread) { note("pause", ""); return 0; }
int roctxRangePushA(const char *name) { note("+", name); return 0; }
int roctxRangePop(void) { note("-", ""); return 0; }
"""
TRAIN = Path(__file__).parent / "fake" / "train.py"


@pytest.mark.skipif(shutil.which("cc") is None, reason="builds a stand-in for roctx with cc")
def test_passes_have_the_steps_and_ranges_of_the_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wording: Wording
) -> None:
    log, run = tmp_path / "roctx.log", tmp_path / "run"
    monkeypatch.setenv("ROCTX_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", str(TRAIN.parent))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(recording, "_SAMPLER", ("true",))
    (tmp_path / "lib").mkdir()
    (tmp_path / "roctx.c").write_text(ROCTX)
    library = tmp_path / "lib" / "librocprofiler-sdk-roctx.so"
    compiler = ("cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "roctx.c"))
    subprocess.run(compiler, check=True)
    said: list[str] = []
    options = RecordOptions(run, skip=4, steps=2, counters="SQ_WAVES")
    command = [sys.executable, str(TRAIN), "8", "save"]
    monkeypatch.setenv("OUT", str(tmp_path))
    assert record(options, command, said.append) == 0
    wording(said[-1].partition(" (")[0], "1 GPU, 2 steps, 1 counter", str(run))
    # It ended with its window, and not with the job.
    (state,) = (run / ".counters" / "processes").glob("*.json")
    assert json.loads(state.read_text())["step"] == 6
    lines = log.read_text().splitlines()
    assert lines[0] == "resume"
    assert lines[-1] == "pause"
    assert sum(line.startswith("+") for line in lines) == lines.count("-")
    layers = [f"+Layer_{layer}" for layer in range(3)]
    steps = [line for line in lines if line.startswith(("+Layer", "+Profiler"))]
    assert steps == ["+ProfilerStep#4", *layers, "+ProfilerStep#5", *layers]
    # The processes of the pass aren't those of the run.
    found = manifest.read_manifest(run)
    assert found is not None
    assert [each.windows[0].state for each in found.processes] == ["written"]
    # A directory that has its trace gets the passes that it lacks.
    more = RecordOptions(run, skip=4, steps=2, counters="SQ_WAVES,MfmaUtil")
    assert record(more, command, said.append) == 0
    wording(said[-1].partition(" (")[0], "1 GPU, 2 steps, 2 counter", str(run))
    found = manifest.read_manifest(run)
    assert found is not None
    assert [each.counters for each in found.passes.values()] == [["SQ_WAVES"], ["MfmaUtil"]]
    # A pass that counts no step is none, whatever it writes.
    short = RecordOptions(run, skip=30, steps=2, counters="SQ_BUSY_CYCLES")
    assert record(short, command, said.append) == 0
    found = manifest.read_manifest(run)
    assert found is not None
    wording(found.passes["pass_3"].reason, "step 7")
