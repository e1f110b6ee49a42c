"""Views written to files: under a new name, whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from chopper_core.model.run import Run
from chopper_core.query.frame import Frame
from chopper_core.render import FORMATS
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.printing import printed

FOLDER: Final = "chopper-snapshots"
_ENDINGS: Final = {"text": "txt", "markdown": "md", "csv": "csv", "json": "json"}
_ALIASES: Final = {"md": "markdown"}
PICTURE: Final = "svg"
_FONTS: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Textual's pictures load their font from the network; a picture of a run loads nothing."""
SNAPSHOTS: Final = (*FORMATS, *_ALIASES, PICTURE)
"""The formats by the names that people may give them."""


def state_directory() -> Path:
    """Where Chopper keeps what outlives a session: logs, and snapshots without a better place."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "chopper"


def is_picture(arguments: str) -> bool:
    """Whether the arguments of a snapshot ask for the screen as a picture."""
    return _parse(arguments)[0] == PICTURE


def without_fonts(picture: str) -> str:
    """An SVG of the screen that loads nothing from the network."""
    return _FONTS.sub("", picture)


def write_snapshot(run: Run, frame: Frame, arguments: str = "", picture: str = "") -> Path:
    """Write a frame; the arguments are `[format] [path]`. Returns the path of the file.

    `picture` is the screen as SVG, written where the format asks for it.
    """
    format_name, path = _parse(arguments)
    content = (
        _FONTS.sub("", picture)
        if format_name == PICTURE
        else printed(frame, format_name, charted=run)
    )
    if path is not None:
        return _write_new(path.expanduser(), content)
    stem, ending = _stem(frame), _ENDINGS.get(format_name, format_name)
    for folder in (Path(FOLDER), state_directory() / FOLDER):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write_numbered(folder, stem, ending, content)
        except OSError as error:
            reason = error
    raise DataError(f"the snapshot can't be written: {reason}")


def _parse(arguments: str) -> tuple[str, Path | None]:
    first, _, rest = arguments.strip().partition(" ")
    if first in SNAPSHOTS:
        return _ALIASES.get(first, first), Path(rest.strip()) if rest.strip() else None
    if first and not rest and re.fullmatch(r"[a-z]+", first):
        raise UsageError(f"no format {first!r}; the formats are {', '.join(SNAPSHOTS)}")
    path = Path(arguments.strip()) if first else None
    by_ending = {ending: name for name, ending in _ENDINGS.items()} | {PICTURE: PICTURE}
    return by_ending.get(path.suffix[1:], "text") if path else "text", path


def _stem(frame: Frame) -> str:
    parts = [Path(frame.view.run).name or "run", *(f"{a}{b}" for a, b in frame.view.scope)]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts))[:80].strip("._-") or "run"


def _write_numbered(folder: Path, stem: str, ending: str, content: str) -> Path:
    number = 1
    while True:
        path = folder / f"{stem}-{number}.{ending}"
        if not path.exists():
            try:
                _publish(path, content)
                return path
            except FileExistsError:
                pass
        number += 1


def _write_new(path: Path, content: str) -> Path:
    try:
        _publish(path, content)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; nothing was written") from error
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}") from error
    return path


def _publish(path: Path, content: str) -> None:
    """Write a file beside its place, then link it there, which fails where one exists."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=".chopper-", delete=False
    ) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.chmod(file.name, 0o644)
        os.link(file.name, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links: the exclusive open still never overwrites.
        with path.open("x", encoding="utf-8", newline="\n") as target:
            target.write(content)
    finally:
        os.unlink(file.name)
