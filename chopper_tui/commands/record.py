"""`chopper record`: run a training command, recorded, and open what it leaves."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from chopper_core.util.children import python_command
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import Escaped, escape_each
from chopper_tui.commands.output import tell, width, write

DESCRIPTION: Final = """\
Run a training command unchanged, and record a few of its steps: a trace per
rank, telemetry of the node, and the clocks that tie them."""
EPILOG: Final = """\
  chopper record -- torchrun --nproc-per-node 8 train.py
  chopper record -o RUN --skip 50 --every 1000 -- srun python train.py
  chopper record --trigger RUN
  chopper record --check"""
OPTIONS: Final = """
    COMMAND* | the command and its arguments, after --
    -o, --output RUN | the directory to record into; default: a new one named by the time
    --skip STEPS | steps before the first recorded one; default: 10
    --steps STEPS | steps to record; default: 3; 0: none, only the time of each step
    --every STEPS | record again every so many steps; default: once
    --step-on CLASS | a class of modules whose forward begins a step, or of optimizers whose step
        ends one, where a step has several
    --counters SETS | count events of the hardware in further executions under rocprofv3: mfma,
        memory, overheads, or names of counters, with commas between them
    --device SETS | sample the same over time while kernels run, by the installed device sampler of
        the original Chopper: the first four in the traced execution, others in further ones
    --light | record windows without shapes and modules, which slow steps that wait for the host
    --join | record into a numbered part of a directory that has a recording, as a job that is
        queued again does; the command always starts
    --trigger RUN | record steps of a running job now
    --check | what this node can record, what is missing, and with --counters the passes that would
        run
    --open | open the run when the command ends"""


def run(options: Namespace) -> int:
    from chopper_core.record.command import RecordOptions, default_run, record, trigger

    if options.trigger:
        tell(trigger(Path(options.trigger)))
        return 0
    if options.check:
        write(_abilities(Path(options.output or ".")))
        if options.counters:
            write(_passes(options.counters, options.command))
        return 0
    if not options.command:
        raise UsageError("no command given: chopper record -- torchrun … train.py")
    recording = RecordOptions(
        Path(options.output) if options.output else default_run(),
        options.skip,
        options.steps,
        options.every,
        options.step_on or "",
        options.counters or "",
        options.device or "",
        options.light,
        options.join,
    )
    code = record(recording, options.command, tell, is_terminal=sys.stderr.isatty())
    if options.open:
        from chopper_core.store.format import name_of

        # After `--` the name of a run is no command or option.
        subprocess.run(python_command("chopper_tui", "--", name_of(recording.run)), check=False)
    return code


def _passes(spec: str, command: list[str]) -> Escaped:
    """The commands of counter passes, as they would run."""
    import shlex

    from chopper_core.record.counters import accepted, marker_library, pass_command, planned

    has_windows = bool(marker_library())
    words = command or ["COMMAND"]
    lines = []
    for number, counters in enumerate(accepted(planned(spec), tell), 1):
        folder = f"RUN/counters/pass_{number}"
        run = (*pass_command(counters, folder, has_windows=has_windows), *words)
        lines.append(f"pass {number}  {shlex.join(run)}")
    return escape_each(lines, is_sentence=False)


def _abilities(folder: Path) -> Escaped:
    from textwrap import wrap

    from chopper_core.record.check import check

    found = list(check(folder))
    first = max(len(each.name) for each in found)
    lines = []
    for each in found:
        head = f"{each.name:<{first}}  {'yes' if each.is_there else 'no':<3}  "
        lines += wrap(each.about, width(), initial_indent=head, subsequent_indent=" " * len(head),
                      break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return escape_each(lines, is_sentence=False)
