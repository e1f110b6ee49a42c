"""The program `chopper`, and `python -m chopper_tui`."""

from __future__ import annotations

import atexit
import os
import sys

from chopper_tui import terminal

_code: int | None = None


def main() -> int:
    """Run the command line; a signal ends it in a sentence, also while modules load."""
    global _code
    # Registered first, it is called last.
    atexit.register(_leave)
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
        _code = cli.main()
        return _code
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Data was flushed, and its errors reported; the rest would fail once more at the exit.
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _leave() -> None:
    """End before Python takes itself down, which is a sixth of the time of `chopper show`.

    The explorer's threads may compute on: native code that wakes up in one of them later ends the
    process with a fatal error.
    """
    if _code is not None:
        os._exit(_code)


if __name__ == "__main__":
    sys.exit(main())
