"""Install Chopper like a user and try it: `python -m tests.smoke [--lowest] [INTERPRETER ...]`.

Each interpreter gets a fresh environment with the wheel and what pip finds for it. Without an
argument: every supported Python of this machine, and the lowest supported one with the lowest
supported versions of the dependencies (`tests/lowest.txt`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.tui.terminal_harness import ROOT, Terminal

MINORS: Final = range(11, 15)
LOWEST: Final = ROOT / "tests" / "lowest.txt"
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "-qq", "install")
_QUICK: Final = (
    "-m",
    "not slow and not sweep",
    "-n",
    "auto",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.smoke", description=__doc__)
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER")
    parser.add_argument("--lowest", action="store_true", help="with the lowest versions only")
    options = parser.parse_args(arguments)
    found = options.interpreters or [*interpreters().values()]
    cases = [(each, options.lowest) for each in found]
    if not options.interpreters and not options.lowest:
        cases.append((found[0], True))
    elif options.lowest:
        cases = cases[:1]
    with tempfile.TemporaryDirectory(prefix="chopper-smoke-") as folder:
        wheel = build(found[0], Path(folder))
        for number, (python, is_lowest) in enumerate(cases):
            start = time.monotonic()
            what = f"{version(python)}{' with the lowest versions' if is_lowest else ''}"
            print(f"smoke test on Python {what}", flush=True)
            environment = Path(folder, str(number))
            try_out(install(python, wheel, environment, is_lowest=is_lowest))
            shutil.rmtree(environment)
            print(f"passed in {time.monotonic() - start:.0f} s", flush=True)
    return 0


def interpreters() -> dict[int, str]:
    """The supported interpreters on the path, or among those of pyenv, by minor version."""
    found: dict[int, str] = {}
    for minor in MINORS:
        named = shutil.which(f"python3.{minor}")
        for path in (*([named] if named else []), *_of_pyenv(minor)):
            if version(path) == f"3.{minor}":
                found[minor] = path
                break
    return found


def _of_pyenv(minor: int) -> list[str]:
    if shutil.which("pyenv") is None:
        return []
    root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False)
    return sorted(map(str, Path(root.stdout.strip(), "versions").glob(f"3.{minor}.*/bin/python")))


def version(python: str) -> str:
    """`3.12`; nothing where it doesn't start, as a shim without its version."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build(python: str, folder: Path) -> Path:
    """The wheel of this checkout."""
    _run(python, "-m", "venv", folder / "build")
    pip = folder / "build" / "bin" / "python"
    _run(pip, *_PIP, "--upgrade", "pip>=25.1")
    _run(pip, "-m", "pip", "-qq", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(python: str, wheel: Path, folder: Path, *, is_lowest: bool) -> Path:
    """A fresh environment with the wheel and the tests' needs; its interpreter."""
    _run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    _run(own, *_PIP, "--upgrade", "pip>=25.1")
    bounds = ("--constraint", LOWEST) if is_lowest else ()
    _run(own, *_PIP, *bounds, f"{wheel}[fast]")
    _run(own, *_PIP, *bounds, "--group", f"{ROOT / 'pyproject.toml'}:test")
    return own


def try_out(python: Path) -> None:
    """The demo in a pipe and, with a key, in a terminal; then the quick tests."""
    chopper = python.with_name("chopper")
    with tempfile.TemporaryDirectory() as home:
        own = {**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "XDG_STATE_HOME": home}
        demo = subprocess.run(
            [chopper, "demo"], cwd=home, env=own, capture_output=True, text=True, check=False
        )
        rows = re.findall(r"^[0-7] ", demo.stdout, re.MULTILINE)
        assert demo.returncode == 0 and len(rows) == 8, demo.stdout + demo.stderr
        with Terminal(command=[str(chopper), "demo"], PYTHONPATH="", HOME=home) as terminal:
            terminal.until_text("GPU 5")
            terminal.send("3")
            terminal.until_text("MT256x256x64 NT")
            terminal.send("q")
            assert terminal.wait() == 0 and terminal.is_restored(), terminal.text
    _run(python, "-m", "pytest", *_QUICK)


def _run(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
