"""`chopper what-if`: the step time with a cause removed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from chopper_core.answers.runner import shown, what_if_view
from chopper_core.views.frame import Frame
from chopper_tui.commands.arguments import READING, TABLE
from chopper_tui.commands.options import open_with_progress, view_of
from chopper_tui.commands.output import print_frame, tell

DESCRIPTION: Final = "Replay the steps with a cause removed: the step time, its range, the saving."
OPTIONS: Final = f"""
    ADDRESS | a run, or a part of one
    QUESTION* | what to change, in quotes; default: the stragglers, contention, the host's gaps and
        slow communication, one by one and together
    --by LEVEL | what each part of the questions' change brings: operation, phase, layer, gpu,
        step
    --into STORE | write the predicted run, with all changes together, as a store to open and to
        compare with RUN{TABLE}{READING}"""
EPILOG: Final = """\
A QUESTION is a change, after what it changes in the filter language:
  'no stragglers'  'no contention'  'no host gaps'  'comm at peak'  'clock=2100'
  'gpu:5 as peers'  'layer:21 as peers'  'stage:3 as peers'  'host as peers'
  'operation:mlp_dp x0.8'  'gpu:0-3 comm x0.5'  'phase:backward no contention'
Several are replayed one by one, and all together.
"""


def run(options: Namespace) -> int:
    from chopper_core.views.query import frame_of
    from chopper_core.views.whatif import predicted

    view = what_if_view(view_of(options.address, options), options.question, options.by)
    view = shown(view, options.columns)
    opened = open_with_progress(view, options)
    if options.into:
        from chopper_core.store.writer import write_store

        store = Path(options.into)
        write_store(predicted(opened, view), store)
        tell(f"wrote {store}; next to the measured run: chopper {opened.name} {store}")
        return 0
    frame: Frame = frame_of(opened, view)
    print_frame(frame, options, opened if options.chart else None)
    return 0
