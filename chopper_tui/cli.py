"""The command line: `chopper`, `demo`, `show`, `info`, `metrics`, `keys`, `doctor`."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chopper_core.errors import ChopperError, DataError, UsageError
from chopper_core.progress import Cancelled, Progress
from chopper_core.reading import Reading, parse_clock, parse_gpu, reading_of
from chopper_core.render import FORMATS
from chopper_core.view import View

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from chopper_core.render.glyphs import Glyphs
    from chopper_core.run import Run
    from chopper_tui.config import Config

PROGRAM: Final = "chopper"
INTERRUPTED: Final = 130
DEMO: Final = Path("demo_data", "fsdp2")
_FORMAT_SUFFIXES: Final = {".md": "markdown", ".csv": "csv", ".json": "json"}
_COMMANDS: Final = (
    "demo", "show", "diff", "info", "ingest", "cache", "metrics", "keys", "doctor",
)  # fmt: skip

_DESCRIPTION: Final = """\
Where does the time of an LLM training step go, and why?

chopper RUN              explore a run: a PyTorch trace, or a directory of one per rank
chopper demo             explore the generated demo run
chopper show ADDRESS     print a view as text, markdown, CSV or JSON
chopper diff A B [PATH]  what changed from A to B, the most first
chopper info RUN         what was found, how it was labelled, what was left out
chopper ingest RUN -o D  align a run once and write it to a store, to keep or to share
chopper cache            the runs that are kept for the next time; `cache clear` forgets them
chopper metrics          every figure: unit, definition, source
chopper keys             the keys of the explorer
chopper doctor           terminal, locale and versions, for bug reports

An ADDRESS is RUN[:level=label/...][?key=value&...], for instance
  runs/fsdp2:gpu=3/iteration=1/phase=backward?sort=-idle_ns&filter=gemm
