"""Counter passes: the command again under rocprofv3, once per group that the hardware counts.

Counting runs kernels one by one, so that a pass is slower than the traced run; times come from the
trace. A pass writes into a hidden folder that gets its name at the end: what is there is whole.
Passes that are there aren't run again, and one that fails leaves the others.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chopper_core.record import manifest
from chopper_core.record.hooks.state import VARIABLE
from chopper_core.util.errors import DataError, UsageError

FOLDER: Final = "counters"
TOOL: Final = "rocprofv3"
CHECKER: Final = "rocprofv3-avail"
_LIBRARY: Final = "librocprofiler-sdk-roctx.so"
STATES: Final = ".counters"
"""Where processes of a pass write their states: those of the run are of the traced execution."""
_REGIONS: Final = "--selected-regions"
_TOGETHER: Final = "can be collected together"
_CHECK_S: Final = 60.0
_END_S: Final = 30.0
_SLOWER: Final = 20.0
"""A pass may take so many times as long as the traced run, and at least as long as the next."""
_LEAST_S: Final = 900.0
_OVERHEADS: Final = (
    *("GRBM_GUI_ACTIVE", "SQ_VALU_MFMA_BUSY_CYCLES"),
    *(f"SQ_INSTS_VALU_MFMA_MOPS_{kind}" for kind in ("F8", "F16", "BF16", "F32", "F64")),
)
SETS: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "overheads": (_OVERHEADS,),
    "mfma": (
        (*_OVERHEADS, "SQ_INSTS_MFMA", "SQ_INSTS_VALU_MFMA_MOPS_I8"),
        (
            *("GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_WAVE_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_INSTS"),
            *("SQ_INSTS_VALU", "SQ_ACTIVE_INST_VALU", "SQ_INST_CYCLES_SALU"),
        ),
    ),
    "memory": (
        ("GRBM_GUI_ACTIVE", "TCC_HIT_sum", "TCC_MISS_sum", "TCC_REQ_sum"),
        (
            *("TCC_BUBBLE_sum", "TCC_EA0_RDREQ_sum"),
            *("TCC_EA0_RDREQ_32B_sum", "TCC_EA0_RDREQ_DRAM_sum"),
        ),
        ("TCC_EA0_WRREQ_sum", "TCC_EA0_WRREQ_64B_sum"),
        (
            *("TCP_TCC_READ_REQ_sum", "TCP_TCC_WRITE_REQ_sum"),
            *("TCP_TCC_ATOMIC_WITH_RET_REQ_sum", "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum"),
        ),
        ("TCP_TOTAL_CACHE_ACCESSES_sum",),
    ),
}
"""Counters by what they are for, in groups that belong into one pass: ratios of one execution."""
_SLOTS: Final = {
    "SQ": 8,
    "SQC": 8,
    "TA": 2,
    "TD": 2,
    "TCP": 4,
    "TCC": 4,
    "CPC": 2,
    "CPF": 2,
    "SPI": 2,
    "GRBM": 2,
}
"""Counters of a block of gfx942 that count at a time; those of SQC are SQ's."""
_BLOCK: Final = re.compile(r"(SQ|SQC|TA|TD|TCP|TCC|CPC|CPF|SPI|GRBM)_\w+")
_NAME: Final = re.compile(r"\w+(?:\[\d+\])?")
Passes = list[tuple[str, ...]]


def planned(spec: str) -> Passes:
    """The passes for sets and counters with commas between them; raises UsageError.

    Counters that share a block fill its slots. One of an unknown block, such as a derived one, has
    a pass of its own.
    """
    passes: Passes = []
    for word in filter(None, (each.strip() for each in spec.split(","))):
        if word not in SETS and (word.islower() or not _NAME.fullmatch(word)):
            raise UsageError(f"no set of counters {word!r}; the sets are {', '.join(SETS)}")
        for group in SETS.get(word, ((word,),)):
            _place(passes, [name for name in group if not any(name in each for each in passes)])
    if not passes:
        raise UsageError(f"--counters names no counter; the sets are {', '.join(SETS)}")
    return passes


def _place(passes: Passes, group: Sequence[str]) -> None:
    """Put a group of counters into the first pass with room for it, else into a new one."""
    if not group:
        return
    for at, known in enumerate(passes):
        if _fits((*known, *group)):
            passes[at] = (*known, *group)
            return
    if len(group) > 1 and not _fits(group):
        for name in group:
            _place(passes, [name])
    else:
        passes.append(tuple(group))


def _fits(counters: Sequence[str]) -> bool:
    blocks = [match[1] if (match := _BLOCK.fullmatch(name)) else "" for name in counters]
    used = Counter("SQ" if block == "SQC" else block for block in blocks)
    return len(counters) == 1 or all(count <= _SLOTS.get(block, 0) for block, count in used.items())


def accepted(passes: Passes, say: Callable[[str], None]) -> Passes:
    """The passes as this node's GPUs can count them, by AMD's own tool; unchanged without it.

    A set that is refused is halved; a counter that is refused alone is left out, and named.
    """
    if shutil.which(CHECKER) is None or not _is_accepted(["GRBM_COUNT"]):
        return passes
    found: Passes = []
    waiting = list(passes)
    while waiting:
        counters = waiting.pop(0)
        if _is_accepted(counters):
            found.append(counters)
        elif len(counters) > 1:
            half = len(counters) // 2
            waiting[:0] = [counters[:half], counters[half:]]
        else:
            say(f"{counters[0]} is left out: {CHECKER} says that this GPU can't count it")
    return found


