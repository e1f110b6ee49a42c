"""Two ranks of real torch under `chopper record`: `make test-record TORCH=PYTHON`.

Each script runs twice, as it is and recorded: its exit code and output stay the same, and the trace
of each rank has the steps, layers and modules that follow from the script.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.table import Phase
from chopper_core.record.manifest import Manifest, read_manifest
from chopper_core.sources.trainer.step_ring import read as read_ring
from tests.conftest import ROOT

HERE = Path(__file__).parent
PYTHON = os.environ.get("CHOPPER_TORCH", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="CHOPPER_TORCH names no Python with torch; make test-record TORCH=PYTHON"
)
LAYERS = 3
STEPS, SKIP, TRACED = 14, 5, 3
BLOCK = ("input_norm", "self_attn", "self_attn.qkv_proj", "self_attn.o_proj", "post_norm", "mlp")


def run(folder: Path, script: str, *arguments: str, recorded: bool) -> tuple[int, str, str]:
    """Exit code and output of a script on two ranks; lines in order, without numbers that vary."""
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"{script}.py"]
    command = [*torchrun, str(STEPS), *arguments]
    if recorded:
        options = ["-o", str(folder / "run"), "--skip", str(SKIP), "--steps", str(TRACED), "--"]
        command = [sys.executable, "-m", "chopper_tui", "record", *options, *command]
    found = subprocess.run(
        command,
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(ROOT) if recorded else "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return found.returncode, lines(found.stdout), found.stderr


def lines(output: str) -> str:
    return "\n".join(sorted(output.splitlines()))


def without_numbers(output: str) -> set[str]:
    """The lines of standard error, without times, process ids, and rules as long as these.

    torchrun names the ranks that still run when another one has failed: which is a matter of time.
    """
    return {
        re.sub(r"0x\w+|\d+|[-=]{3,}", "#", line)
        for line in output.splitlines()
        if line.strip() and "closing signal SIGTERM" not in line
    }


def annotations(trace: Path) -> tuple[int, Counter[str]]:
    """The rank in a trace, and its annotations."""
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rb") as file:
        content = json.load(file)
    events = content["traceEvents"]
    names = (each["name"] for each in events if each.get("cat") == "user_annotation")
    return content["distributedInfo"]["rank"], Counter(names)


@pytest.fixture
def check(tmp_path: Path):
    def checked(script: str, *arguments: str, code: int = 0) -> tuple[list[Counter[str]], Manifest]:
        """The annotations of each rank of a recorded script, and its manifest."""
        plain = run(tmp_path, script, *arguments, recorded=False)
        recorded = run(tmp_path, script, *arguments, recorded=True)
        assert plain[0] == recorded[0] == code, recorded[2]
        assert plain[1] == recorded[1]
        own = without_numbers(recorded[2]) - without_numbers(plain[2])
        assert {line for line in own if not line.startswith("chopper: ")} == set()
        found = read_manifest(tmp_path / "run")
        assert found is not None
        assert found.returncode == code
        print(*(line for line in recorded[2].splitlines() if "chopper" in line), found.overhead)
        ranks = [annotations(tmp_path / "run" / f"step{SKIP}" / f"rank{n}.json.gz") for n in (0, 1)]
        assert [rank for rank, _ in ranks] == [0, 1]
        assert sorted(process.rank for process in found.processes) == [0, 1]
        assert not any(process.errors for process in found.processes)
        rings = [read_ring(path) for path in (tmp_path / "run" / "steps").glob("*.ring")]
        assert sorted(set(ring.rank.tolist()).pop() for ring in rings) == [0, 1]
        for ring in rings:
            assert ring.step.tolist() == list(range(len(ring)))
            assert len(ring) < STEPS and (ring.figures["step_ns"] > 0).all()
        return [names for _, names in ranks], found

    return checked


def steps(names: Counter[str]) -> list[str]:
    return sorted(name for name in names if name.startswith("ProfilerStep"))


def window(last: int = SKIP + TRACED - 1) -> list[str]:
    return [f"ProfilerStep#{step}" for step in range(SKIP, last + 1)]


def calls(names: Counter[str], forwards: int) -> None:
    """Each module is called once in a forward, those of a layer once per layer."""
    for name in ("embed_tokens", "norm", "lm_head", *(f"Layer_{each}" for each in range(LAYERS))):
        assert names[name] == forwards, name
    for name in BLOCK:
        assert names[name] == LAYERS * forwards, name


def test_ddp(check) -> None:
    for names in check("ddp")[0]:
        assert steps(names) == window()
        calls(names, TRACED)
        assert names["mlp.up_proj"] == names["mlp.down_proj"] == LAYERS * TRACED


def test_fsdp2_with_recomputation(check) -> None:
    found, manifest = check("fsdp2")
    for names in found:
        assert steps(names) == window()
        calls(names, TRACED)
        # What is in mlp.forward runs once more in backward.
        assert names["mlp.up_proj"] == names["mlp.down_proj"] == 2 * LAYERS * TRACED
        assert names["FSDP::pre_forward (model.layers.2)"] == TRACED
    layers = {str(each): f"model.layers.{each}" for each in range(LAYERS)}
    assert [process.layers for process in manifest.processes] == [layers, layers]
    assert manifest.overhead["ranks"] == 2
    assert manifest.overhead["steps_inside"] == 2 * TRACED
    assert manifest.overhead["inside_ns"] > 0
    assert manifest.overhead["outside_ns"] > 0


def test_accumulation_with_two_optimizers(check) -> None:
    for names in check("accumulate")[0]:
        assert steps(names) == window()
        calls(names, 4 * TRACED)


@pytest.mark.parametrize(
    ("style", "forwards"), [("deepspeed", 4), ("megatron", 4), ("torchtitan", 1), ("trl", 5)]
)
def test_loops_of_libraries(check, style: str, forwards: int) -> None:
    """TRL generates by three forwards, and asks a reference model by one: without gradients."""
    for names in check("loops", style)[0]:
        assert steps(names) == window()
        assert names["lm_head"] == names["embed_tokens"] == forwards * TRACED
        assert names["self_attn.qkv_proj"] == LAYERS * forwards * TRACED


@pytest.mark.parametrize("library", ["deepspeed", "torchtitan", "trl"])
def test_loops_by_the_libraries_themselves(library: str, tmp_path: Path) -> None:
    """Where TORCH has them: ZeRO-2 of DeepSpeed, an optimizer that steps others, a Trainer.

    Each accumulates two forwards per step.
    """
    if subprocess.run([PYTHON, "-c", f"import {library}"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no {library}")
    plain = run(tmp_path, "libraries", library, recorded=False)
    code, output, said = run(tmp_path, "libraries", library, recorded=True)
    assert code == plain[0] == 0, said
    ends = re.compile(r"^.*\bdone [\d.]+$", re.MULTILINE)
    assert ends.findall(output) == ends.findall(plain[1]) and len(ends.findall(output)) == 2
    found = read_manifest(tmp_path / "run")
    assert found is not None and not any(process.errors for process in found.processes)
    for rank in (0, 1):
        own, names = annotations(tmp_path / "run" / f"step{SKIP}" / f"rank{rank}.json.gz")
        assert own == rank and steps(names) == window()
        assert names["embed_tokens"] == names["Layer_0"] == names["Layer_1"] == 2 * TRACED
    rings = [read_ring(path) for path in (tmp_path / "run" / "steps").glob("*.ring")]
    for ring in rings:
        assert ring.step.tolist() == list(range(len(ring))) and STEPS - 2 <= len(ring) <= STEPS
    assert len(rings) == 2


def with_kernels(trace: Path) -> None:
    """Put a kernel at each operator that runs no other: a trace as of a GPU, with torch's host."""
    content = json.loads(gzip.decompress(trace.read_bytes()))
    events = content["traceEvents"]
    operators = [each for each in events if each.get("cat") == "cpu_op"]
    operators.sort(key=lambda each: (each["tid"], each["ts"], -each["dur"]))
    leaves = [
        each
        for each, after in zip(operators, [*operators[1:], {"tid": -1}], strict=True)
        if after["tid"] != each["tid"] or after["ts"] >= each["ts"] + each["dur"]
    ]
    free_us = 0.0
    for number, each in enumerate(sorted(leaves, key=lambda each: each["ts"])):
        free_us = max(free_us, each["ts"] + 2) + 3
        link = {"correlation": 10**6 + number, "External id": each["args"]["External id"]}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": link}
        place = {"ts": each["ts"], "dur": each["dur"] / 2, "pid": each["pid"], "tid": each["tid"]}
        kernel = {"ph": "X", "cat": "kernel", "name": each["name"], "ts": free_us - 3, "dur": 3.0}
        events.append({**call, **place})
        events.append({**kernel, "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7, **link}})
    content["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    trace.write_bytes(gzip.compress(json.dumps(content).encode()))


def test_chopper_labels_what_was_recorded(check, tmp_path: Path) -> None:
    """With a kernel at each operator: all layers alike, all steps alike, modules as operations."""
    check("ddp")
    for rank in (0, 1):
        with_kernels(tmp_path / "run" / f"step{SKIP}" / f"rank{rank}.json.gz")
    table = open_run(str(tmp_path / "run")).table
    steps = Counter(table.iteration.tolist())
    assert set(steps) == {5, 6, 7}
    assert len(set(steps.values())) == 1
    layers = Counter(table.layer.tolist())
    assert set(layers) == {-1, 0, 1, 2}
    assert layers[0] == layers[1] == layers[2] > 500
    named = {table.operations[code] for code in table.operation.tolist()}
    assert {"embed_tokens", "input_norm", "self_attn.qkv_proj", "mlp.up_proj", "norm"} <= named
    product = table.operations.index("mlp.up_proj")
    phases = {table.phase[row] for row in (table.operation == product).nonzero()[0].tolist()}
    assert phases == {Phase.FORWARD, Phase.BACKWARD}


def test_evaluation(check) -> None:
    """After odd steps come two forwards without gradients: 5 and 7 are in the window."""
    for names in check("evaluate")[0]:
        assert steps(names) == window()
        calls(names, TRACED + 2 * 2)


def test_a_compiled_model(check) -> None:
    for names in check("compiled", "model")[0]:
        assert steps(names) == window()
        assert names["CausalLM"] == TRACED


def test_layers_compiled_in_place(check) -> None:
    for names in check("compiled", "layers")[0]:
        assert steps(names) == window()
        for name in ("embed_tokens", "Layer_0", "Layer_1", "Layer_2", "norm", "lm_head"):
            assert names[name] == TRACED, name


def test_a_model_compiled_in_place(check) -> None:
    """It calls no hooks: steps end with those of the optimizer."""
    found, manifest = check("compiled", "in-place")
    for names in found:
        assert steps(names) == window()
        assert names["Optimizer.step#AdamW.step"] == TRACED
    assert {process.step for process in manifest.processes} == {STEPS - 3}


def test_the_profiler_of_the_script(tmp_path: Path) -> None:
    plain = run(tmp_path, "own_profiler", str(tmp_path), recorded=False)
    code, output, said = run(tmp_path, "own_profiler", str(tmp_path), recorded=True)
    assert (code, output) == (0, plain[1])
    assert "ranks 0, 1: not profiled, since the script started a profiler of its own" in said
    for rank in (0, 1):
        mine = tmp_path / f"mine{rank}.json"
        assert annotations(mine)[0] == rank
        assert (tmp_path / "run" / "script0" / f"rank{rank}.json").read_bytes() == mine.read_bytes()


def test_a_crash(check) -> None:
    """Rank 1 raises in step 7, the last one of the window; rank 0 waits for it in step 8."""
    first, second = check("crash", code=1)[0]
    assert steps(second) == window(7)
    assert steps(first) == window(7)


def test_sigterm(check) -> None:
    """The ranks kill themselves in step 7: torchrun reports it as without a recording."""
    for names in check("killed", code=1)[0]:
        assert steps(names) == window(7)
