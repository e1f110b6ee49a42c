"""`chopper record` runs a script unchanged, and its steps, layers and ranks are right.

torch is a stand-in here (`fake/torch`); `make test-record` does the same with the real one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.ingest.other_runs import of_manifests
from chopper_core.ingest.recorded import recorded_at
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.training import TrainedSteps
from chopper_core.record import command as recording
from chopper_core.record import manifest, profile
from chopper_core.record.command import RecordOptions, record, trigger
from chopper_core.record.manifest import RecordedWindow, read_manifest
from chopper_core.record.states import recording_problems
from chopper_core.sources.trainer.step_ring import read as read_ring
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.commands.record import run as command_of_cli
from tests.conftest import ROOT
from tests.wording import Wording

FAKE = Path(__file__).parent / "fake"
TRAIN = str(FAKE / "train.py")


class Recorded:
    """A recording of the fake training, and what was said of it."""

    def __init__(self, folder: Path, *words: str, **options: Any) -> None:
        self.run = folder / "run"
        self.said: list[str] = []
        options = {"skip": 4, "steps": 2, **options}
        command = [sys.executable, TRAIN, *words]
        self.code = record(RecordOptions(self.run, **options), command, self.said.append)

    def manifest(self) -> Any:
        found = read_manifest(self.run)
        assert found is not None
        return found

    def names(self, trace: str = "step4/rank0.json.gz") -> Counter[str]:
        return annotations(self.run / trace)


def annotations(trace: Path) -> Counter[str]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return Counter(event["name"] for event in events if event["cat"] == "user_annotation")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes find the stand-in, and nothing samples."""
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(recording, "_SAMPLER", ("true",))