Its keys are order, columns, sort, filter, metric, base (what to compare with: another path of the
run, or another run), stat and over (a statistic over GPUs, iterations, layers), clock and gpu (as
--clock and --gpu, with commas between several). Without a terminal the explorer prints what `show`
prints.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    # Modules are no garbage: looking for some among them takes a tenth of the first paint.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _dispatch(given)
    except ChopperError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Cancelled):
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`): nothing more to say, not even at the flush on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        if was_enabled:
            gc.enable()


def _dispatch(given: list[str]) -> int:
    if given and given[0] in _COMMANDS:
        parser = _parser(given[0])
        options = parser.parse_args(given[1:])
        command: Callable[[argparse.Namespace], int] = options.run_command
        return command(options)
    options = _main_parser().parse_args(given)
    if not options.run:
        raise UsageError(
            f"no run given; `{PROGRAM} DIRECTORY` opens one, `{PROGRAM} demo` shows the demo"
        )
    if len(options.run) == 2 and all(_is_run(name) for name in options.run):
        base, name = options.run
        return _explore(_against(name, base), options)
    return _explore(",".join(options.run), options)


def _is_run(name: str) -> bool:
    """Whether a path is a whole run: a directory, which a single rank's trace is not."""
    return Path(name).expanduser().is_dir()


def _against(name: str, base: str, path: str = "") -> str:
    """The address of a node of a run with the same node of another as its baseline."""
    from urllib.parse import quote

    return f"{name}{f':{path}' if path else ''}?base={quote(base, safe='/')}"


def _main_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROGRAM} [RUN …] | {PROGRAM} {{{','.join(_COMMANDS)}}} …",
    )
    parser.add_argument(
        "run", nargs="*", metavar="RUN", help="trace files of one run, a directory, or an address"
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
    _add_explorer_options(parser)
    return parser


def _add_explorer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument(
        "--play", metavar="FILE", help='replay keys (per line a key, text "..." or :command)'
    )
    parser.add_argument(
        "--size", type=_size, default=(80, 24), metavar="WxH", help="of the screen of --play"
    )
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    _add_reading_options(parser)


def _add_reading_options(parser: argparse.ArgumentParser) -> None:
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


def _add_printing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--columns", default="", metavar="A,B", help="names of `metrics`")
    parser.add_argument("--format", choices=FORMATS, help="default: text, or by the suffix of -o")
    parser.add_argument("--limit", type=_natural, metavar="N", help="at most N rows")
    parser.add_argument("--width", type=_natural, metavar="N", help="cells of text; 0: all")
    parser.add_argument("--chart", action="store_true", help="text with key figures and chart")
    parser.add_argument("-o", "--output", metavar="FILE")
    _add_reading_options(parser)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT, such as 80x24")
    return min(int(width), 1000), min(int(height), 1000)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _usage(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of an option's text whose error argparse shows."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"{PROGRAM} {name}")
    match name:
        case "demo":
            parser.description = "Explore the generated demo run."
            _add_explorer_options(parser)
            parser.set_defaults(run_command=lambda options: _explore(str(demo_path()), options))
        case "show":
            parser.description = "Print a view as text, markdown, CSV or JSON."
            parser.add_argument("address", metavar="ADDRESS")
            _add_printing_options(parser)
            parser.set_defaults(run_command=_show)
        case "diff":
            parser.description = "Compare B with A, its baseline: what changed, the most first."
            parser.add_argument("a", metavar="A")
            parser.add_argument("b", metavar="B")
            parser.add_argument("path", metavar="PATH", nargs="?", default="", help="gpu=0/…")
            _add_printing_options(parser)
            parser.set_defaults(run_command=_diff)
        case "info":
            parser.description = "What was found in a run, how it was labelled, what was left out."
            parser.add_argument("run", metavar="RUN")
            parser.add_argument("--format", choices=("text", "json"), default="text")
            _add_reading_options(parser)
            parser.set_defaults(run_command=_info)
        case "metrics":
            parser.description = "Every figure: name, unit, how it adds up, definition, source."
            parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
            parser.set_defaults(run_command=_metrics)
        case "ingest":
            parser.description = "Align a run once and write it to a store: a directory to share."
            parser.add_argument("run", metavar="RUN", nargs="?")
            target = parser.add_mutually_exclusive_group(required=True)
            target.add_argument("-o", "--output", metavar="STORE", help="read all and write STORE")
            target.add_argument(
                "--into",
                metavar="STORE",
                help="read only, for a STORE that others read for at the same time",
            )
            target.add_argument(
                "--finish", metavar="STORE", help="write STORE from all that was read into it"
            )
            parser.add_argument("--engine", choices=("processes", "dask"), default="processes")
            parser.add_argument(
                "--scheduler", metavar="ADDRESS", help="of Dask, such as tcp://host:8786"
            )
            _add_reading_options(parser)
            parser.set_defaults(run_command=_ingest)
        case "cache":
            parser.description = "The runs that are kept so that they open at once."
            parser.add_argument("do", nargs="?", choices=("list", "clear"), default="list")
            parser.add_argument(
                "--old", action="store_true", help="clear those of other versions of Chopper only"
            )
            parser.set_defaults(run_command=_cache)
        case "keys":
            parser.description = "The keys of the explorer."
            parser.add_argument("--format", choices=("text", "markdown"), default="text")
            parser.set_defaults(run_command=_keys)
        case "doctor":
            parser.description = "What a bug report needs: terminal, locale, versions."
            parser.set_defaults(run_command=_doctor)
    return parser


def demo_path() -> Path:
    """Where the demo run lies: in a checkout beside the packages, else inside the installed one."""
    package = Path(__file__).resolve().parent
    for path in (package.parent / DEMO, package / DEMO):
        if path.is_dir():
            here = Path.cwd()
            return path.relative_to(here) if path.is_relative_to(here) else path
    raise DataError(f"the demo run is missing: no {DEMO} beside or inside {package}")


def _explore(address: str, options: argparse.Namespace) -> int:
    from chopper_tui.terminal import can_draw

    view = _view_of(address, options)
    if can_draw() is not None and not options.play:
        return _print_view(view, options)
    from chopper_core.render.glyphs import ASCII, UNICODE
    from chopper_tui.opening import Opening
    from chopper_tui.terminal import prepare_environment, run_app

    prepare_environment()
    if options.play:
        from chopper_tui.app import ChopperApp
        from chopper_tui.play import keys_of, play

        keys = keys_of(options.play)
        # Read first: processes can't be started under the app, which takes standard error away.
        run = _open(view, options)
        glyphs = ASCII if options.ascii else UNICODE
        _write(play(ChopperApp(lambda _: run, view, glyphs=glyphs), keys, options.size))
        return 0
    config = _remembering(_config())
    wanted = {"ascii": ASCII, "unicode": UNICODE}.get(config.glyphs)
    opening = Opening(lambda progress: _open_view(view, options, progress), view, config.columns)
    opening.begin()
    try:
        from chopper_tui.app import ChopperApp

        app = ChopperApp(opening, view, glyphs=ASCII if options.ascii else wanted, config=config)
        return run_app(app, mouse=config.mouse and not options.no_mouse)
    finally:
        opening.cancel()


def _remembering(config: Config) -> Config:
    """Settings with the columns of earlier sessions before those of the file."""
    from msgspec.structs import replace

    from chopper_tui.remembered import remembered_columns

    return replace(config, columns={**config.columns, **remembered_columns()}, remember=True)


def _config() -> Config:
    """The person's settings; what they say in vain is told."""
    from chopper_tui.config import read_config

    config = read_config()
    for warning in config.warnings:
        print(f"{PROGRAM}: {warning}", file=sys.stderr)
    return config


def _view_of(address: str, options: argparse.Namespace) -> View:
    """The view of an address, read as the options say; a run whose path looks like one is a path.

    What the options say goes before what the address says.
    """
    from msgspec.structs import replace

    from chopper_core.address import parse

    view = View(address) if Path(address).exists() else parse(address)
    return replace(
        view, reading=reading_of(options.clock, options.gpu, view.reading, options.hardware)
    )


def _print_view(view: View, options: argparse.Namespace) -> int:
    from chopper_core.query import query
    from chopper_tui.printing import printed

    frame = query(_open(view, options), view)
    _write(printed(frame, width=_width(), glyphs=_glyphs()))
    return 0


def _diff(options: argparse.Namespace) -> int:
    options.address = f"{_against(options.b, options.a, options.path)}&view=compare"
    return _show(options)


def _show(options: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from chopper_core.query import query
    from chopper_tui.printing import printed

    view = _view_of(options.address, options)
    if options.columns:
        view = replace(view, columns=tuple(name for name in options.columns.split(",") if name))
    suffix = Path(options.output).suffix if options.output else ""
    format_name = options.format or _FORMAT_SUFFIXES.get(suffix, "text")
    run = _open(view, options)
    frame = query(run, view)
    width = options.width if options.width is not None else (0 if options.output else _width())
    charted = run if options.chart else None
    text = printed(
        frame, format_name, limit=options.limit, width=width, glyphs=_glyphs(), charted=charted
    )
    if not options.output:
        _write(text)
        return 0
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{options.output} can't be written: {error.strerror}") from error
    print(options.output, file=sys.stderr)
    return 0


def _info(options: argparse.Namespace) -> int:
    from chopper_core import info

    reading = reading_of(options.clock, options.gpu, hardware=options.hardware)
    try:
        run = _open(View(options.run, reading=reading), options)
    except DataError:
        from chopper_core.paths import paths_of
        from chopper_core.telemetry_report import telemetry_report

        report = telemetry_report(paths_of(options.run), options.format)
        if report is None:
            raise
        _write(report)
        return 0
    _write(info.as_json(run) if options.format == "json" else info.as_text(run))
    return 0


def _ingest(options: argparse.Namespace) -> int:
    from chopper_core import batch

    gc.enable()
    reading = reading_of(options.clock, options.gpu, hardware=options.hardware)
    if options.into:
        return _ingest_into(options)
    if not options.run and not options.finish:
        raise UsageError("ingest what? chopper ingest RUN -o STORE")
    store = Path(options.output or options.finish)
    try:
        with ProgressLine() as progress, _executor(options) as executor:
            if options.finish:
                run = batch.finish(store, options.run or "", progress, reading=reading)
            else:
                run = batch.ingest_store(
                    options.run,
                    store,
                    progress,
                    jobs=options.jobs,
                    reading=reading,
                    executor=executor,
                )
    except (KeyboardInterrupt, Cancelled):
        print(f"{PROGRAM}: what is read is kept; the same command goes on", file=sys.stderr)
        raise
    for path, reason in run.failed:
        print(f"{PROGRAM}: {_left_out(path, reason)}", file=sys.stderr)
    print(store, file=sys.stderr)
    return 0


def _left_out(path: str, reason: str) -> str:
    return f"left out: {reason}" if reason.startswith(path) else f"left out {path}: {reason}"


def _ingest_into(options: argparse.Namespace) -> int:
    """Read some of a run's traces; fails where none of them can be used."""
    from chopper_core import batch

    if not options.run:
        raise UsageError("ingest what? chopper ingest RANKFILE --into STORE")
    if options.clock or options.gpu or options.hardware:
        raise UsageError(
            "--clock, --gpu and --hardware go with --finish: a single rank does not need them"
        )
    if options.engine != "processes" or options.scheduler:
        raise UsageError("--engine goes with -o: --into reads on this machine only")
    with ProgressLine() as progress:
        outcomes = batch.ingest_into(options.run, Path(options.into), progress, jobs=options.jobs)
    for trace, error in outcomes.items():
        what = _left_out(str(trace), str(error)) if error else f"read {trace}"
        print(f"{PROGRAM}: {what}", file=sys.stderr)
    return 0 if any(error is None for error in outcomes.values()) else 1


@contextmanager
def _executor(options: argparse.Namespace) -> Iterator[Executor | None]:
    """What reads the ranks: None is Chopper's own processes."""
    if options.engine != "dask":
        if options.scheduler:
            raise UsageError("--scheduler goes with --engine dask")
        yield None
        return
    if not options.scheduler:
        raise UsageError("--engine dask needs --scheduler ADDRESS, such as tcp://host:8786")
    from chopper_core.cluster import dask_executor

    with dask_executor(options.scheduler) as executor:
        yield executor


def _cache(options: argparse.Namespace) -> int:
    from datetime import datetime

    from chopper_core import cache

    if options.old and options.do != "clear":
        raise UsageError("--old goes with clear: chopper cache clear --old")
    if options.do == "clear":
        count, size = cache.clear(old_only=options.old)
        _write(f"forgot {count} run{'' if count == 1 else 's'}, {size / 1e6:.1f} MB\n")
        return 0
    kept = cache.entries()
    for entry in kept:
        used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
        name = " ".join([entry.name, "(of another version of Chopper)" * entry.is_old]).strip()
        _write(f"{entry.size_bytes / 1e6:8.1f} MB  {used}  {name}\n")
    total = sum(entry.size_bytes for entry in kept)
    _write(f"{total / 1e6:8.1f} MB  in {cache.directory()}\n")
    return 0


def _metrics(options: argparse.Namespace) -> int:
    from chopper_core.metrics import catalogue

    _write(catalogue(options.format))
    return 0


def _keys(options: argparse.Namespace) -> int:
    from chopper_tui.actions import key_table

    rows = key_table(_config().actions)
    if options.format == "markdown":
        lines = ["| keys | `:` command | does |", "| :-- | :-- | :-- |"]
        lines += [f"| {_code(keys)} | {_code(verb)} | {text} |" for keys, verb, text in rows]
    else:
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{keys:<{widths[0]}}  {verb:<{widths[1]}}  {text}" for keys, verb, text in rows]
    _write("\n".join(lines) + "\n")
    return 0


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _doctor(options: argparse.Namespace) -> int:
    from chopper_tui.doctor import report

    _write(report(_version()))
    return 0


def _open(view: View, options: argparse.Namespace) -> Run:
    with ProgressLine() as progress:
        return _open_view(view, options, progress)


def _open_with(name: str, reading: Reading, options: argparse.Namespace, progress: Progress) -> Run:
    if options.no_cache:
        from chopper_core.ingest import open_run

        return open_run(name, progress, jobs=options.jobs, reading=reading)
    from chopper_core.cache import open_kept

    return open_kept(name, progress, jobs=options.jobs, reading=reading)


def _open_view(view: View, options: argparse.Namespace, progress: Progress) -> Run:
    """The run of a view, with that of its baseline."""
    from msgspec.structs import replace

    run = _open_with(view.run, view.reading, options, progress)
    if view.baseline is not None and view.baseline.run not in ("", view.run):
        base = _open_with(view.baseline.run, view.reading, options, progress)
        return replace(run, others={view.baseline.run: base})
    return run


class ProgressLine:
    """One line on stderr that names the step and how far it is; silent without a terminal."""

    WIDTH: Final = 24

    def __init__(self) -> None:
        moves_its_cursor = os.environ.get("TERM", "") not in ("", "dumb")
        self._visible = sys.stderr.isatty() and moves_its_cursor
        self._shown = ""

    def __enter__(self) -> Progress:
        return self._report

    def __exit__(self, *error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _report(self, step: str, done: int, total: int) -> None:
        if not self._visible:
            return
        share = min(done / total, 1.0) if total else 0.0
        filled = int(share * self.WIDTH)
        line = f"{step[:48]}  [{'#' * filled}{'.' * (self.WIDTH - filled)}] {share:4.0%}"
        if line != self._shown:
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
            self._shown = line


def _prepare_streams() -> None:
    """Never fail on a character that the locale can't write; data stays UTF-8 when piped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _width() -> int:
    """The terminal's width; 120 cells where the output is no terminal."""
    if sys.stdout.isatty():
        return os.get_terminal_size(sys.stdout.fileno()).columns
    columns = os.environ.get("COLUMNS", "")
    return (int(columns) if columns.isdecimal() else 0) or 120


def _glyphs() -> Glyphs:
    from chopper_tui.terminal import glyphs_of

    return glyphs_of(sys.stdout)


class _PrintVersion(argparse.Action):
    """Looks the version up only when it is asked for: that takes a tenth of the first paint."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{PROGRAM} {_version()}")
        parser.exit()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("chopper-tui")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
