"""The program `chopper`, and `python -m chopper_tui`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line.

    Ctrl-C while modules load, or while the interpreter ends, ends the process without a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from chopper_tui import cli

        return cli.main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
