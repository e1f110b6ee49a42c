"""Cards as text."""

from __future__ import annotations

from chopper_core.model.charts import Card
from chopper_core.render.glyphs import UNICODE
from chopper_tui.draw.bars import card_lines


def test_what_has_no_signs_begins_where_the_others_text_does() -> None:
    """At its first line, too, and not where the signs of others are."""
    finding = Card(("12 ms", "9 ms"), "words " * 20, "R:x", share_pct=9.0, sure=3)
    note = Card((), "", "R:y", "words " * 20)
    begins = {
        "".join(text for text, _ in line).index("words")
        for line in (line for lines in card_lines([finding, note], 60, UNICODE) for line in lines)
    }
    assert len(begins) == 1
