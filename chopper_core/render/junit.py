"""Results of limits as JUnit XML, which the pages of CI jobs show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chopper_core.analyses.gate import FAIL, INCONCLUSIVE, UNCHECKED
from chopper_core.util.escape import Escaped, clean, escape_lines

ERROR: Final = "error"
"""The result of a limit that wasn't judged."""
_ELEMENTS: Final = {
    FAIL: "failure",
    INCONCLUSIVE: "skipped",
    UNCHECKED: "error",
    ERROR: "error",
}


def as_junit(suite: str, results: Iterable[tuple[str, str, str]]) -> Escaped:
    """A test suite with a case per limit: its text, its verdict or `ERROR`, and its sentence."""
    cases, counts = [], dict.fromkeys(_ELEMENTS.values(), 0)
    for limit, verdict, sentence in results:
        begin = f'  <testcase classname="chopper.diff" name="{_quoted(limit)}"'
        element = _ELEMENTS.get(verdict)
        if element is None:
            cases.append(f"{begin}><system-out>{_quoted(sentence)}</system-out></testcase>")
            continue
        counts[element] += 1
        cases.append(f'{begin}><{element} message="{_quoted(sentence)}"/></testcase>')
    head = (
        f'<testsuite name="{_quoted(suite)}" tests="{len(cases)}" failures="{counts["failure"]}" '
        f'errors="{counts["error"]}" skipped="{counts["skipped"]}">'
    )
    return escape_lines(
        "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])
    )


def _quoted(text: str) -> str:
    from html import escape

    return escape(clean(text, is_sentence=True))
