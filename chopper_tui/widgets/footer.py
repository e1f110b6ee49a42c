"""The lines under the table: status, messages, the main keys, and lines of text to type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from msgspec import Struct
from textual import events, getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region
from textual.suggester import Suggester
from textual.widgets import Input

from chopper_core.columns import METRICS
from chopper_core.model.charts import Lanes
from chopper_core.model.inputs import TIMES_NOTES
from chopper_core.model.phrases import count, level_title
from chopper_core.model.units import moment_text, moment_unit
from chopper_core.model.view import RUN_LEVEL
from chopper_core.render import cells
from chopper_core.render.cells import beginning, cell_width, wrapped
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.escape import clean, printable
from chopper_core.util.patterns import late
from chopper_core.views.frame import Frame
from chopper_tui.draw.pieces import Pieces, fit, width_of
from chopper_tui.keymap import COMPARE, EXPORT, TABLE, Action, key_name, plain_key
from chopper_tui.steps import run_in_thread
from chopper_tui.widgets.pane import Pane

_MAX_MESSAGE_LINES: Final = 4
_MORE: Final = " (!)"
_MAX_OFFERED: Final = 40
_WIDE: Final = 110
"""Cells from which the base of the figures has room next to the definition of a column."""


_LEAST_NAME: Final = 8
"""Cells of a name that still tell it from others."""


class Status(Pane):
    """Rows, filter and sort of the table, and a message."""

    frame: Frame | None = None
    marks = 0
    message = ""
    pointed = ""
    is_error = False

    def offer(self, offered: Sequence[str], place: int) -> None:
        """List the completions of a text, from the one that it has become."""
        names = _without_shared(offered)
        self._list(f"{place + 1} of {len(names)}:", [*names[place:], *names[:place]])

    def offer_ahead(self, completions: Sequence[str], answers: Sequence[str]) -> None:
        """List what Tab would complete a text to; else what Enter would offer for it."""
        if completions:
            self._list("tab:", _without_shared(completions))
        else:
            self._list("enter:" if answers else "", answers)

    def _list(self, text: str, names: Sequence[str]) -> None:
        for name in map(clean, names[:_MAX_OFFERED]):
            if cell_width(text) + 2 + cell_width(name) > self.size.width - 4:
                text += f" {self.glyphs.ellipsis}"
                break
            text += f"  {name}"
        self.put(message="", is_error=False, pointed=text)

    def is_cut(self, width: int) -> bool:
        """Whether the message has more lines than are shown; the notes have all of it."""
        return len(wrapped(self.message, max(width - 2, 1))) > _MAX_MESSAGE_LINES

    def lines_wanted(self, width: int) -> int:
        return min(max(len(wrapped(self.message, max(width - 2, 1))), 1), _MAX_MESSAGE_LINES)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """A message takes the line, or as many as it needs; otherwise the table has it."""
        if self.message:
            message_lines = wrapped(self.message, max(width - 2, 1))
            if len(message_lines) > height:
                more, rest = (
                    _MORE if self.is_cut(width) else "",
                    " ".join(message_lines[height - 1 :]),
                )
                last = beginning(rest, width - 2 - len(more), self.glyphs) + more
                message_lines[height - 1 :] = [last]
            ink = "warning" if self.is_error else "strong"
            return [[(f" {cells.pad(line, max(width - 2, 0))} ", ink)] for line in message_lines]
        if self.pointed:
            return [[(f" {beginning(self.pointed, width - 2, self.glyphs)}", "text")]]
        if self.frame is None:
            return []
        frame, glyphs = self.frame, self.glyphs
        arrow = glyphs.order(frame.sort)
        column = frame.sort.removeprefix("-")
        titles = {each.name: each.title for each in frame.columns}
        title = titles.get(column) or (METRICS[column].title if column in METRICS else column)
        parts = [
            (f"{len(frame)} of {len(frame) + frame.hidden} rows", ""),
            (frame.hidden_text, ""),
            ("filter ", clean(frame.view.filter) or glyphs.missing),
            ("sort ", title + arrow if column else f"by {level_title(frame.level)}"),
        ]
        if frame.base:
            parts.append((clean(frame.base), ""))
        if self.marks:
            parts.append(("marks ", str(self.marks)))
        line, notes = self._state(parts), other_notes(frame)
        defined = next((each for each in frame.columns if each.name == column), None)
        if defined is not None and frame.view.sort:
            # A person put the cursor of the columns there: what it is stands below the table.
            kept = (parts[0], *parts[2:4], *parts[4 + (bool(frame.base) and width < _WIDE) :])
            line = self._state([part for part in kept if part != ("filter ", glyphs.missing)])
            more = f"  {count(len(notes), 'note')} (!)" if notes else ""
            room = width - width_of(line) - len(more) - 1
            line.append((beginning(" ".join(defined.definition.split()), room, glyphs), "dim"))
            return [[*line, (more, "dim")]]
        if notes and cell_width(notes[0]) + len("2 notes (!): ") >= width - width_of(line):
            # A note needs the room of those that say that there is nothing.
            nothing = (("0 hidden", ""), ("filter ", glyphs.missing))
            line = self._state([part for part in parts if part not in nothing])
        if notes:
            text, room = f"note: {notes[0]}", width - width_of(line) - 1
            if len(notes) > 1 or len(text) > room:
                title = "note" if len(notes) == 1 else f"{len(notes)} notes"
                text = beginning(f"{title} (!): {notes[0]}", room, glyphs)
            line.append((text, "dim"))
        return [line]

    def _state(self, parts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        line: list[tuple[str, str]] = [(" ", "text")]
        for label, value in parts:
            shown = fit(value, min(len(value), 40), self.glyphs)
            line += [(label, "dim"), (shown, "strong"), ("  ", "text")]
        return line


def _without_shared(offered: Sequence[str]) -> list[str]:
    """Completions without the words that all of them begin with."""
    first, last = min(offered), max(offered)
    shared = first[: next((i for i, c in enumerate(first) if last[i : i + 1] != c), None)]
    begin = max(map(shared[: len(first) - 1].rfind, " ,/?&=:")) + 1
    return [each[begin:] for each in offered]


_TRUNCATED: Final = late(r"steps? [\d, ]+ (is|are) (truncated|missing|warm-up)")
"""The note of which the breadcrumb's line has a short form."""


