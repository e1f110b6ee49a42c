"""What the processes of a recording say of themselves, as sentences and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from chopper_core.model.units import Unit, scaled_text
from chopper_core.record.hooks.state import EXPORTS, LOADED, PROCESSES, PYTHON
from chopper_core.record.manifest import (
    RING,
    STEPS,
    Manifest,
    RecordedProcess,
    RecordedWindow,
)

API: Final = (
    "`with chopper_core.record.profile(RUN) as p:` in the script, with `p.step()`, records it"
)
_MAX_NAMED: Final = 4


def windows_of(states: Sequence[RecordedProcess]) -> list[tuple[int, int, int, int]]:
    """Each window: first and last step, ranks that have written it, and their bytes."""
    found: dict[int, list[RecordedWindow]] = {}
    for window in (each for state in states for each in state.windows):
        found.setdefault(window.first, []).append(window)
    return [
        (first, max(each.last for each in own), sum(each.file != "" for each in own),
         sum(each.bytes for each in own))
        for first, own in sorted(found.items())
    ]  # fmt: skip


def overhead(states: Sequence[RecordedProcess]) -> dict[str, int | float]:
    """The step inside windows against outside, medians over ranks; {} if one of them is unknown."""
    needed = {"inside", "outside", "inside_ns", "outside_ns"}
    times = [state.step_times for state in states if needed <= set(state.step_times)]
    if not times:
        return {}
    inside_ns, outside_ns = (
        int(median(each[where] for each in times)) for where in ("inside_ns", "outside_ns")
    )
    return {
        "inside_ns": inside_ns,
        "outside_ns": outside_ns,
        "pct": round(100 * (inside_ns / max(outside_ns, 1) - 1), 1),
        "ranks": len(times),
        "steps_inside": sum(each["inside"] for each in times),
        "steps_outside": sum(each["outside"] for each in times),
        "export_ns": max(each.get("export_ns", 0) for each in times),
    }


def state_summary(run: Path, manifest: Manifest) -> str:
    """The line that ends a recording: what it has, and the command that opens it."""
    states = manifest.processes
    ranks = [state for state in states if any(each.file for each in state.windows)]
    with_gpu = sum(state.device is not None for state in ranks)
    steps = sum(last - first + 1 for first, last, written, _ in windows_of(states) if written)
    own = len([*run.glob(f"{EXPORTS}*/*.json*")])
    of = "GPU" if with_gpu == len(ranks) else "rank"
    held = [count_text(len(ranks), of), count_text(steps, "step")] if ranks else []
    held += [f"{count_text(own, 'trace')} of the script's own profiler"] if own else []
    rings = len([*(run / STEPS).glob(f"*{RING}")])
    if rings and not ranks:
        held.append(f"the time of each step of {count_text(rings, 'process')}")
    held += ["telemetry"] if any(node.samples for node in manifest.nodes) else []
    passes = sum(each.state == "done" for each in manifest.passes.values())
    held += [count_text(passes, "counter pass")] if passes else []
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    at = f"{run} ({scaled_text(size, Unit.BYTES)})"
    if not held:
        return f"nothing recorded but the processes and clocks, in {at}"
    opens = f"chopper {run} opens it"
    if ranks and not with_gpu and not own:
        opens = f"no rank used a GPU: its traces have host events only, {opens} without them"
    return f"run with {', '.join(held)} in {at}; {opens}"


def count_text(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 'es' if of.endswith('s') else 's'}"


def recording_problems(
    run: Path, states: Sequence[RecordedProcess], *, has_windows: bool = True
) -> Iterator[str]:
    """What is missing in a recording, and what to do about it."""
    ranks = [state for state in states if state.step >= 0]
    if not states and not (run / PROCESSES / LOADED).exists():
        if (run / PROCESSES / PYTHON).exists():
            yield "the command's Python doesn't import torch: it has no steps to record"
        else:
            yield (
                "no Python of the command has Chopper's hooks: it runs none, or python -E, -I or "
                "-S, a container without this directory, or a launcher that resets PYTHONPATH "
                f"keeps them out; {API}"
            )
    elif not ranks and not any(state.stood_down for state in states):
        yield f"no process ran a forward with gradients: nothing to record; {API}"
    world = max((state.world_size or 0 for state in states), default=0)
    if ranks and len(ranks) < world:
        others = "the others have no hooks, or record into another directory"
        yield f"{len(ranks)} of {world} ranks are recorded here; {others}"
    by_sentence: dict[str, list[RecordedProcess]] = {}
    for state in states:
        for sentence in _problems_of(state):
            by_sentence.setdefault(sentence, []).append(state)
    for sentence, who in by_sentence.items():
        yield f"{_named(who)}: {sentence}"
    without = [state for state in ranks if not state.windows and not state.stood_down]
    ended = [state for state in without if state.state == "ended"]
    if ended and has_windows:
        done = max(state.step for state in ended)
        earlier = f"--skip {max(1, done // 2)} begins it earlier"
        yield f"{_named(ended)}: ended in step {done}, before a window; {earlier}"
    if killed := [state for state in without if state.state != "ended"]:
        step = max(state.step for state in killed)
        yield f"{_named(killed)}: no word after step {step}: killed, or the disk was full"


def _problems_of(state: RecordedProcess) -> Iterator[str]:
    if state.errors:
        yield f"recording stopped by an error: {'; '.join(state.errors)}"
    elif state.stood_down and all(each.reason != state.stood_down for each in state.windows):
        yield f"not profiled, since {state.stood_down}"
    for window in (each for each in state.windows if each.first >= 0):
        steps = f"steps {window.first}–{window.last}"
        if window.state == "not written":
            yield f"the trace of {steps} was not written: {window.reason}"
        elif window.state != "written":
            yield f"no trace of {steps}: the process was killed while {window.state}"
        elif window.reason:
            yield f"{steps}: {window.reason}"


def _named(states: Sequence[RecordedProcess]) -> str:
    ranks = sorted(state.rank for state in states if state.rank is not None)
    if not ranks:
        return f"process {states[0].pid}" if len(states) == 1 else f"{len(states)} processes"
    named = ", ".join(map(str, ranks[:_MAX_NAMED])) + (", …" if len(ranks) > _MAX_NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
