"""The options of commands, and the runs and views that are opened with them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec.structs import replace

from chopper_core.model.overrides import Overrides, overrides_of, parse_clock, parse_gpu
from chopper_core.model.parallel import layout_text
from chopper_core.model.view import View, with_view
from chopper_core.render import FORMATS
from chopper_core.util import debug
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import escape_lines
from chopper_core.util.memory import parse_size
from chopper_core.util.patterns import entries, late
from chopper_core.util.plugins import extension_part
from chopper_core.util.progress import Progress, share_done, step_text
from chopper_core.views import OVERVIEW
from chopper_core.views.spec import SeveralRuns
from chopper_tui.terminal import guard_mapped_files

if TYPE_CHECKING:
    from chopper_core.model.run import Run

_BAR_CELLS: Final = 24
_LEAST_S: Final = 0.5
"""The screen changes at most twice a second."""
ADDRESSES: Final = """\
An ADDRESS is RUN[:level=label/...][?key=value&...], in quotes, for instance
  'runs/fsdp2:gpu=3/iteration=1/phase=backward?sort=-idle_ns&filter=gemm'
Its keys: view (a screen, such as kernels), by (the split of its rows), of
(its figure); order, columns, sort, filter, metric (the charted signal); base
(the baseline: another path of the run, or another run; total: totals, not
figures per step and GPU); stat and over (a statistic over GPUs, iterations,
layers); cut (1 counts truncated iterations); from and to, at and mark
(times, such as 12.5ms); clock, gpu, hardware and parallel (as the options,
comma-separated), base_parallel; of several runs set (tp=2;gpt*:pp=4) and
name ({model}_{tp}).
"""

CACHING: Final = """
    --parallel LAYOUT | sizes of the parallel dimensions (tp=2,pp=16, also dp, ep, cp) in Megatron's
        order, or in order=tp-pp-dp, if the files lack them or are wrong
    --no-cache | read the files again and cache nothing
    --jobs N | number of processes that read traces
    --max-memory SIZE | memory that this process and its workers may allocate (500M, 2G), not
        counting mapped files; default: the job's limit"""
READING: Final = f"""
    several --clock SOURCE=+S | shift a telemetry file or format, or the trace of a rank or host
        (rank4), by S seconds (+1.25s)
    several --gpu SOURCE:ID=GPU | map a device ID of counters or telemetry to this GPU of the run,
        or to none
    --hardware NAME|FILE | GPU model (MI300X), if the files lack it or are wrong; or a .toml file
        with a specification, such as the peaks that you measured
    --base-parallel LAYOUT | the layout of the baseline, if it differs from --parallel{CACHING}"""
EXPLORING: Final = f"""
    --watch | follow the run while it is written
    --interval S | seconds between two looks at its files; default: 1
    several --scrape URL | with --watch: read an exporter of AMD or NVIDIA for Prometheus too
    several --alarm LIMIT | with --watch: 'step_time>+5%', 'gfx_mhz<1500 for 10s'
    --exit-on-alarm | leave with code 4 at the first alarm
    --format {{jsonl}} | with --watch: write a line of JSON per step and second
    --no-mouse | leave the mouse to the terminal
    --play FILE | replay keys (a key, text "..." or :command per line)
    --size WxH | screen size of --play
    --ascii | draw with ASCII characters only{READING}"""
RUN_SET: Final = """
    several --set [RUNS:]TP=2,PP=16 | settings of all runs, or of those whose names match a pattern
        (gpt3_*:tp=2)
    several --name PATTERN | settings in the names of runs: '{model}_{tp}-{pp}_{mbs}'"""