def _is_accepted(counters: Sequence[str]) -> bool:
    return _TOGETHER in output_of((CHECKER, "pmc-check", *counters))


def output_of(command: Sequence[str]) -> str:
    """What a tool prints; '' where it fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_CHECK_S,
            stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""


def marker_library() -> str:
    """roctx's library next to a rocprofv3 that counts in its regions alone; '' without."""
    tool = shutil.which(TOOL)
    library = Path(tool).resolve().parent.parent / "lib" / _LIBRARY if tool else Path()
    is_there = library.is_file() and _REGIONS in output_of((TOOL, "--help"))
    return str(library) if is_there else ""


def check_tool(run: Path) -> None:
    """Raise UsageError where rocprofv3 is missing, or would write to another directory."""
    if "%" in str(run.absolute()):
        raise UsageError(
            f"{run}: rocprofv3 takes %…% in the name of a directory for a variable; give a "
            "directory without % with -o"
        )
    if shutil.which(TOOL) is None:
        raise UsageError(
            "--counters needs rocprofv3, which isn't on the PATH; it comes with ROCm's package "
            "rocprofiler-sdk, in /opt/rocm/bin"
        )


def run_passes(
    run: Path,
    command: Sequence[str],
    passes: Passes,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Run the passes that a recording lacks. Raises DataError.

    With hooks in `environ` only their windows are counted, and a pass without one failed. Ctrl-C
    ends the pass that runs and leaves out the others.
    """
    known = manifest.read_manifest(run)
    if known is None:
        raise DataError(f"{run} is not a recorded run")
    limit_s = _LEAST_S
    if known.ended_ns:
        limit_s = max(limit_s, _SLOWER * (known.ended_ns - known.started_ns) / 1e9)
    names = {tuple(each.counters): name for name, each in known.passes.items()}
    for at, counters in enumerate(passes, 1):
        name = names.setdefault(counters, f"pass_{len(names) + 1}")
        if name in known.passes and known.passes[name].state == "done":
            continue
        say(f"counter pass {at} of {len(passes)}: {' '.join(counters)}")
        state = manifest.RecordedPass(list(counters))
        manifest.update(run, passes={name: state})
        began_s, is_interrupted = time.monotonic(), False
        try:
            reason = _run_pass(run / FOLDER / name, command, counters, environ, limit_s, known)
        except KeyboardInterrupt:
            reason, is_interrupted = "interrupted", True
        state.state, state.reason = "failed" if reason else "done", reason
        state.seconds = round(time.monotonic() - began_s, 1)
        manifest.update(run, passes={name: state})
        if reason:
            say(f"counter pass {at} of {len(passes)} failed: {reason}")
        if is_interrupted:
            break


def _run_pass(
    folder: Path,
    command: Sequence[str],
    counters: Sequence[str],
    environ: Mapping[str, str],
    limit_s: float,
    known: manifest.Manifest,
) -> str:
    """Run one pass into its folder; returns why it failed, '' if it didn't."""
    hidden, states = folder.with_name(f".{folder.name}"), folder.parent.parent / STATES
    for each in (hidden, states):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    has_windows = VARIABLE in environ
    profiled = (
        *pass_command(counters, hidden, has_windows=has_windows),
        *command,
    )
    try:
        process = subprocess.Popen(profiled, env=dict(environ))
    except OSError as error:
        return f"{TOOL}: {error.strerror}"
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end_process(process, _END_S)
        return f"no end after {limit_s:.0f} s"
    except KeyboardInterrupt:
        end_process(process, _END_S)
        raise
    expected = known.returncode or 0
    if code not in (0, expected):
        return f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    if not any(path.stat().st_size for path in hidden.rglob("*") if path.is_file()):
        return f"{TOOL} wrote nothing"
    processes, _ = manifest.read_record_parts(states / manifest.PROCESSES, manifest.RecordedProcess)
    windows = [window for process in processes for window in process.windows]
    if has_windows and not any(window.state == "counted" for window in windows):
        errors = [error for process in processes for error in process.errors]
        last = max((process.step for process in processes), default=-1)
        return errors[0] if errors else f"it ended in step {last}, before any was counted"
    shutil.rmtree(folder, ignore_errors=True)
    hidden.rename(folder)
    return ""


def pass_command(
    counters: Sequence[str], folder: Path | str, *, has_windows: bool
) -> tuple[str, ...]:
    """What runs a command as a pass, before the words of the command.

    A launcher writes a file too, without a rank. rocprofv3 of ROCm 7 and later writes rocpd, that
    before CSV.
    """
    form = "rocpd" if "rocpd" in output_of((TOOL, "--help")) else "csv"
    return (
        *(TOOL, "--pmc", *counters, "--kernel-trace", "--marker-trace", "-f", form),
        *([_REGIONS] if has_windows else []),
        *("-d", str(folder), "-o", "%hostname%_%env{RANK}%_%pid%", "--"),
    )


def end_process(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """End a process, which writes its output at SIGTERM, and kill it where it stays."""
    process.terminate()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
