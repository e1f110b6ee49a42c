"""Options shared by several commands."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any, Final

from chopper_core.model.overrides import parse_clock, parse_gpu
from chopper_core.model.parallel import layout_text
from chopper_core.render import FORMATS
from chopper_core.util.errors import UsageError
from chopper_core.util.memory import parse_size

ADDRESSES: Final = """\
An ADDRESS is RUN[:level=label/...][?key=value&...], in quotes, for instance
  'runs/fsdp2:gpu=3/iteration=1/phase=backward?sort=-idle_ns&filter=gemm'
Its keys: view (a screen, such as kernels), by (the split of its rows), of
(its figure); order, columns, sort, filter, metric (the charted signal); base
(the baseline: another path of the run, or another run); stat and over
(a statistic over GPUs, iterations, layers); cut (1 counts truncated
iterations); from and to, at and mark (times, such as 12.5ms); clock, gpu,
hardware and parallel (as the options, comma-separated), base_parallel; of
several runs set (tp=2;gpt*:pp=4) and name ({model}_{tp}).
"""


MANY: Final[dict[str, Any]] = {"action": "append", "default": []}
"""Of options that can be given several times."""


def add_explorer_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    add("--play", metavar="FILE", help='replay keys (a key, text "..." or :command per line)')
    add("--size", type=_size, default=(80, 24), metavar="WxH", help="screen size of --play")
    add("--ascii", action="store_true", help="draw with ASCII characters only")
    add_reading_options(parser)


def add_reading_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--clock",
        type=usage(parse_clock),
        **MANY,
        metavar="SOURCE=+S",
        help="shift a telemetry file or format, or the trace of a rank or host (rank4), by S "
        "seconds (+1.25s)",
    )
    add(
        "--gpu",
        type=usage(parse_gpu),
        **MANY,
        metavar="SOURCE:ID=GPU",
        help="map a device ID of counters or telemetry to this GPU of the run, or to none",
    )
    add(
        "--hardware",
        default="",
        metavar="NAME|FILE",
        help="GPU model (MI300X), if the files lack it or are wrong; or a .toml file with a "
        "specification, such as the peaks that you measured",
    )
    add(
        "--base-parallel",
        type=usage(layout_text),
        default="",
        metavar="LAYOUT",
        help="the layout of the baseline, if it differs from --parallel",
    )
    add_cache_options(parser)


def add_cache_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--parallel",
        type=usage(layout_text),
        default="",
        metavar="LAYOUT",
        help="sizes of the parallel dimensions (tp=2,pp=16, also dp, ep, cp) in Megatron's order, "
        "or in order=tp-pp-dp, if the files lack them or are wrong",
    )
    add("--no-cache", action="store_true", help="read the files again and cache nothing")
    add("--jobs", type=_number(1), metavar="N", help="number of processes that read traces")
    add(
        "--max-memory",
        type=usage(parse_size),
        default=0,
        metavar="SIZE",
        help="memory that this process and its workers may allocate (500M, 2G), not counting "
        "mapped files; default: the job's limit",
    )


def add_run_set_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--set",
        **MANY,
        metavar="[RUNS:]TP=2,PP=16",
        help="settings of all runs, or of those whose names match a pattern (gpt3_*:tp=2)",
    )
    add(
        "--name",
        **MANY,
        metavar="PATTERN",
        help="settings in the names of runs: '{model}_{tp}-{pp}_{mbs}'",
    )


def add_table_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--columns", default="", metavar="A,B", help="columns to show; `chopper metrics` lists them"
    )
    add("--format", choices=FORMATS, help="default: text, or by the suffix of -o")
    add("--limit", type=_number(0), metavar="N", help="at most N rows")
    add("--width", type=_number(0), metavar="N", help="width of the text in cells; 0: unlimited")
    add("--chart", action="store_true", help="print key figures and charts above the table")
    add("--ascii", action="store_true", help="print ASCII characters only")
    add("-o", "--output", metavar="FILE", help="write to a file: .md, .csv, .json, else text")


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT, such as 80x24")
    return min(int(width), 1000), min(int(height), 1000)


def _number(least: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            if least:
                raise ArgumentTypeError(f"{text!r} is not a positive number")
            raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
        return int(text)

    return parsed


def usage(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser for an option, whose usage errors argparse reports."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise ArgumentTypeError(str(error)) from error

    return parsed
