"""The command line: finds the command, and reports errors in a sentence."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NoReturn

from chopper_core.util import debug, memory
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.plugins import problems
from chopper_core.util.progress import Cancelled
from chopper_tui import __version__, terminal
from chopper_tui.commands import COMMANDS, PROGRAM, command_module
from chopper_tui.commands.output import keep_input, tell, write
from chopper_tui.last_screen import last_screen
from chopper_tui.terminal import remark

_MAX_RECENT: Final = 10

_DESCRIPTION: Final = """\
Where does the time of an LLM training step go, and why?

{commands}

`chopper COMMAND --help` lists the options of a command. Without a terminal the
explorer prints the view, as `show` does.
"""
_OWN_OPTIONS: Final = """
    RUN* | traces, a directory, or an address
    --version | print the version"""
_COMMAND_CELLS: Final = 25
_DEBUG: Final = "--debug"
_DEBUG_HELP: Final = (
    f"{_DEBUG}[=FILE] with any command adds timings of its steps and the tracebacks behind its "
    "errors, on standard error or in FILE."
)


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names, and reports a usage error in one sentence."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **options)

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        """The options of a command line, an address in two words (`RUN ?view=…`) as one."""
        found, unknown = self.parse_known_args(self._joined(words))
        if unknown:
            self.error(self._unknown(unknown))
        return found

    def _joined(self, words: Sequence[str]) -> list[str]:
        """The words, those that go on an address with the argument before them."""
        joined: list[str] = []
        run, is_value = -1, False
        for place, word in enumerate(words):
            if word == "--":
                return [*joined, *words[place:]]
            if not is_value and run >= 0 and word.startswith("?") and not os.path.exists(word):
                has_options = "?" in joined[run] and not os.path.exists(joined[run])
                joined[run] += f"&{word[1:]}" if has_options else word
                continue
            option = self._option_string_actions.get(word)
            if not is_value and option is None and not word.startswith("-"):
                run = len(joined)
            is_value = option is not None and option.nargs != 0
            joined.append(word)
        return joined

    def _unknown(self, words: Sequence[str]) -> str:
        """A sentence about words that the command doesn't take, with the option that is meant."""
        from difflib import get_close_matches

        from chopper_core.model.address import KEYS

        word, _, value = words[0].partition("=")
        if not word.startswith("--"):
            takes_run = {"address", "run"} & {each.dest for each in self._actions}
            if takes_run and all(map(os.path.exists, words)):
                return (
                    f"one run is expected, not {len(words) + 1} paths: name their directory, or "
                    "join them with commas"
                )
            return f"unexpected argument {' '.join(words)}"
        key, following = word.removeprefix("--"), words[1:2]
        value = value or (following[0] if following and not following[0].startswith("-") else "…")
        if key in KEYS and {"address", "run"} & {each.dest for each in self._actions}:
            return f"unknown option {word}; in an address it is 'RUN?{key}={value}'"
        known = [each for each in self._option_string_actions if each.startswith("--")]
        begun = [each for each in known if each.startswith(word)]
        near = (begun or get_close_matches(word, known, 1, 0.75))[:2]
        return f"unknown option {word}" + (f"; did you mean {' or '.join(near)}?" if near else "")

    def error(self, message: str) -> NoReturn:
        reason = message.removeprefix("argument ")
        remark(f"{self.prog}: {reason}; `{self.prog} --help` lists its options")
        self.exit(2)

    def format_help(self) -> str:
        return f"{super().format_help()}\n{fill(_DEBUG_HELP, 80)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    before = terminal.handlers()
    try:
        try:
            terminal.take(terminal.end_program)
            return _main(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            # A signal may be raised at the call itself.
            terminal.give_terminal_back(before)
    except KeyboardInterrupt as ended:
        terminal.give_terminal_back(before)
        number = getattr(ended, "signal", signal.SIGINT)
        with suppress(OSError):
            notes = getattr(ended, "__notes__", ())
            remark("; ".join([terminal.sentence(number), *notes]))
        return 128 + number


def _main(given: list[str]) -> int:
    _prepare_streams()
    # Modules are not garbage: scanning them takes a tenth of the first paint.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        given = _with_debug(given)
        if not sys.warnoptions and not debug.target:
            warnings.simplefilter("ignore")  # They are for developers: `--debug` or `python -W`.
        with debug.timed("the command"), last_screen(given):
            return _dispatch(given)
    except Exception as error:
        terminal.raise_taken()
        return _failed(error)
    finally:
        for problem in problems():
            tell(problem)
        debug.stop()
        if was_enabled:
            gc.enable()


def _failed(error: Exception) -> int:
    if isinstance(error, Cancelled):
        raise KeyboardInterrupt
    if isinstance(error, BrokenPipeError):
        # The reader went away (`| head`): nothing more to say, not even at the flush on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    debug.note_error(error)
    if isinstance(error, ChopperError):
        tell(str(error))
        return error.exit_code
    no_memory = str(memory.memory_error("this", error))
    tell(no_memory if memory.is_out_of_memory(error) else _of_system(error) or _crashed(error))
    return ChopperError.exit_code


def _with_debug(given: list[str]) -> list[str]:
    rest: list[str] = []
    for place, word in enumerate(given):
        if word == "--":
            return [*rest, *given[place:]]
        name, _, path = word.partition("=")
        if name != _DEBUG:
            rest.append(word)
            continue
        if path:
            keep_input(Path(path))
        try:
            debug.start_log(path or debug.STDERR)
        except OSError as error:
            raise UsageError(f"{word}: {path} can't be written: {error.strerror}") from error
        debug.note(f"{PROGRAM} {shlex.join(given)}")
    return rest


def _of_system(error: Exception) -> str | None:
    """A sentence about an error that is the system's: a full disk, a file that may not be read, a
    directory that is gone."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        if error.filename is None:  # Standard output, which the exit would flush once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        where = error.filename or "the output"
        return f"{where} can't be written: {error.strerror}"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the working directory no longer exists; change to another one"
    if error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return None


def _crashed(error: Exception) -> str:
    try:
        from chopper_tui.config import crash_summary, write_crash
    except MemoryError as shortage:
        return str(memory.memory_error("this", shortage))
    except Exception:
        # A module that can't be imported: what fails next hides why.
        raise error from None
    path = write_crash(error)
    where = f"the traceback is in {path}" if path else f"{_DEBUG} prints the traceback"
    return f"internal error ({crash_summary(error)}); {where}"


def _dispatch(given: list[str]) -> int:
    if given and given[0] in COMMANDS:
        from chopper_tui.commands.arguments import add_options

        command = command_module(given[0])
        parser = Parser(
            f"{PROGRAM} {given[0]}",
            description=command.DESCRIPTION,
            epilog=getattr(command, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(parser, command.OPTIONS)
        parsed = parser.parsed(given[1:])
        if hasattr(parsed, "max_memory"):
            memory.limit_memory(parsed.max_memory)
        return int(command.run(parsed))
    options = _parser().parsed(given)
    if options.version:
        from chopper_core.util.escape import escape_each

        write(escape_each([f"{PROGRAM} {__version__}"]))
        return 0
    memory.limit_memory(options.max_memory)
    if not options.run:
        return _list_recent()
    _refuse_a_mistyped_command(options.run[0])
    from chopper_tui.commands.explore import address_of, explore

    return explore(address_of(options.run), options)


def _list_recent() -> int:
    from chopper_core.ingest import cache
    from chopper_core.render.text import shell_word
    from chopper_core.util.escape import escape_each

    names = [entry.name for entry in cache.entries() if entry.name and os.path.exists(entry.name)]
    if not names:
        raise UsageError(
            f"no run given; `{PROGRAM} DIRECTORY` opens one, `{PROGRAM} demo` shows the demo"
        )
    recent = dict.fromkeys(names[:_MAX_RECENT])
    write(escape_each(f"{PROGRAM} {shell_word(name)}" for name in recent))
    tell(f"the runs that were opened last; `{PROGRAM} demo` shows the demo")
    return 0


def _refuse_a_mistyped_command(word: str) -> None:
    if word.isalpha() and not os.path.exists(word):
        from difflib import get_close_matches

        for near in get_close_matches(word, COMMANDS, 1):
            raise UsageError(
                f"{word} is not a file, directory or command; did you mean `{PROGRAM} {near}`?"
            )


def _parser() -> Parser:
    from chopper_tui.commands.arguments import ADDRESSES, EXPLORING, add_options

    parser = Parser(
        PROGRAM,
        description=_DESCRIPTION.format(commands=_command_table()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=ADDRESSES,
        usage=f"{PROGRAM} [RUN …] | {PROGRAM} COMMAND …",
    )
    add_options(parser, f"{_OWN_OPTIONS}{EXPLORING}")
    return parser


def _command_table() -> str:
    explorer = ("", ("RUN", "explore a run: a trace, or a directory of one per rank"))
    lines = []
    for name, (arguments, summary) in (explorer, *COMMANDS.items()):
        call = " ".join(filter(None, (PROGRAM, name, arguments)))
        gap = " " * (_COMMAND_CELLS - len(call))
        lines.append(f"{call}{gap or chr(10) + ' ' * _COMMAND_CELLS}{summary}")
    return "\n".join(lines)


def _prepare_streams() -> None:
    """Never fail on a character that the locale can't write; data stays UTF-8 when piped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