@pytest.mark.parametrize(
    "words",
    [
        *("", "eval", "accumulate recompute", "optimizers", "eval accumulate optimizers"),
        "compiled",
    ],
)
def test_steps_and_layers(words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = Recorded(tmp_path, "8", *words.split())
    assert found.code == 0
    assert capfd.readouterr() == ("done\n", "")
    forwards = 2 * (2 if "accumulate" in words else 1)
    calls = {"embed": forwards, "head": forwards, "Model": forwards, "attention": 3 * forwards}
    calls |= {f"Layer_{layer}": forwards for layer in range(3)}
    if "eval" in words:
        calls = {name: count + 2 * count // forwards for name, count in calls.items()}
    if "recompute" in words:
        calls["Layer_0"] += forwards
        calls["attention"] += forwards
    calls |= {"ProfilerStep#4": 1, "ProfilerStep#5": 1, "mlp": calls["attention"]}
    calls["Optimizer.step#Adam.step"] = 2 * (4 if "optimizers" in words else 1)
    assert found.names() == calls
    (process,) = found.manifest().processes
    assert process.step == 7
    assert process.layers == {str(layer): f"layers.{layer}" for layer in range(3)}
    file = "step4/rank0.json.gz"
    size = (found.run / file).stat().st_size
    assert process.windows == [RecordedWindow(4, 5, "written", file, size)]


def steps_of(run: Run) -> list[int]:
    """The steps of a run; what is outside of them belongs to none."""
    return sorted({*run.table.iteration.tolist()} - {NO_LABEL})


def test_the_run_opens_with_its_steps_and_layers(tmp_path: Path, wording: Wording) -> None:
    found = Recorded(tmp_path, "30", "slow")
    run = open_run(str(found.run))
    assert steps_of(run) == [4, 5]
    assert sorted(set(run.table.layer.tolist())) == [-1, 0, 1, 2]
    rows = run.table.operation[run.table.iteration != NO_LABEL].tolist()
    operations = {run.table.operations[code] for code in rows}
    assert operations == {"embed", "attention", "mlp", "head", "opt_step"}
    wording(found.said[-1].partition(" (")[0], "1 GPU, 2 steps", str(found.run))
    manifest = found.manifest()
    assert manifest.returncode == 0
    assert manifest.ended_ns > manifest.started_ns
    assert manifest.overhead["steps_inside"] == 2
    gpu = manifest.processes[0].device
    assert (gpu.index, gpu.pci, gpu.uuid) == (0, "0000:0c:03.0", "1-2")
    assert manifest.options == {"skip": 4, "steps": 2, "every": 0, "step_on": ""}


@pytest.mark.parametrize(("word", "code"), [("crash", 1), ("kill", 143)])
def test_a_window_that_the_process_ends_in_is_kept(
    word: str, code: int, tmp_path: Path, wording: Wording
) -> None:
    found = Recorded(tmp_path, "20", word, skip=6, steps=9)
    assert found.code == code
    assert {name for name in found.names("step6/rank0.json.gz") if "Step" in name} == {
        "ProfilerStep#6",
        "ProfilerStep#7",
    }
    wording(found.said[-2], "rank 0: steps 6–7")
    assert open_run(str(found.run)).table.iteration.tolist()


def test_a_process_that_is_gone_in_a_window_is_named(tmp_path: Path, wording: Wording) -> None:
    found = Recorded(tmp_path, "20", "exit", skip=6, steps=9)
    assert found.code == 9
    wording(found.said[-2], "rank 0: ", "steps 6–14", "killed")


def test_the_profiler_of_the_script_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wording: Wording
) -> None:
    found = Recorded(tmp_path, "8", "own-profiler")
    assert capfd.readouterr().out == "True\ndone\n"
    reason = "rank 0: not profiled, since the script started a profiler of its own"
    assert reason in found.said
    copy = found.run / "script0" / "rank0.json"
    assert copy.read_bytes() == (tmp_path / "mine.json").read_bytes()
    late = Recorded(tmp_path / "late", "8", "own-profiler", skip=1, steps=4)
    wording.among(late.said, "rank 0: steps 1–1")


def test_windows_repeat(tmp_path: Path) -> None:
    found = Recorded(tmp_path, "20", skip=3, steps=2, every=6)
    windows = [window.first for window in found.manifest().processes[0].windows]
    assert windows == [3, 9, 15]
    assert steps_of(open_run(str(found.run))) == [3, 4, 9, 10, 15, 16]


def test_other_modules_that_start_with_python_still_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    """A `sitecustomize` of the user runs, as the one that Python knows."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('custom')\nvalue = 3\n")
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{FAKE}")
    script = "import sitecustomize, sys; print(sitecustomize.value, 'torch' in sys.modules)"
    said: list[str] = []
    code = record(RecordOptions(tmp_path / "run"), [sys.executable, "-c", script], said.append)
    assert code == 0
    assert capfd.readouterr().out == "custom\n3 False\n"
    wording(said[0], "torch")


@pytest.mark.skipif(shutil.which("python3.8") is None, reason="the oldest Python of torch 2.0")
def test_the_oldest_python_of_torch(tmp_path: Path) -> None:
    said: list[str] = []
    recorded = RecordOptions(tmp_path / "run", skip=3, steps=2)
    if record(recorded, ["python3.8", TRAIN, "8"], said.append):
        pytest.skip("python3.8 doesn't start")
    assert said[-1].startswith("run with 1 GPU, 2 steps in ")


def test_a_damaged_state_costs_itself(tmp_path: Path, wording: Wording) -> None:
    manifest.start_manifest(tmp_path, ["true"])
    processes = tmp_path / "processes"
    processes.mkdir()
    (processes / "n1-1.json").write_text(
        '{"host": "n1", "pid": 1, "rank": 0, "step": 3, "windows": [{}]}'
    )
    (processes / "n1-2.json").write_text('{"host": "n1", "pid": 2, "rank": 1, "windows": [5]}')
    (processes / "n1-3.json").write_text('{"host": "n1", "pid": 3, "rank": 2, "step": 6}')
    found = read_manifest(tmp_path)
    assert found is not None
    (note,) = [*recording_problems(tmp_path, found.processes)]
    wording(note, "rank 2: ", "step 6", "disk was full")
    assert len(found.notes) == 1


def test_a_recording_without_traces_has_its_steps_and_says_why(
    tmp_path: Path, wording: Wording
) -> None:
    found = Recorded(tmp_path, "4", skip=10)
    run = open_run(str(found.run))
    assert run.side(TrainedSteps).step.tolist() == [0, 1, 2]
    wording(run.recordings[0].problems[0], "rank 0: ", "step 3")
    for ring in (found.run / "steps").iterdir():
        ring.unlink()
    with pytest.raises(DataError, match="no traces: rank 0: ended in step 3, before a window"):
        open_run(str(found.run))


def test_a_recording_without_a_gpu_opens_with_its_steps(tmp_path: Path) -> None:
    """Its traces are whole: nothing of them is called unusable."""
    found = Recorded(tmp_path, "12")
    trace = found.run / "step4" / "rank0.json.gz"
    content = json.loads(gzip.decompress(trace.read_bytes()))
    of_gpu = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
    content["traceEvents"] = [e for e in content["traceEvents"] if e.get("cat") not in of_gpu]
    trace.write_bytes(gzip.compress(json.dumps(content).encode()))
    for state in (found.run / "processes").glob("*.json"):
        about = json.loads(state.read_text())
        about.pop("device", None)
        state.write_text(json.dumps(about))
    said = manifest.update(found.run, processes=[])
    assert said.returncode == 0
    run = open_run(str(found.run))
    assert run.side(TrainedSteps).step.tolist() == list(range(11)) and not run.failed
    why = "has events of the host only: no rank used a GPU"
    assert [each for path, each in run.skipped if path == str(trace)] == [why]


def test_a_light_window_has_steps_without_modules(tmp_path: Path) -> None:
    found = Recorded(tmp_path, "8", is_light=True)
    assert {name for name in found.names() if not name.startswith("Optimizer")} == {
        "ProfilerStep#4",
        "ProfilerStep#5",
    }
    assert found.manifest().options["light"]


def test_a_job_that_is_queued_again_goes_into_numbered_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("", "part2", "part3"):
        found = Recorded(tmp_path, "12", joins=True)
        assert found.code == 0
        assert (tmp_path / "run" / part / "step4" / "rank0.json.gz").is_file()
    recorded = recorded_at([tmp_path / "run"])
    assert recorded is not None and len(recorded.manifests) == 3 and recorded.has_ended
    others = [(each.name, each.ranks, each.step) for each in of_manifests(recorded.manifests)]
    assert others == [("run", 1, 11), ("part2", 1, 11)]  # Of twelve, from 0 on.
    run = open_run(str(tmp_path / "run"))
    assert [Path(each.path).parts[-3] for each in run.sources] == ["part3"]
    assert "part2" in {Path(path).name for path, why in run.skipped if "earlier start" in why}
    assert open_run(str(tmp_path / "run" / "part2")).sources
    # A job that Slurm starts again does so without being told.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert Recorded(tmp_path, "12").code == 0 and (tmp_path / "run" / "part4" / "step4").is_dir()
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    # Training starts, whatever is in the way.
    blocked = tmp_path / "file"
    blocked.write_text("x")
    said: list[str] = []
    options = RecordOptions(blocked, joins=True)
    assert record(options, [sys.executable, "-c", "exit(3)"], said.append) == 3
    assert len(said) == 1 and said[0].startswith(f"nothing is recorded: {blocked}")
    with pytest.raises(UsageError, match="is a file; -o takes the directory to record into"):
        record(RecordOptions(blocked), ["true"], said.append)


def test_a_child_that_is_forked_in_a_window_is_no_profiler_of_the_script(
    tmp_path: Path, wording: Wording
) -> None:
    script = (
        "import os, torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    forward = lambda self, value: value\n"
        "net, adam = Net(), torch.optim.Adam()\n"
        "for step in range(8):\n    net(1)\n"
        "    if step == 4 and not os.fork():\n"
        "        for _ in range(3):\n            adam.step()\n            net(1)\n"
        "        os._exit(0)\n"
        "    adam.step()\nos.wait()\n"
    )
    said: list[str] = []
    options = RecordOptions(tmp_path / "run", skip=4, steps=2)
    assert record(options, [sys.executable, "-c", script], said.append) == 0
    assert not any("profiler" in each for each in said)
    wording(said[-1].partition(" (")[0], "1 GPU, 2 steps", str(options.run))


def test_what_keeps_hooks_out_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    record(RecordOptions(tmp_path / "run"), [sys.executable, "-I", "-c", "0"], said.append)
    assert "python -E, -I or -S" in said[0] and "chopper_core.record.profile" in said[0]


def test_jobs_one_after_the_other_leave_a_directory_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun starts a job again that failed: of steps that come twice, the first ones stay."""
    run, said = tmp_path / "run", list[str]()
    monkeypatch.delenv("RANK")
    train = f"{sys.executable} {TRAIN}"
    command = ["sh", "-c", f"{train} 8 crash; {train} 12"]
    assert record(RecordOptions(run, skip=4, steps=2, every=5), command, said.append) == 0
    assert steps_of(open_run(str(run))) == [4, 5, 9, 10]
    assert any("steps 4–5 was not written: an earlier job" in each for each in said)


def test_a_temporary_directory_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch exports a trace once: where it goes is decided before."""
    full = tmp_path / "full"
    full.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import shutil, types\n"
        "before = shutil.disk_usage\n"
        f"of = lambda at: types.SimpleNamespace(free=5) if at == {str(full)!r} else before(at)\n"
        "shutil.disk_usage = of\n"
    )
    monkeypatch.setenv("TMPDIR", str(full))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{FAKE}")
    full.chmod(0o500)
    found = Recorded(tmp_path, "8")
    assert found.names()["ProfilerStep#4"] == 1
    assert not [*full.iterdir()] and not [*found.run.glob(".chopper-*")]


def test_processes_side_by_side_without_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = tmp_path / "run", list[str]()
    monkeypatch.delenv("RANK")
    train = f"{sys.executable} {TRAIN} 60 slow"
    command = ["sh", "-c", f"{train} & {train}; wait"]
    assert record(RecordOptions(run, skip=30, steps=2), command, said.append) == 0
    assert steps_of(open_run(str(run))) == [30, 31]
    assert any("recorded these steps" in each for each in said)


LAUNCHER = f"""
import os, subprocess, sys
train = "import os, runpy, sys; os.getpid = lambda: 7; sys.argv = ['', '60', 'slow'];"
train += "runpy.run_path({TRAIN!r}, run_name='__main__')"
ranks = [dict(os.environ, RANK=str(rank)) for rank in range(2)]
both = [subprocess.Popen([sys.executable, "-c", train], env=known) for known in ranks]
sys.exit(max(each.wait() for each in both))
"""


def test_processes_of_one_number_that_share_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers: each rank has its own trace and state, and no planted link is used."""
    shared, run, said = tmp_path / "shared", tmp_path / "run", list[str]()
    shared.mkdir()
    (victim := tmp_path / "victim").write_text("mine")
    for name in (".chopper-7-30.json", ".chopper-7-30.json.tmp"):
        (shared / name).symlink_to(victim)
    monkeypatch.setenv("TMPDIR", str(shared))
    command = [sys.executable, "-c", LAUNCHER]
    assert record(RecordOptions(run, skip=30, steps=2), command, said.append) == 0
    manifest = read_manifest(run)
    assert manifest is not None
    assert sorted((each.pid, each.rank) for each in manifest.processes) == [(7, 0), (7, 1)]
    for process in manifest.processes:
        (window,) = process.windows
        trace = json.loads(gzip.decompress((run / window.file).read_bytes()))
        assert trace["distributedInfo"]["rank"] == process.rank
    assert victim.read_text() == "mine"
    assert len([*shared.iterdir()]) == 2, "nothing but what was planted"


def test_what_a_killed_process_exported_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that a state names is removed if it is one of ours, and nothing else."""
    shared, run = tmp_path / "shared", tmp_path / "run"
    shared.mkdir()
    monkeypatch.setattr(recording, "gettempdir", lambda: str(shared))
    ours, linked, others = (shared / name for name in (".chopper-a", ".chopper-b", "other"))
    for folder in (ours, others):
        folder.mkdir()
        (folder / "trace.json").touch()
    linked.symlink_to(others)
    windows = [
        RecordedWindow(4, 5, "writing", private=str(each)) for each in (ours, linked, others)
    ]
    gone = subprocess.Popen(["true"])
    gone.wait()
    state = manifest.RecordedProcess(manifest.name_of_host(), gone.pid, windows=windows)
    text = msgspec.json.encode(state).decode()
    (states := tmp_path / "states").mkdir()
    (states / "n.json").write_text(text)
    command = ["sh", "-c", f"mkdir -p run/processes; cp {states}/n.json run/processes; exit 3"]
    monkeypatch.chdir(tmp_path)
    assert record(RecordOptions(run), command, [].append) == 3
    assert not ours.exists() and [*others.iterdir()] == [others / "trace.json"]


def test_layers_that_are_lists_have_their_modules(tmp_path: Path) -> None:
    names = Recorded(tmp_path, "8", "lists").names()
    assert {name: count for name, count in names.items() if name.startswith("Layer_")} == {
        "Layer_0": 4, "Layer_1": 4, "Layer_2": 4
    }  # fmt: skip
    assert (names["Block"], names["Linear"], names["attention"]) == (6, 6, 6)


@pytest.mark.parametrize(("step_on", "steps"), [("", 16), ("Adam", 8), ("Model", 16)])
def test_steps_of_two_models(tmp_path: Path, step_on: str, steps: int) -> None:
    """The last optimizer of the class ends a step; the model's forward is in both parts."""
    found = Recorded(tmp_path, "8", "critic", step_on=step_on)
    (process,) = found.manifest().processes
    assert process.step == steps - 1
    assert found.names()["Model"] == 2 * 16 // steps


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "step_on", "reason"),
    [
        ("functional", "", "no optimizer of torch stepped, which ends a step; --step-on CLASS"),
        ("", "Missing", "no module or optimizer of the class Missing ran"),
    ],
)
def test_why_there_are_no_steps(
    tmp_path: Path, words: str, step_on: str, reason: str, wording: Wording
) -> None:
    found = Recorded(tmp_path, "8", *words.split(), step_on=step_on)
    wording(found.said[0], "rank 0: ", reason)


