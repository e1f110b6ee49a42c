"""Options that several commands take, and how their texts are read."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from chopper_core.errors import UsageError
from chopper_core.reading import parse_clock, parse_gpu
from chopper_core.render import FORMATS


def add_explorer_options(parser: ArgumentParser) -> None:
    """How the explorer is shown, and what of."""
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument(
        "--play", metavar="FILE", help='replay keys (per line a key, text "..." or :command)'
    )
    parser.add_argument(
        "--size", type=_size, default=(80, 24), metavar="WxH", help="of the screen of --play"
    )
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    add_reading_options(parser)


def add_reading_options(parser: ArgumentParser) -> None:
    """How a run is read."""
    parser.add_argument(
        "--clock",
        type=_usage(parse_clock),
        action="append",
        default=[],
        metavar="SOURCE=+S",
        help="move telemetry whose file or format is named so, or the trace of a rank or host "
        "(rank4), by S seconds (+1.25s)",
    )
    parser.add_argument(
        "--gpu",
        type=_usage(parse_gpu),
        action="append",
        default=[],
        metavar="SOURCE:ID=GPU",
        help="the device ID of counters or telemetry is this GPU of the run, or none",
    )
    parser.add_argument(
        "--hardware",
        default="",
        metavar="NAME",
        help="what the GPUs are (MI300X), where the files don't say it or say it wrongly",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="read the files anew and keep nothing of them"
    )
    parser.add_argument("--jobs", type=_positive, metavar="N", help="processes that read traces")


def add_printing_options(parser: ArgumentParser) -> None:
    """What of a view is printed, as what, where to."""
    parser.add_argument("--columns", default="", metavar="A,B", help="names of `metrics`")
    parser.add_argument("--format", choices=FORMATS, help="default: text, or by the suffix of -o")
    parser.add_argument("--limit", type=_natural, metavar="N", help="at most N rows")
    parser.add_argument("--width", type=_natural, metavar="N", help="cells of text; 0: all")
    parser.add_argument("--chart", action="store_true", help="text with key figures and chart")
    parser.add_argument("-o", "--output", metavar="FILE")
    add_reading_options(parser)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT, such as 80x24")
    return min(int(width), 1000), min(int(height), 1000)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _usage(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of an option's text whose error argparse shows."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise ArgumentTypeError(str(error)) from error

    return parsed
