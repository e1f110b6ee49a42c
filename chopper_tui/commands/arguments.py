"""The options of commands, declared as text."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, Final

from chopper_core.util.errors import UsageError
from chopper_core.util.memory import parse_size
from chopper_core.util.patterns import late, listed_entries

_LEAST_S: Final = 0.5
"""The screen changes at most twice a second."""
ADDRESSES: Final = """\
An ADDRESS is RUN[:level=label/...][?key=value&...], in quotes, for instance
  'runs/fsdp2:gpu=3/iteration=1/phase=backward?sort=-idle_ns&filter=gemm'
Its keys: view (a screen, such as kernels), by (the split of its rows), of
(its figure); order, columns, sort, filter, metric (the charted signal); base
(the baseline: another path of the run, or another run; total: totals, not
figures per step and GPU); stat and over (a statistic over GPUs, steps,
layers); cut (1 counts truncated steps); predicted (a what-if question:
the run as replayed); from and to, at and mark (times, such as 12.5ms); clock,
gpu, hardware and parallel (as the options, comma-separated), base_parallel;
set (gbs=128,seq=4096; of several runs tp=2;gpt*:pp=4) and name ({model}_{tp}).
"""

LIMITS: Final = """
    --no-cache | read the files again and cache nothing
    --jobs N | number of processes that read traces, join them and work out answers; default: as
        many as pay, at most one per processor
    --max-memory SIZE | memory that this process and its workers may allocate (500M, 2G), not
        counting mapped files; default: the job's limit"""
CACHING: Final = f"""
    --parallel LAYOUT | sizes of the parallel dimensions (tp=2,pp=16, also dp, ep, cp) in Megatron's
        order, or in order=tp-pp-dp, if the files lack them or are wrong{LIMITS}"""
READING: Final = f"""
    several --clock SOURCE=+S | shift a telemetry file or format, or the trace of a rank or host
        (rank4), by S seconds (+1.25s)
    several --gpu SOURCE:ID=GPU | map a device ID of counters or telemetry to this GPU of the run,
        or to none
    --hardware NAME|FILE | GPU model (MI300X), if the files lack it or are wrong; or a .toml file
        with a specification, such as the peaks that you measured
    --base-parallel LAYOUT | the layout of the baseline, if it differs from --parallel
    several --set [RUNS:]GBS=128,SEQ=4096 | settings of the run, or of runs whose names match a
        pattern: tokens per second and joules per token follow from them{CACHING}"""
PLAYING: Final = """
    --play FILE | replay keys (a key, text "..." or :command per line)
    --size WxH | screen size of --play"""
EXPLORING: Final = f"""
    --watch | follow the run while it is written
    --interval S | seconds between two looks at its files; default: 1
    several --scrape URL | with --watch: read an exporter of AMD or NVIDIA for Prometheus too
    several --alarm LIMIT | with --watch: 'step_time>+5%', 'gfx_mhz<1500 for 10s'
    --export-metrics ADDRESS | with --watch: answer scrapes of Prometheus at 127.0.0.1:PORT
    --exit-on-alarm | leave with code 4 at the first alarm
    --format {{jsonl}} | with --watch: write a line of JSON per step and second
    --no-mouse | leave the mouse to the terminal{PLAYING}
    --ascii | draw with ASCII characters only{READING}"""
RUN_SET: Final = """
    several --set [RUNS:]TP=2,PP=16 | settings of all runs, or of those whose names match a pattern
        (gpt3_*:tp=2)
    several --name PATTERN | settings in the names of runs: '{model}_{tp}-{pp}_{mbs}'"""
TABLE: Final = """
    --columns A,B | columns to show; `chopper metrics` lists them
    --format {text,markdown,csv,json} | default: text, or by the suffix of -o
    --limit N | at most N rows; default: 1000 of text, all of CSV; 200 and 100 kB of JSON
    --brief | JSON in four significant digits, with the columns asked for or the first eight known
    --width N | width of the text in cells; 0: unlimited
    --chart, --pictures | print key figures and charts above the table; in JSON as numbers
    --ascii | print ASCII characters only
    -o, --output FILE | write to a file: .md, .csv, .json, else text"""


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


def _seconds(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal() or float(text) < _LEAST_S:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds of at least {_LEAST_S:g}")
    return float(text)


def usage(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser for an option, whose usage errors argparse reports."""

    @wraps(parse)
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise ArgumentTypeError(str(error)) from error

    return parsed


def _from(place: str) -> Callable[[str], Any]:
    """A parser that is imported when an option is parsed: help needs no more than this module."""
    module, _, name = place.rpartition(".")

    def parsed(text: str) -> Any:
        return getattr(import_module(module), name)(text)

    return parsed


def _layout(text: str) -> str:
    """A layout; argparse parses the default too, which needs no import."""
    return text and str(_from("chopper_core.model.parallel.layout_text")(text))


_ENTRY: Final = late(
    r"(?:(several|required|one-of) )?((?:-[\w-]+(?:, )?)*) ?"
    r"(\{[^}]*\}|\S*?)([?*+]?)(?:(?<=[}?])=(\w+))?"
)
_TYPES: Final[Mapping[str, tuple[Callable[[str], Any], Any]]] = {
    "--alarm": (_from("chopper_core.ingest.alarms.parse_alarm"), ""),
    "--base-parallel": (_layout, ""),
    "--clock": (_from("chopper_core.model.overrides.parse_clock"), ""),
    "--interval": (_seconds, 1.0),
    "--fail-if": (_from("chopper_core.analyses.gate.parse_limit"), ""),
    "--gpu": (_from("chopper_core.model.overrides.parse_gpu"), ""),
    "--iteration": (int, None),
    "--jobs": (_number(1), None),
    "--limit": (_number(0), None),
    "--nodes": (_number(1), None),
    "--max-memory": (parse_size, 0),
    "--parallel": (_layout, ""),
    "--every": (_number(0), 0),
    "--export-metrics": (_from("chopper_core.answers.exporter.parse_endpoint"), None),
    "--skip": (_number(1), 10),
    "--steps": (_number(0), 3),
    "--size": (_size, (80, 24)),
    "--speed": (_seconds, 1.0),
    "--width": (_number(0), None),
}
"""Options that aren't text, with their defaults."""


def add_options(parser: ArgumentParser, text: str) -> None:
    """Add the options of a text: entries `--name VALUE | help`, and `VALUE | help` of arguments.

    `{a,b}=a` is a choice with its default; an argument has the count of a pattern (`?`, `*`, `+`).
    An option that begins with `several` may be repeated, one with `required` has to be given, as
    has exactly one of those with `one-of`.
    """
    one_of: Any = None
    for head, more in listed_entries(text):
        call, _, about = head.partition(" | ")
        found = _ENTRY.fullmatch(call)
        assert found is not None, call
        kind, flags, value, count, default = found.groups("")
        is_choice = value.startswith("{")
        names = flags.split(", ") if flags else ["do" if is_choice else value.lower()]
        options: dict[str, Any] = {"help": f"{about} {more}".strip().replace("%", "%%") or None}
        if value:
            parse, options["default"] = _TYPES.get(names[-1], (str, default))
            options["type"] = usage(parse)
            options |= {"choices": value[1:-1].split(",")} if is_choice else {"metavar": value}
        else:
            options["action"] = "store_true"
        if kind == "several":
            options |= {"action": "append", "default": []}
        if kind == "required":
            options["required"] = True
        if count:
            options["nargs"] = count
        if kind == "one-of" and one_of is None:
            one_of = parser.add_mutually_exclusive_group(required=True)
        (one_of if kind == "one-of" else parser).add_argument(*names, **options)
