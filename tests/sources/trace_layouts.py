"""A trace, written in the layouts that exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Events = list[dict[str, Any]]
Keys = dict[str, Any]


def fields(values: dict[str, Any], separators: tuple[str, str] = (", ", ": ")) -> str:
    return json.dumps(values, separators=separators)[1:-1]


def libkineto(events: Events, keys: Keys) -> str:
    """As libkineto prints it: two spaces, a few keys to a line, the keys around the events."""
    written = []
    for event in events:
        head = {key: value for key, value in event.items() if key != "args"}
        text = "  {\n    " + fields(head)
        if "args" in event:
            separator = ",\n    " if head else ""
            text += separator + '"args": {\n      ' + fields(event["args"]) + "\n    }"
        written.append(text + "\n  }")
    before = "".join(f"  {fields({key: value})},\n" for key, value in keys.items())
    return (
        "\n{\n"
        + before
        + '  "traceEvents": [\n'
        + ",\n".join(written)
        + '\n  ],\n  "traceName": "t"\n}'
    )


def compact(events: Events, keys: Keys) -> str:
    return json.dumps({**keys, "traceEvents": events})


def tight(events: Events, keys: Keys) -> str:
    return json.dumps({**keys, "traceEvents": events}, separators=(",", ":"))


def indent_2(events: Events, keys: Keys) -> str:
    return json.dumps({**keys, "traceEvents": events}, indent=2)


def indent_4(events: Events, keys: Keys) -> str:
    return json.dumps({**keys, "traceEvents": events}, indent=4, ensure_ascii=False)


def windows_lines(events: Events, keys: Keys) -> str:
    return indent_2(events, keys).replace("\n", "\r\n")


def keys_after(events: Events, keys: Keys) -> str:
    return json.dumps({"traceEvents": events, **keys})


def keys_after_indented(events: Events, keys: Keys) -> str:
    return json.dumps({"traceEvents": events, **keys}, indent=2)


def uneven(events: Events, keys: Keys) -> str:
    """Separators that change from event to event."""
    separators = (",", ", ", ",\n", " ,\n\t", "\n,")
    text = "".join(
        json.dumps(event)
        + (separators[number % len(separators)] if number + 1 < len(events) else "")
        for number, event in enumerate(events)
    )
    return json.dumps(keys)[:-1] + (", " if keys else "") + f'"traceEvents" : [{text}]}}'


LAYOUTS: dict[str, Callable[[Events, Keys], str]] = {
    layout.__name__: layout
    for layout in (
        libkineto,
        compact,
        tight,
        indent_2,
        indent_4,
        windows_lines,
        keys_after,
        keys_after_indented,
        uneven,
    )
}


def bare(events: Events) -> str:
    return json.dumps(events)


def bare_unterminated(events: Events) -> str:
    return "[\n" + "".join(json.dumps(event) + ",\n" for event in events)


BARE_LAYOUTS: dict[str, Callable[[Events], str]] = {
    layout.__name__: layout for layout in (bare, bare_unterminated)
}