TABLE: Final = f"""
    --columns A,B | columns to show; `chopper metrics` lists them
    --format {{{",".join(FORMATS)}}} | default: text, or by the suffix of -o
    --limit N | at most N rows
    --width N | width of the text in cells; 0: unlimited
    --chart | print key figures and charts above the table
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


def _limit(text: str) -> Any:
    from chopper_core.views.compare.gate import parse_limit

    return parse_limit(text)


def _alarm(text: str) -> Any:
    from chopper_core.ingest.alarms import parse_alarm

    return parse_alarm(text)


_ENTRY: Final = late(
    r"(?:(several|required|one-of) )?((?:-[\w-]+(?:, )?)*) ?"
    r"(\{[^}]*\}|\S*?)([?*+]?)(?:(?<=[}?])=(\w+))?"
)
_TYPES: Final[Mapping[str, tuple[Callable[[str], Any], Any]]] = {
    "--alarm": (_alarm, ""),
    "--base-parallel": (layout_text, ""),
    "--clock": (parse_clock, ""),
    "--interval": (_seconds, 1.0),
    "--fail-if": (_limit, ""),
    "--gpu": (parse_gpu, ""),
    "--iteration": (int, None),
    "--jobs": (_number(1), None),
    "--limit": (_number(0), None),
    "--max-memory": (parse_size, 0),
    "--parallel": (layout_text, ""),
    "--every": (_number(0), 0),
    "--skip": (_number(1), 10),
    "--steps": (_number(1), 3),
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
    for head, more in entries(text):
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


def against(name: str, base: str, path: str = "") -> str:
    """The address of a node of a run with the same node of another as its baseline."""
    return (
        f"{name}{f':{path}' if path else ''}?base={quote(base, safe='/', errors='surrogateescape')}"
    )


def view_of(address: str, options: Namespace) -> View:
    """The view of an address, read as the options say; a run whose path looks like one is a path.

    Options win over the address.
    """
    from chopper_core.model.address import parse

    view = View(address) if os.path.exists(address) else parse(address)
    given = (options.hardware, options.parallel, options.base_parallel)
    return replace(view, overrides=overrides_of(options.clock, options.gpu, view.overrides, *given))


def home_of(view: View) -> View:
    plain = View(view.run, baseline=view.baseline, overrides=view.overrides)
    if view != plain or (view.baseline is not None and view.baseline.path is not None):
        return view
    return with_view(view, OVERVIEW)


def open_with_progress(view: View, options: Namespace) -> Run:
    """The run of a view, with progress on standard error; of a set, once its runs are read."""
    with progress_line() as progress:
        return all_read(open_view(view, options, progress), progress)


def all_read(run: Run, progress: Progress) -> Run:
    if isinstance(run, SeveralRuns):
        count = len(run.others)
        while waiting := run.waiting(wait=True):
            progress(f"read {count - waiting} of {count} runs", count - waiting, count)
    return run


def holds_several(name: str, use_cache: bool) -> bool:
    """Whether a name is several runs, or directories that hold some; searched once for a state."""
    from chopper_core.ingest.cache import kept
    from chopper_core.store.format import is_store, paths_of

    paths = paths_of(name)
    if not all(path.exists() and not is_store(path) for path in paths) or paths[0].is_file() >= len(
        paths
    ):
        return False
    place = kept("sets", name)
    known = place.recall(bool) if use_cache else None
    if known is None:
        from chopper_core.ingest.discovery import holds_runs

        known = holds_runs(name)
        if use_cache:
            place.keep(known)
    return known


def open_view(
    view: View, options: Namespace, progress: Progress, *, is_verified: bool = True
) -> Run:
    """The run of a view, with that of its baseline; unless it `is_verified`, see `verify_view`."""
    run = opened_run(view.run, view.overrides, options, progress, is_verified=is_verified)
    # The baseline of a set is one of its runs.
    is_set = isinstance(run, SeveralRuns)
    name, overrides = view.base_run, view.overrides.of_base
    if not name or is_set:
        return run
    base = opened_run(name, overrides, options, progress, is_verified=is_verified)
    return replace(run, others={name: base})


def verify_view(view: View, progress: Progress) -> None:
    from chopper_core.ingest.cache import verify_run

    verify_run(view.run, view.overrides.of_run, progress)
    if view.base_run:
        verify_run(view.base_run, view.overrides.of_base, progress)


def opened_run(
    name: str,
    overrides: Overrides,
    options: Namespace,
    progress: Progress,
    *,
    is_verified: bool = True,
) -> Run:
    guard_mapped_files()
    if holds_several(name, not options.no_cache):
        from chopper_core.model.settings import given_settings

        several = extension_part("runs", f"{name} holds several runs: to show them side by side")
        found: Run = several.open_runs(
            name,
            [name],
            given_settings(overrides.settings, overrides.names),
            jobs=options.jobs,
            use_cache=not options.no_cache,
            overrides=overrides.of_run,
        )
        return found
    overrides = overrides.of_run
    if options.no_cache:
        from chopper_core.ingest.open import open_run
        from chopper_core.store.format import is_store, paths_of
        from chopper_core.store.reader import large_files, verify

        run = open_run(name, progress, jobs=options.jobs, overrides=overrides)
        folder, *others = paths_of(name)
        if is_verified and not others and is_store(folder):
            # Opening doesn't verify large files, and there is no cache to note that they are.
            verify(folder, large_files(folder), progress)
        return run
    from chopper_core.ingest.cache import open_cached

    return open_cached(
        name, progress, jobs=options.jobs, overrides=overrides, is_verified=is_verified
    )


@contextmanager
def progress_line() -> Iterator[Progress]:
    """One line on stderr that names the step and how far it is; silent without a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    shown = noted = ""

    def report(step: str, done: int, total: int) -> None:
        nonlocal shown, noted
        if debug.target and step != noted:
            noted = step
            debug.note(step)
        line, share = escape_lines(step_text(step, done, total))[:48], share_done(done, total)
        if share is not None:
            line += f"  [{'#' * int(share * _BAR_CELLS):.<{_BAR_CELLS}}] {share:4.0%}"
        if is_terminal and line != shown:
            write(f"\r{line}\x1b[K")
            shown = line

    def write(text: str) -> None:
        # A terminal may be closed while the command runs on.
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    try:
        yield report
    finally:
        if shown:
            write("\r\x1b[K")