def other_notes(frame: Frame) -> list[str]:
    """The notes of a frame that the screen doesn't show in another way."""
    return [
        note
        for note in frame.notes
        if not note.startswith(("generated", *TIMES_NOTES, f"{frame.hidden} of", "the baseline is"))
        and not _TRUNCATED.match(note)
    ]


_PAIRS: Final = {
    "0": "0-6",
    "]": "[ ]",
    "}": "{ }",
    "space": "spc",
    "shift+tab": "⇧tab",
    "+": "+ -",
    "d": "a d",
    "→": "← →",
    ".": ", .",
}
"""Keys that are named with their counterparts, or shorter."""


_LATER: Final = ("what_if", "predict", "command", "quit")
"""Keys that are named after those of the table."""


def _place(action: Action) -> int:
    """Where a key is named: that to the next panel after those that most screens are for."""
    if action.id in _LATER:
        return 3
    is_rare = action.group in (TABLE, COMPARE, EXPORT) and action.id not in ("filter", "sort")
    return 2 if is_rare else int(action.id in ("next_pane", "previous_tab"))


class KeyLine(Pane):
    """The keys that are used most, those of the view first; each is a button."""

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._all = actions
        hinted = [action for action in actions if action.hint and action.keys]
        self._actions = sorted(hinted, key=_place)

    view = ""

    def redraw(self) -> None:
        """List the keys for the cursor's row; not while the table still has the rows before."""
        if self.explorer.table.frame is self.explorer.frame:
            super().redraw()

    @property
    def able(self) -> Sequence[Action]:
        """The actions that do something at the cursor, those of the view among them."""
        own = [each for each in self._actions if each.view and each.view == self.view]
        taken = {key for action in own for key in action.keys}
        general = [a for a in self._actions if not a.view and a.keys[0] not in taken]
        screen = self.explorer
        return [each for each in (*own, *general) if each.can is None or each.can(screen)]

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """As many keys as fit; the command line always does."""
        able = self.able
        own = [action for action in able if action.view]
        general = [action for action in able if not action.view]
        if self.explorer.frame.level == RUN_LEVEL:
            # Runs are there to be marked and compared.
            general.sort(key=lambda each: each.id not in ("enter", "mark", "compare"))
        shown = [*general[:2], *own, *general[2:]] if own else general
        hints = [self._hint(action) for action in shown]
        sizes = [2 + sum(cell_width(text) for text, _ in hint) for hint in hints]
        while len(hints) > 1 and sum(sizes) > width + 1:
            last = max(at for at in range(len(shown)) if shown[at].id != "command")
            del shown[last], hints[last], sizes[last]
        line: list[tuple[str, str]] = []
        for hint in hints:
            line.append(("  " if line else " ", "dim" if line else "text"))
            for (text, action_id), ink in zip(hint, ("strong", "strong", "dim"), strict=True):
                line.append((text, f"{ink}@{action_id}"))
        return [line]

    def _hint(self, action: Action) -> Sequence[tuple[str, str]]:
        """The first key, the other one of a pair, and the word; each with its action."""
        key = key_name(action.keys[0])
        if action.id == "previous_tab":
            # The digit of the place opens its next tab.
            return (self.explorer.place, "view"), ("", "view"), (f" {action.hint}", "view")
        first, space, second = _PAIRS.get(key, key).partition(" ")
        before = self._counterpart(first, action) if second else ""
        if self.glyphs.is_ascii:
            first, second = plain_key(first), plain_key(second)
        return (
            (first, before or action.id),
            (space + second, action.id),
            (f" {action.hint}", action.id),
        )

    def _counterpart(self, key: str, action: Action) -> str:
        names = (name for name in self._all if name.view == action.view and name is not action)
        return next((each.id for each in names if key in map(key_name, each.keys)), "")


