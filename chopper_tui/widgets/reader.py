"""A text over the explorer, scrolled and searched: details, notes, and the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from textwrap import wrap
from typing import ClassVar, NamedTuple

from rich.style import Style
from rich.text import Text
from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chopper_core.columns.quantities import QUANTITIES
from chopper_core.model.glossary import OPERATIONS, TERMS
from chopper_core.model.phrases import level_title
from chopper_core.views import TABS, TREE, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.spec import FIGURE, SUMS
from chopper_tui.keymap import GROUPS, INFO, Action
from chopper_tui.widgets.dialogs import Sought


class TextReader(Sought[None]):
    """A text, until a key closes it; `/` shows only what matches, Enter then the first of it
    in its place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("enter", "keep", show=False),
        Binding("left,q,i,question_mark,h", "cancel", show=False),
        Binding("down,j", "scroll_by(1)", show=False),
        Binding("up,k", "scroll_by(-1)", show=False),
        Binding("pagedown,ctrl+d,ctrl+f,space", "page(1)", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        *(Binding(digit, f"digit('{digit}')", show=False) for digit in "0123456789"),
    ]
    types_at_once: ClassVar[bool] = False
    _box = getters.query_one(VerticalScroll)

    def apply_search(self, words: Sequence[str]) -> None:
        shown = Text()
        for entry in self._entries:
            if all(word in entry.plain.lower() for word in words):
                shown.append_text(entry)
        self.query_one(Static).update(shown if words else self._text)
        self._box.border_title = Content(self._title + self.typed)
        self._box.scroll_home(animate=False)

    def __init__(
        self,
        title: str,
        text: Text,
        perform: Callable[[str, str], None],
        *,
        passes_digits: bool = False,
        at: str = "",
    ) -> None:
        """Show a text from the first entry on that has the words of `at`; what closes it may
        perform an action: a click, or a digit for a view."""
        super().__init__()
        self._at = at.lower().split()
        self._title = title
        self._text = text
        self._perform = perform
        self._passes_digits = passes_digits

    def action_digit(self, digit: str) -> None:
        if self._passes_digits:
            self.dismiss(None)
            if digit != "0":
                self._perform("view", digit)

    def action_performed(self, action_id: str, argument: str) -> None:
        """Close, and perform the action of an entry that was clicked."""
        self.dismiss(None)
        self._perform(action_id, argument)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box", can_focus=False) as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "/ searches, esc closes"
            yield Static(self._text)

    @cached_property
    def _entries(self) -> list[Text]:
        """Those of the text; splitting it for each key of a burst took seconds."""
        return _entries(self._text)

    def on_mount(self) -> None:
        if self._at:
            self.call_after_refresh(self._go_to, self._at)

    def action_keep(self) -> None:
        """Go to the first entry that has what is searched for, in the whole text; without a search
        close it."""
        if not self.is_typing:
            self.action_cancel()
            return
        words = self.search_text.split()
        self.is_typing = False
        self._type("")
        self.call_after_refresh(self._go_to, words)

    def _go_to(self, words: Sequence[str]) -> None:
        """Put the first entry with some words at the top, below the heading that it stands under
        where that is near."""
        head, lines, width = 0, 0, self.query_one(Static).content_size.width
        for entry in self._entries:
            if all(word in entry.plain.lower() for word in words):
                is_near = lines - head < self._box.size.height // 2
                self._box.scroll_to(y=head if is_near else lines, animate=False)
                return
            if not entry.plain.startswith((" ", "\n")):
                head = lines
            *whole, _ = entry.split("\n", allow_blank=True)
            lines += sum(len(line.wrap(self.app.console, width)) for line in whole)

    def action_scroll_by(self, lines: int) -> None:
        self._box.scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        self._box.scroll_relative(y=pages * max(self._box.size.height - 1, 1), animate=False)

    def action_edge(self, end: int) -> None:
        if end:
            self._box.scroll_end(animate=False)
        else:
            self._box.scroll_home(animate=False)


def _entries(text: Text) -> list[Text]:
    """The entries of a text: a line, and those below it that are set further in."""
    found: list[Text] = []
    margin = 0
    for line in text.split("\n", include_separator=True, allow_blank=True):
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        if found and line.plain.strip() and indent > margin + 2:
            found[-1].append_text(line)
        else:
            margin = indent
            found.append(line)
    return found


_FILTER = (
    ("gemm", "names that match a regular expression, ignoring case"),
    ("!copy", "names that don't"),
    ("time>1ms", "a comparison with a column, by name, title or heading: > >= < <= = !="),
    ("gpu:0-3,7", "labels of the rows' level, numbers in ranges"),
    ("class=gemm,copy", "values of a text column, ignoring case"),
)
_HEAD_CELLS = 19
"""Cells for keys, or for the title of a column."""
_STACKED_BELOW = 60
"""Width below which the text of an entry is under its head."""


