"""Chopper without its extensions: they can be deleted, and the rest works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.demo import small_files
from tests.wording import Wording

ROOT = Path(__file__).resolve().parents[2]
EXPLORE = """
import asyncio, sys
import chopper_core
from chopper_core.model.view import View
from chopper_tui.cli import main
from tests.tui.explorer import explorer, measured_run

assert chopper_core.__file__.startswith(sys.argv[1]), chopper_core.__file__

async def explore():
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("enter", "j", "9", "escape")
        assert "sample.json" in at.text()

asyncio.run(explore())
codes = [main(words) for words in (["show", "small"], ["show", "two"], ["runs"])]
loaded = [name for name in sys.modules if name.startswith("chopper_core.extensions")]
print("codes", *codes, "loaded", *loaded)
"""


def test_the_explorer_works_without_the_extensions(tmp_path: Path, wording: Wording) -> None:
    for package in ("chopper_core", "chopper_tui"):
        # With its bytecode: to compile it anew takes two seconds.
        kept = shutil.ignore_patterns("extensions")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=kept)
    (tmp_path / "small").symlink_to(small_files())
    for run in "ab":
        folder = tmp_path / "two" / run
        folder.mkdir(parents=True)
        shutil.copy(small_files() / "rank0.json.gz", folder)
    done = subprocess.run(
        [sys.executable, "-c", EXPLORE, str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("codes 0 2 1 loaded"), done.stdout[-500:]
    wording.among(done.stderr, "extension runs")