class TooSmall(Pane):
    """One line in place of all other parts."""

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        texts = ("too small: 40x10 needed", "40x10 needed", "40x10")
        text = next((each for each in texts if len(each) <= width), texts[-1])
        return [[(fit(text, width, self.glyphs), "text")]]


def pointed_text(frame: Frame, lanes: Lanes, row: int, width: int, glyphs: Glyphs) -> str:
    """The activity of a lane at the timeline's cursor, in one line; else when the next starts."""
    if row >= len(frame):
        return ""
    at = lanes.pointed[row]
    if at.kernel is None or at.duration_ns is None or at.start_ns is None:
        if at.gap_ns is not None and at.host is not None:
            waiting = "" if at.queue is None else f", {at.queue} in queue"
            gap, host = f"{clean(frame.labels[row])}: idle {_time(at.gap_ns)}{waiting}", "; host: "
            room = width - 2 - cell_width(gap + host)
            does = _named_times(clean(at.host), room, glyphs)
            return f"{gap}{host}{does}" if does else gap
        then = [] if at.next_ns is None else [f"next activity in {_time(at.next_ns)}"]
        queue = [] if at.queue is None else [f"{at.queue} in queue"]
        idle = [f"{clean(frame.labels[row])}: idle here", *then, *queue]
        return "; ".join(_fitting(idle, width - 2, gap=2))
    figures = [] if at.layer is None else [f"L{at.layer}"]
    figures.append(f"{_time(at.duration_ns)} at {_time(at.start_ns)}")
    if at.mhz is not None:
        figures.append(f"{at.mhz:.0f} MHz")
    if at.queue is not None:
        figures.append(f"{at.queue} in queue")
    kernel = cells.display_name(at.kernel, "kernel")
    name = kernel if at.operation is None else clean(at.operation)
    least = min(cell_width(name), _LEAST_NAME)
    line = "  ".join(_fitting(figures, width - 4 - least, gap=2))
    line = f"{cells.elide(name, width - 4 - cell_width(line), glyphs)}  {line}"
    room = width - cell_width(line) - 4
    if at.operation is None or room < _LEAST_NAME:
        return line
    return f"{line}  {cells.elide(kernel, room, glyphs)}"


def _fitting(facts: Sequence[str], width: int, gap: int) -> Sequence[str]:
    """The first of some facts that a line has room for, at least one."""
    return facts[: max(cells.fitting(map(cell_width, facts), width + gap, gap), 1)]


def _named_times(text: str, width: int, glyphs: Glyphs) -> str:
    """`copy_ 1.2 ms, launch calls 9 µs` in a width: names give way, figures don't, or go with
    their name, the last first."""
    if cell_width(text) <= width:
        return text
    parts = [each.rsplit(" ", 2) for each in text.split(", ")]
    while parts:
        figures = [" ".join(["", *figure]) for _, *figure in parts]
        room = width - sum(map(cell_width, figures)) - 2 * (len(parts) - 1)
        if room >= _LEAST_NAME * len(parts):
            break
        parts.pop()
    if not parts:
        return ""
    names = [name for name, *_ in parts]
    longest = max(map(cell_width, names))
    while sum(min(cell_width(name), longest) for name in names) > room:
        longest -= 1
    cut = (cells.elide(name, longest, glyphs) for name in names)
    return ", ".join(name + figure for name, figure in zip(cut, figures, strict=False))


def _time(ns: int) -> str:
    if ns < 1_000_000:
        return f"{ns / 1e3:.3f} µs"
    return f"{moment_text(ns, 3)} {moment_unit(ns)}".rstrip()


Complete = Callable[[str, str], Sequence[str]]
"""(text up to the cursor, text after it) → completions."""


class Question(Struct, frozen=True):
    """What is asked for, and what becomes of the text: each answer is a step of the screen."""

    sign: str
    """The character in front of the text: `/` for a filter, `:` a command, `@` an address."""
    text: str
    entered: Callable[[str], Awaitable[None] | None]
    cursor: int | None = None
    changed: Callable[[], Awaitable[None] | None] | None = None
    cancelled: Callable[[], Awaitable[None] | None] | None = None
    complete: Complete | None = None
    answers: Callable[[str], list[str]] | None = None
    """What Enter would offer for a text that nothing completes."""