def test_torch_before_its_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setenv("FAKE_OLD", "1")
    found = Recorded(tmp_path, "8")
    assert found.code == 0
    wording(found.said[0], "rank 0: ", "torch 2.99.0+fake", "2.0 has")


def test_steps_without_an_optimizer(tmp_path: Path) -> None:
    found = Recorded(tmp_path, "8", "functional", step_on="Model")
    assert found.names()["Model"] == 2
    assert found.manifest().processes[0].step == 7


def test_too_few_steps_are_said(tmp_path: Path, wording: Wording) -> None:
    found = Recorded(tmp_path, "4", skip=10)
    wording(found.said[-2], "rank 0: ", "step 3", "--skip 1")


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [("no-such-program", 127, "not found"), ("/etc/passwd", 126, "not executable")],
)
def test_commands_that_dont_start(command: str, code: int, text: str, tmp_path: Path) -> None:
    said: list[str] = []
    assert record(RecordOptions(tmp_path / "run"), [command], said.append) == code
    assert said == [f"{command}: {text}"]
    assert not (tmp_path / "run").exists()


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="isn't empty"):
        record(RecordOptions(tmp_path), ["true"], print)
    with pytest.raises(UsageError, match="no step between"):
        RecordOptions(tmp_path, every=3).check()
    with pytest.raises(UsageError, match="at least 1"), profile(tmp_path, skip=0):
        pass
    with pytest.raises(UsageError, match="import torch before"), profile(tmp_path):
        pass
    with pytest.raises(DataError, match="no running process"):
        trigger(tmp_path)
    with pytest.raises(UsageError, match="no command given"):
        command_of_cli(Namespace(trigger=None, command=[], check=False))