def help_text(
    actions: Sequence[Action],
    frame: Frame,
    width: int,
    key_style: Style | None = None,
    explained: Sequence[tuple[str, str]] = (),
) -> Text:
    """Help on what the cursor is on, this screen, all keys and words; a click performs an entry."""
    help_ = _Help(max(min(width * 96 // 100, 110) - 6, 20), key_style or Style(bold=True))
    if explained:
        help_.section("At the cursor")
    for head, body in explained:
        help_.entry(head, body)
    title, lines = _here(frame)
    help_.section(title)
    for head, body in lines:
        help_.entry(head, body)
    own = [each for each in actions if each.view and each.view == frame.view.name]
    for action in own:
        help_.action(action)
    help_.section("Places and their tabs: a digit opens a place, again its next tab")
    for key, title, name, asks, splits in tab_rows():
        body = f"{asks} Split by {splits}." if splits else asks
        help_.entry(f"{key}  {title}", body, f":view {name}", performs=("view", name))
    for group in GROUPS:
        help_.section(group)
        for action in actions:
            if action.group == group and action not in own:
                help_.action(action)
    help_.section("Filter: terms with spaces between; a row must match all of them")
    for term, meaning in _FILTER:
        help_.entry(term, meaning)
    help_.section("Columns of this table")
    for metric in frame.columns:
        unit = f" ({metric.unit})" if metric.unit and not metric.title.endswith(metric.unit) else ""
        help_.entry(f"{metric.title}{unit}", f"{metric.definition} [{metric.name}]")
    help_.section("Quantities: the same on every screen (docs/quantities.md)")
    for each in QUANTITIES.values():
        help_.entry(each.name, f"{each.definition} Base: {each.base}. Counts: {each.covers}.")
    help_.section("Operations: the paper's short names")
    for name, long in OPERATIONS.items():
        help_.entry(name, long)
    help_.section("Terms")
    for term, meaning in TERMS.items():
        help_.entry(term, meaning)
    return help_.text


class _Help:
    """Sections of entries, written into a text."""

    def __init__(self, room: int, key_style: Style) -> None:
        self.text = Text()
        self._room = room
        self._key_style = key_style

    def section(self, title: str) -> None:
        self.text.append(("\n" if self.text else "") + title + "\n", "bold")

    def action(self, action: Action) -> None:
        self.entry(action.key_names, action.help, action.command, (action.id, ""))

    def entry(
        self, head: str, body: str, command: str = "", performs: tuple[str, str] | None = None
    ) -> None:
        """Write a head with the text next to it, or under it on a narrow screen."""
        text, begin = self.text, len(self.text)
        is_stacked = self._room < _STACKED_BELOW
        indent = 6 if is_stacked else _HEAD_CELLS + 2
        margin = "\n" + " " * indent
        lines = wrap(body, max(self._room - indent, 16))
        text.append("  ")
        text.append(head, self._key_style)
        own_line = is_stacked or len(head) >= _HEAD_CELLS
        text.append(margin if own_line else " " * (_HEAD_CELLS - len(head)))
        text.append(margin.join(lines), "dim")
        if command:
            room_left = self._room - indent - len(lines[-1])
            text.append("  " if len(command) + 2 <= room_left else margin)
            text.append(command)
        if performs is not None:
            click = {"@click": ("screen.performed", performs)}
            text.stylize(Style(meta=click), begin, len(text))
        text.append("\n")


class TabRow(NamedTuple):
    """A view as the help and the docs list it."""

    key: str
    title: str
    """Its place and its tab there."""
    name: str
    question: str
    splits: str = ""


def tab_rows() -> list[TabRow]:
    """Every view, in the order of the places and their tabs; last what `!` opens."""
    rows = []
    for name, tab in TABS.items():
        if name == TREE:
            rows.append(TabRow(tab.place, tab.name, name, "Where does the scope's time go?"))
        else:
            spec = view_spec(name)
            rows.append(TabRow(tab.place, tab.name, name, spec.question, ", ".join(spec.by)))
    asks = "Which sources were read, aligned, labelled or left out?"
    return [*rows, TabRow("!", "Notes and sources", INFO, asks)]


def _here(frame: Frame) -> tuple[str, list[tuple[str, str]]]:
    view = frame.view
    if not view.name:
        if view.is_leaf:
            return "Here: a single activity", [("i", "shows all its figures; esc goes up.")]
        rows = f"a row per {level_title(frame.level)}; enter opens it, p splits by another level."
        return f"Here: {level_title(frame.level)}s of the scope", [("rows", rows)]
    known = view_spec(view.name)
    lines = [("question", known.question)]
    if known.by:
        lines.append(("p  :by", f"splits by {', '.join(known.by)}; now by {view.by or 'default'}."))
    if known.of:
        figure = {FIGURE: "any figure", SUMS: "any time, count or amount"}.get(known.of, known.of)
        lines.append(("m  :of", f"chooses its figure: {figure}; now {view.of or 'the default'}."))
    if len(frame.charts) > 1:
        lines.append(("M", f"shows the next of its {len(frame.charts)} charts."))
    lines.append(("enter, esc", "go to the evidence of a row and back; 1 to the tree."))
    return f"Here: {known.title}", lines
