"""Titles of charts: levels are named in them as everywhere on a screen."""

from __future__ import annotations

import re

import pytest

from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import query
from tests.tui.explorer import measured_run

ADDRESSED = re.compile(r"\b(gpu|iterations?|it)\b")
"""How addresses name levels; a sentence says GPU and step."""


@pytest.mark.parametrize("name", VIEWS)
def test_titles_name_levels_as_people_do(name: str) -> None:
    run = measured_run()
    for by in ("", *view_spec(name).by):
        try:
            frame = query(run, View(run.name, name=name, by=by))
        except ChopperError:
            continue  # The run has none of it.
        titles = [each.title for each in (*frame.charts, *frame.columns)]
        wrong = [each for each in titles if ADDRESSED.search(each.replace("waits for it", ""))]
        assert not wrong, (name, by)
