"""`chopper` in forks of a process that has imported all of it: each is as isolated as a process of
its own, and needs no second to start. What a command forgets to import is no error here: others
are run as the programs that they are.

    with Forked() as chopper:
        ended = chopper.run(["show", "RUN"], cwd=folder, env=environment)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

import chopper_core
import chopper_tui

ROOT: Final = Path(__file__).resolve().parent.parent
_NOT_IMPORTED: Final = ("chopper_core.record.inject",)
"""Hooks that take hold of the process that imports them."""
_MAX_S: Final = 300


class Forked:
    """Runs the command line in forks of one process, one after another."""

    def __enter__(self) -> Self:
        self._files = TemporaryDirectory()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.communicate()
        self._files.cleanup()

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """What `chopper ARGUMENTS` ends with and writes, without a terminal."""
        assert self._server.stdin is not None and self._server.stdout is not None
        out, err = (Path(self._files.name) / name for name in ("out", "err"))
        asked = [[*arguments], str(cwd), dict(env), str(out), str(err)]
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def _serve() -> int:
    """A fork for each line of standard input, whose exit code is a line of standard output."""
    for package in (chopper_core, chopper_tui):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_NOT_IMPORTED):
                import_module(module.name)
    for line in sys.stdin:
        fork = os.fork()
        if not fork:
            return _command(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
    return 0


def _command(arguments: list[str], cwd: str, env: dict[str, str], *streams: str) -> int:
    signal.alarm(_MAX_S)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["chopper", *arguments]
    for number, path in enumerate((os.devnull, *streams)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    main: Any = import_module("chopper_tui.__main__").main
    code: int = main()
    return code


if __name__ == "__main__":
    sys.exit(_serve())
