"""The actions that seek: names anywhere, the next hit, the next outlier, the rows that matter."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import Final

from msgspec.structs import replace

from chopper_core.metrics import METRICS
from chopper_core.model.view import filtered
from chopper_core.query.outliers import FACTOR, MAD_TO_SIGMA, outliers
from chopper_core.render.cells import cell_width, crumb, display_name, elide, scale_of
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.names import fitting_names
from chopper_core.util.errors import UsageError
from chopper_core.views.find import Found, find, hit_rows
from chopper_core.views.query import query
from chopper_tui.background import away
from chopper_tui.draw.figures import Figure
from chopper_tui.screens.chooser import Chooser, room_of
from chopper_tui.screens.walker import Walker

HIDDEN_BELOW_PCT: Final = "1"
_SHARE: Final = re.compile(r"(?:^|\s+)share_pct>=(\S+)")


class Seeker(Walker):
    """A walker that looks for something."""

    sought = ""
    """What was found or filtered last."""

    def do_find(self, argument: str) -> Awaitable[None] | None:
        """Names over the whole run."""
        if argument:
            return self._find(argument)
        self.open_prompt(":", "find ")
        return None

    async def _find(self, argument: str) -> None:
        order, glyphs = self.view.order, self.table.glyphs
        found = await away(find, self.run, order, argument)
        if not found.hits:
            raise UsageError(f"no operation and no kernel of the run matches {argument!r}")
        self.sought = argument
        options = _options(found, order, room_of(self.app.size.width), glyphs)

        def chosen(key: str | None) -> None:
            if key is not None:
                self.take(lambda: self._to_hit(found, int(key)))

        self.app.push_screen(Chooser(_title_of(found), options), chosen)

    async def do_next_hit(self, _: str) -> None:
        """The next row that matches."""
        self._to_next(self._hits(), 1, f"hit of {self.sought}")

    async def do_previous_hit(self, _: str) -> None:
        """The row before that matches."""
        self._to_next(self._hits(), -1, f"hit of {self.sought}")

    async def do_next_outlier(self, _: str) -> None:
        """The next row that lies outside."""
        await self._outlier(1)

    async def do_previous_outlier(self, _: str) -> None:
        """The row before that lies outside."""
        await self._outlier(-1)

    async def do_hide(self, argument: str) -> None:
        """Rows below a share of their parent: a term of the filter, so the address has it."""
        before = self.view.filter
        rest = _SHARE.sub("", before).strip()
        if not argument and rest != before:
            await self.change(filtered(self.view, rest))
            self.say("all rows again")
            return
        number = (argument or HIDDEN_BELOW_PCT).removesuffix("%").strip()
        if not re.fullmatch(r"\d+(\.\d+)?", number):
            raise UsageError(
                f"{argument!r} is no share; :hide 0.5% hides rows below half a percent"
            )
        await self.change(filtered(self.view, f"{rest} share_pct>={number}%".strip()))
        self.say(f"{self.frame.hidden_text}; filter {self.view.filter}")

    async def _to_hit(self, found: Found, number: int) -> None:
        hit = found.hits[number]
        view = replace(self.view, path=hit.path, sort="", filter="")
        # Its parent's table, with the cursor on it: n and N go on from there.
        await self.go(self.trail_to(view)[:-1], f"hit {number + 1} of {found.nodes}")

    def _hits(self) -> Sequence[int]:
        text = self.sought or self.view.filter
        if not text:
            raise UsageError("nothing was sought yet: f finds a name, / filters")
        self.sought = text
        return hit_rows(self.frame, text)

    async def _outlier(self, step: int) -> None:
        frame = self.frame
        name = frame.sort.removeprefix("-")
        if name not in frame.values or frame.values[name].words is not None:
            numbers = [each for each in frame.values if frame.values[each].words is None]
            usual = next(iter(numbers), "") if self.view.name else "elapsed_ns"
            name = name if name in METRICS else usual
        if name not in frame.values:
            frame = await away(query, self.run, replace(self.view, columns=(name,)))
        found = outliers(frame.values[name])
        column = next(each for each in frame.columns if each.name == name)
        glyphs = self.table.glyphs

        def text(number: float) -> str:
            return Figure(column, number).text(glyphs)

        rule = f"median {text(found.median)}, ±{text(found.limit)} ({FACTOR}×{MAD_TO_SIGMA}×MAD)"
        if not found.rows:
            raise UsageError(f"no outlier by {column.title}: {rule}")
        row = self._to_next(found.rows, step, "")
        number = found.rows.index(row) + 1
        value = frame.values[name].at(row)
        assert value is not None
        which = f"outlier {number} of {len(found.rows)}"
        self.say(f"{which}: {column.title} {text(value)}; {rule}")

    def _to_next(self, rows: Sequence[int], step: int, what: str) -> int:
        """To the next of the rows, past the end to the first one."""
        if not rows:
            raise UsageError(f"no {what} in this table")
        table = self.table
        later = [row for row in rows if (row - table.cursor) * step > 0]
        ahead = later or list(rows)
        row = min(ahead) if step > 0 else max(ahead)
        table.move_to(row)
        if what:
            self.say(f"{what}: {rows.index(row) + 1} of {len(rows)}")
        return row


def _options(
    found: Found, order: Sequence[str], room: int, glyphs: Glyphs
) -> list[tuple[str, str, str]]:
    """The hits in `room` cells: time, name, and the way there, the name shortened first."""
    scale = scale_of(METRICS["elapsed_ns"], found.hits[0].elapsed_ns)
    times = [f"{scale.cell(hit.elapsed_ns):>8} {scale.unit}  " for hit in found.hits]
    room -= max(map(len, times)) + 2
    ways = [
        f" {glyphs.crumb} ".join(
            crumb(level, label) for level, label in zip(order, hit.path[:-1], strict=False)
        )
        for hit in found.hits
    ]
    names = fitting_names(
        tuple(display_name(hit.path[-1], hit.level) for hit in found.hits),
        max(room - max(map(cell_width, ways)), room * 2 // 5),
        glyphs,
    )
    left = room - max(map(cell_width, names))
    return [
        (str(number), time + name, elide(way, left, glyphs))
        for number, (time, name, way) in enumerate(zip(times, names, ways, strict=True))
    ]


def _title_of(found: Found) -> str:
    shown = f", the {len(found.hits)} longest" if found.nodes > len(found.hits) else ""
    names = f"{found.names} name{'s' if found.names != 1 else ''}"
    return f"{found.nodes} place{'s' if found.nodes != 1 else ''} of {names}{shown}"
