"""The explorer in a pseudo-terminal: first paint, time and bytes from a key to a quiet screen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median, quantiles

from tests.tui.terminal_harness import Terminal

SHOWN = "200 of 200 rows"
QUIET_S = 0.06
"""A screen is quiet when nothing has come for this long; it is not counted as latency."""
KEYS = {
    "cursor down": "j",
    "cursor up": "k",
    "page down": "\x1b[6~",
    "page up": "\x1b[5~",
    "reverse the order": "r",
    "into the row": "\r",
    "up again": "\x1b[D",
    "next signal": "M",
}
SIZES = ((80, 24), (200, 60))


def report(rounds: int) -> Iterator[str]:
    """The lines of a markdown table per size."""
    yield "A layer table of 200 rows with telemetry, held in memory; p95 over all presses of a key:"
    for size in SIZES:
        yield ""
        yield from _table(size, rounds)


def _table(size: tuple[int, int], rounds: int) -> Iterator[str]:
    paints = [_first_paint(size) for _ in range(rounds)]
    width, height = size
    yield f"**{width}×{height}**: first paint {median(paints) * 1000:.0f} ms after the start"
    yield ""
    yield "| key | median ms | p95 ms | bytes, median | bytes, most |"
    yield "| :-- | --: | --: | --: | --: |"
    with Terminal("large-measured-restless", size) as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet(0.5)
        seen: dict[str, list[tuple[float, int]]] = {name: [] for name in KEYS}
        for _ in range(rounds * 4):
            for name, key in KEYS.items():
                seen[name].append(_press(terminal, key))
        idle = terminal.quiet(1.0)
    for name, presses in seen.items():
        times = [seconds * 1000 for seconds, _ in presses]
        sent = [count for _, count in presses]
        slow = quantiles(times, n=20, method="inclusive")[-1]
        yield f"| {name} | {median(times):.0f} | {slow:.0f} | {median(sent):.0f} | {max(sent)} |"
    yield f"| nothing, for 1 s | | | {idle} | {idle} |"


def _first_paint(size: tuple[int, int]) -> float:
    start = time.monotonic()
    with Terminal("large-measured", size) as terminal:
        terminal.until_text(SHOWN)
        return time.monotonic() - start


def _press(terminal: Terminal, key: str) -> tuple[float, int]:
    """Seconds until the last byte that a key brought, and how many bytes they were."""
    before = len(terminal.output)
    start = last = time.monotonic()
    terminal.send(key)
    count = before
    while time.monotonic() - last < QUIET_S or count == before:
        terminal.quiet(0.005)
        if len(terminal.output) != count:
            count, last = len(terminal.output), time.monotonic()
        if time.monotonic() - start > 5:
            break
    # The last reading waited in vain for another byte: that wait is no latency.
    return max(last - start - 0.005, 0.0), count - before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    print("\n".join(report(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
