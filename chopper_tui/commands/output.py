"""Output of commands: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopper_core.util.atomic import publish
from chopper_core.util.compression import compressed, uncompressed_name
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.commands import PROGRAM
from chopper_tui.terminal import remark, size_in, terminal_size

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from chopper_core.model.run import Run
    from chopper_core.render.glyphs import Glyphs
    from chopper_core.util.escape import Escaped
    from chopper_core.views.frame import Frame
    from chopper_tui.config import Config
    from chopper_tui.keymap import Action

_FORMAT_SUFFIXES: Final = {".md": "markdown", ".csv": "csv", ".json": "json"}


def write(text: Escaped) -> None:
    """Write data to standard output; nothing else does."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Say something in one line, whatever names it quotes."""
    from chopper_core.util.escape import clean

    remark(clean(f"{PROGRAM}: {text}", is_sentence=True))


def width() -> int:
    if sys.stdout.isatty():
        return terminal_size()[0] or 120
    return size_in(os.environ.get("COLUMNS", "")) or 120


def glyphs(*, is_ascii: bool = False) -> Glyphs:
    from chopper_core.render.glyphs import ASCII
    from chopper_tui.terminal import glyphs_of

    return ASCII if is_ascii else glyphs_of(sys.stdout)


def print_frame(frame: Frame, options: Namespace, charted: Run | None = None) -> None:
    write_text(frame_text(frame, options, charted)[0], options)


def format_of(options: Namespace) -> str:
    """The format that is asked for, else that of the suffix of the output, else text."""
    suffix = Path(uncompressed_name(options.output)).suffix if options.output else ""
    return str(options.format or _FORMAT_SUFFIXES.get(suffix, "text"))


def frame_text(frame: Frame, options: Namespace, charted: Run | None = None) -> tuple[Escaped, str]:
    from chopper_core.render.palette import paint_for, plain
    from chopper_tui.export import printed

    default_width = 0 if options.output else width()
    format_name = format_of(options)
    text = printed(
        frame,
        format_name,
        limit=options.limit,
        width=default_width if options.width is None else options.width,
        glyphs=glyphs(is_ascii=options.ascii),
        charted=charted,
        paint=plain if options.output else paint_for(sys.stdout.isatty(), os.environ),
        has_pictures=options.chart,
        is_brief=options.brief,
    )
    return text, format_name


def write_text(text: Escaped, options: Namespace) -> None:
    if not options.output:
        write(text)
        return
    path = Path(options.output)
    keep_input(path)
    try:
        if path.exists() and not path.is_file():  # a device, a pipe
            path.write_text(text, encoding="utf-8")
        else:
            publish(path.resolve(), compressed(text.encode(), path.name))
    except OSError as error:
        raise DataError(f"{options.output} can't be written: {error.strerror}") from error
    remark(options.output)


def keep_input(path: Path) -> None:
    """Raise UsageError where an output would replace a file that runs are read from."""
    if not path.is_file():
        return
    from chopper_core.ingest.inputs import is_input

    if is_input(path):
        raise UsageError(f"{path} is an input of Chopper, which no output replaces")


def registry() -> Sequence[Action]:
    from chopper_tui.actions import ACTIONS

    return ACTIONS


def settings() -> Config:
    from chopper_tui.config import read_config

    config = read_config(registry)
    for warning in config.warnings:
        tell(warning)
    return config