def test_nodes_of_a_job_record_into_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    manifest.start_manifest(run, ["torchrun"])
    with pytest.raises(UsageError, match="is being recorded into"):
        record(RecordOptions(run), ["true"], print)
    monkeypatch.setattr(manifest, "name_of_host", lambda: "other")
    found = Recorded(tmp_path, "8")
    assert found.names()["ProfilerStep#4"] == 1
    # The manifest is the other node's, which still records.
    assert (found.manifest().command, found.manifest().ended_ns) == (["torchrun"], None)
    # Once that ends, too, run.json has how the command of each node ended.
    monkeypatch.undo()
    manifest.end_node(run, 3)
    ended = manifest.finish_manifest(run, 3)
    codes = {node.host: node.returncode for node in ended.nodes}
    assert codes == {"other": 0, manifest.name_of_host(): 3}
    assert json.loads((run / "run.json").read_text())["returncode"] == 3


def test_a_rank_without_a_sampler_on_its_node_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks of local rank 0 do, for their launcher; on its own node `chopper record` has."""
    started = tmp_path / "started"
    script = tmp_path / "sampler"
    script.write_text(f'#!/bin/sh\necho "$@" "$CHOPPER_RECORD" >> {started}\n')
    script.chmod(0o755)
    monkeypatch.setattr(recording, "_SAMPLER", (str(script),))
    found = Recorded(tmp_path, "8", "slow")
    own = f"{found.run} --parent {os.getpid()} "
    assert started.read_text().splitlines() == [own]
    monkeypatch.setattr(manifest, "name_of_host", lambda: "login")
    there = Recorded(tmp_path / "there", "8", "slow")
    assert started.read_text().splitlines()[1:] == [own.replace(str(found.run), str(there.run))] * 2


def test_a_trigger_records_steps_of_a_running_job(tmp_path: Path, wording: Wording) -> None:
    import threading

    said: list[str] = []

    def asked() -> None:
        while not said:
            try:
                said.append(trigger(tmp_path / "run"))
            except DataError:
                time.sleep(0.01)

    asking = threading.Thread(target=asked)
    asking.start()
    found = Recorded(tmp_path, "100", "slow", skip=1000)
    asking.join(20)
    (window,) = found.manifest().processes[0].windows
    assert window.state == "written"
    (note,) = said
    wording(note, "1 rank", f"step {window.first}")


LOOP = """
import sys, time
from pathlib import Path
import torch
from chopper_core.record import profile
sys.argv = ["train.py"]
model = torch.nn.Linear()
with profile(OUT, skip=2, steps=2) as p:
    for _ in range(8):
        model(1)
        model(1)
        p.step()
    while not any(Path(OUT, "nodes").glob("*.json")):  # The sampler starts.
        time.sleep(0.01)
