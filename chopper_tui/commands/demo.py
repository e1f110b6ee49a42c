"""`chopper demo`: the explorer on the bundled demo run, as it is or while it is written."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from chopper_core.util.children import python_command
from chopper_core.util.demo import MEMORY, demo_path
from chopper_core.util.errors import UsageError
from chopper_tui.commands.arguments import EXPLORING
from chopper_tui.commands.explore import explore

__all__ = ["DESCRIPTION", "OPTIONS", "run"]

DESCRIPTION: Final = "Explore the generated demo run."
OPTIONS: Final = f"""
    --memory | the run of two GPUs whose traces have events of memory
    --live | follow the run while its steps and telemetry are written again and again
    --speed X | with --live: so many times as fast as the run; default: 1
    --write DIR | with --live: write into a directory, and open nothing{EXPLORING}"""


def run(options: Namespace) -> int:
    if options.live and options.memory:
        raise UsageError("--memory shows a finished run; --live follows the one without it")
    if not options.live:
        return explore(str(demo_path(*[MEMORY] * options.memory)), options)
    if options.write:
        from chopper_core.ingest.replay import replay_run

        replay_run(demo_path(), Path(options.write), options.speed)
        return 0
    with TemporaryDirectory(prefix="chopper-demo-") as folder:
        # A process of its own, as a job is one.
        given = (str(demo_path()), folder, str(options.speed), str(os.getpid()))
        with subprocess.Popen(python_command("chopper_core.ingest.replay", *given)) as writer:
            options.watch = True
            try:
                return explore(folder, options)
            finally:
                writer.kill()
