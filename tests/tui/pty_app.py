"""Starts the explorer on the sample run: what the pseudo-terminal tests run as a process."""

from __future__ import annotations

import sys
import time
from threading import Event

from chopper_tui.terminal import prepare_environment

prepare_environment()


def main() -> int:
    from textual.events import Key
    from textual.message import Message

    from chopper_core.model.run import Run
    from chopper_core.model.view import View
    from chopper_core.util.errors import DataError
    from chopper_core.util.progress import Progress
    from chopper_tui import driver
    from chopper_tui.app import ChopperApp
    from chopper_tui.driver import TerminalDriver
    from chopper_tui.play import run_app
    from chopper_tui.screen import Explorer
    from tests.tui.explorer import measured_run, sample_run

    case = sys.argv[1] if len(sys.argv) > 1 else "plain"

    def load(progress: Progress) -> Run:
        if case == "slow":
            for done in range(1000):
                progress("reading sample.json", done, 1000)
                time.sleep(0.05)
        if case == "brief":
            for done in range(20):
                progress("reading sample.json", done, 20)
                time.sleep(0.05)
        if case == "broken":
            raise DataError("sample.json can't be read: it is cut off; copy it again")
        if case == "views":
            return measured_run()
        if "measured" in case:
            return measured_run(gpus=2, iterations=1, layers=200)
        if case.startswith("large"):
            return sample_run(gpus=2, iterations=1, layers=200)
        return sample_run()

    class _DeafDriver(TerminalDriver):
        def process_message(self, message: Message) -> None:
            if isinstance(message, Key):
                raise ZeroDivisionError
            super().process_message(message)

    view = View("sample.json", ("1", "10", "backward") if case.startswith("large") else ())
    if case.endswith("restless"):
        Explorer.DETAIL_DELAY = 60.0
    app = ChopperApp(load, view)
    if case == "deaf":
        app.driver_class = _DeafDriver
    if case == "continued":
        _continue_in_the_middle_of_a_write()
    if case == "stuck":
        driver._STUCK_S = 1.0  # type: ignore[misc]
        app.check = lambda _: app.call_later(Event().wait)  # Once its first screen is there.
    if case == "crash":
        app.call_later(lambda: 1 // 0)
    return run_app(app, mouse=case != "no-mouse")


def _continue_in_the_middle_of_a_write() -> None:
    """Continue the process while the loop holds the lock of what it writes to."""
    from signal import SIGCONT, raise_signal

    from textual.drivers._writer_thread import WriterThread

    write, written = WriterThread.write, []

    def broken_off(self: WriterThread, text: str) -> None:
        written.append(text)
        if len(written) == 20:
            with self._queue.mutex:
                raise_signal(SIGCONT)
        write(self, text)

    WriterThread.write = broken_off  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
