"""`chopper live`: this node's GPUs, or what exporters say, without any file."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from chopper_core.ingest.feeds import node_feed
from chopper_core.record.manifest import name_of_host
from chopper_tui.commands.arguments import EXPLORING
from chopper_tui.commands.explore import explore

__all__ = ["DESCRIPTION", "OPTIONS", "run"]

OPTIONS: Final = f"""
    --once | print what the GPUs do now, and end{EXPLORING}"""
DESCRIPTION: Final = "Show the GPUs of this node as they are now; nothing is changed on them."


def run(options: Namespace) -> int:
    with TemporaryDirectory(prefix="chopper-live-") as folder:
        run = Path(folder, "exporters" if options.scrape else name_of_host())
        run.mkdir()
        options.watch = True
        options.feeds = [] if options.scrape else [node_feed(run)]
        if options.once:
            from chopper_tui.commands.following import print_once

            return print_once(str(run), options)
        return explore(str(run), options)
