"""The program `chopper`, and `python -m chopper_tui`."""

from __future__ import annotations

import os
import sys

from chopper_tui import terminal


def main() -> int:
    """Run the command line; a signal ends it in a sentence, also while modules load."""
    for handle in range(3):
        # A stream that the caller closed: the next file opened would take its place.
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    terminal.take(terminal.end_at_once)
    from chopper_tui import cli

    try:
        return cli.main()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Data was flushed, and its errors reported; the rest would fail once more at the exit.
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