class _Sign(Pane):
    """The character in front of the text."""

    sign = "/"

    def lines(self, width: int, height: int) -> list[Pieces]:
        return [[(f" {self.sign}", "strong")]]


class InlineSuggester(Suggester):
    """Shows the first completion behind the text, which → takes, and lists what there is."""

    def __init__(self, line: PromptLine, question: Question, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._line, self._question, self._complete = line, question, complete

    async def get_suggestion(self, value: str) -> str | None:
        found = await run_in_thread(self._complete, value, "")
        asked, answers = self._question.answers, list[str]()
        if asked is not None and not found and self._line.has_text(value):
            answers = await run_in_thread(asked, value)
        if self._line.has_text(value):
            self._line.list_ahead(found, answers)
        return next((each for each in found if each.startswith(value) and each != value), None)


class PromptLine(Input):
    """The text; Esc cancels, Tab completes, the arrows recall earlier texts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(0)", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    question: Question
    _offered: Sequence[str] = ()
    _place = 0
    _draft = ""

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._entered: dict[str, list[str]] = {}

    @property
    def history(self) -> list[str]:
        return self._entered.setdefault(self.question.sign, [])

    @property
    def _explorer(self) -> Any:
        return self.screen

    def begin(self, question: Question) -> None:
        self.question, complete = question, question.complete
        self.suggester = None if complete is None else InlineSuggester(self, question, complete)
        self._offered, self._place, self._draft = (), len(self.history), question.text
        with self.prevent(Input.Changed):
            self._put(question.text, question.cursor)
        # At once: Widget.focus waits for its turn, after the keys that came in between.
        self.screen.set_focus(self)

    def has_text(self, text: str) -> bool:
        """Whether a text is still that of the open prompt."""
        return self._explorer.prompt.display and text == self.value

    def list_ahead(self, completions: Sequence[str], answers: Sequence[str]) -> None:
        """List what Tab or Enter would offer for what was typed, unless the screen follows it."""
        before = self.value[: self.cursor_position]
        is_typed = self.value != self.question.text and before not in self._offered
        if is_typed and self.question.changed is None:
            self._explorer.status.offer_ahead(completions, answers)

    def action_complete(self, step: int) -> None:
        """The next completion of the text before the cursor; after the last comes the first."""
        complete, cursor = self.question.complete, self.cursor_position
        if complete is None:
            return
        text, rest = self.value[:cursor], self.value[cursor:]
        if text in self._offered and len(self._offered) > 1:
            place = self._offered.index(text) + step
        else:
            self._offered, place = complete(text, rest), 0 if step > 0 else -1
        if self._offered:
            place %= len(self._offered)
            self._put(self._offered[place] + rest, len(self._offered[place]))
            self._explorer.status.offer(self._offered, place)

    def action_recall(self, step: int) -> None:
        if self._place == len(self.history):
            self._draft = self.value
        self._place = max(0, min(self._place + step, len(self.history)))
        at_end = self._place == len(self.history)
        self._put(self._draft if at_end else self.history[self._place])

    def _put(self, text: str, cursor: int | None = None) -> None:
        self.value = printable(text)
        self.cursor_position = len(text) if cursor is None else cursor

    def on_resize(self) -> None:
        """Keep the cursor in sight, also when the line has its width for the first time."""
        cursor = Region(self.cursor_position, 0, width=1, height=1)
        self.scroll_to_region(cursor, force=True, animate=False)

    def pasted(self, event: events.Paste) -> None:
        self.replace(event.text, *sorted(self.selection))

    async def action_submit(self) -> None:
        self.action_answer(True)

    def action_answer(self, is_entered: bool) -> None:
        """Close and hand the text over at once, before the keys that follow; or cancel."""
        text, question = self.value, self.question
        if is_entered and text.strip():
            self.history[:] = [*(each for each in self.history if each != text), text]
        self._explorer.close_prompt()
        if is_entered:
            self._explorer.steps.add(lambda: question.entered(text))
        elif question.cancelled is not None:
            self._explorer.steps.add(question.cancelled)


class Prompt(Horizontal):
    """A sign and a text; hidden until it is opened."""

    line = getters.query_one(PromptLine)

    def compose(self) -> ComposeResult:
        yield _Sign()
        yield PromptLine()

    def open(self, question: Question) -> None:
        sign = self.query_one(_Sign)
        sign.sign = question.sign
        sign.redraw()
        self.line.begin(question)
        self.display = True