p.step()
model(1)
"""


def test_a_script_records_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = LOOP.replace("OUT", repr(str(run)))
    path = os.pathsep.join((str(ROOT), str(FAKE)))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    names = annotations(run / "step2" / "rank0.json.gz")
    assert names == {"ProfilerStep#2": 1, "ProfilerStep#3": 1, "Linear": 4}
    found = read_manifest(run)
    assert found is not None
    assert (found.command, found.returncode) == (["train.py"], 0)
    assert len(found.nodes) == 1


KERNEL = """
import asyncio, code, json, sys, threading

async def serve():
    # As in ipykernel: cells run in __main__, in the thread of an event loop that goes on.
    shell, loop = code.InteractiveInterpreter(), asyncio.get_running_loop()
    for line in iter(sys.stdin.readline, ""):
        shell.runcode(compile(json.loads(line), "<cell>", "exec"))
        await asyncio.sleep(0)
        print("done", flush=True)

asyncio.run(serve())
"""
SERVER = """
import json, subprocess, sys
kernel = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=-1, stdout=-1, text=True)
for cell in sys.argv[2:]:
    kernel.stdin.write(json.dumps(cell) + chr(10))
    kernel.stdin.flush()
    assert kernel.stdout.readline() == "done" + chr(10)
kernel.stdin.close()
sys.exit(kernel.wait())
"""
CELLS = (
    "import torch\nfrom torch import nn",
    "class Net(nn.Module):\n    forward = lambda self, value: value\n"
    "net, adam = Net(), torch.optim.Adam()",
    "for step in range(5):\n    net(1)\n    adam.step()",
    "1 / 0",  # An error in a cell ends no kernel.
    "for step in range(5):\n    net(1)\n    adam.step()",
)


def test_a_kernel_of_a_notebook_is_recorded_across_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK")
    said: list[str] = []
    options = RecordOptions(tmp_path / "run", skip=4, steps=2)
    command = [sys.executable, "-c", SERVER, KERNEL, *CELLS]
    assert record(options, command, said.append) == 0
    names = annotations(tmp_path / "run" / "step4" / "rank0.json.gz")
    assert {name for name in names if "Step" in name} == {"ProfilerStep#4", "ProfilerStep#5"}
    run = open_run(str(tmp_path / "run"))
    assert not run.failed and not any("profiler" in each for each in said)
    (ring,) = (tmp_path / "run" / "steps").iterdir()
    assert read_ring(ring).step.tolist() == list(range(9))  # The last of ten has no end.
