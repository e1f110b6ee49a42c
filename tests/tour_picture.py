"""The guided tour as one animated SVG without a script: a frame per key, with the key below it."""

from __future__ import annotations

from collections.abc import Sequence

from chopper_core.render.drawing import CELL, picture

SECONDS = 2
"""How long a frame is seen."""
GROUND, TEXT, DIM = "#0d1117", "#c9d1d9", "#848d97"
Look = tuple[str, str]


def animated(frames: Sequence[Sequence[Sequence[Look]]], keys: Sequence[str]) -> str:
    """Frames as lines of looks, the first before any key; the last stays for those who want no
    motion."""
    classes: dict[str, str] = {}
    strong, dim = f"fill:{TEXT};font-weight:bold|", f"fill:{DIM}|"
    drawn = []
    for number, lines in enumerate(frames):
        caption = [
            (f"  {key}", strong if place < number else dim) for place, key in enumerate(keys)
        ]
        whole = [*lines, [], [(" keys", dim), *caption]]
        svg = picture(whole, classes, lambda ink: not ink.endswith("|"))
        drawn.append(f'<g class="f f{number}">{svg}</g>')
    wide, high = (
        size * cell + 24
        for size, cell in zip(
            (max(sum(len(text) for text, _ in line) for line in frames[0]), len(frames[0]) + 2),
            CELL,
            strict=True,
        )
    )
    whole_s, part = SECONDS * len(frames), 100 / len(frames)
    rules = [
        f"text{{font:13px monospace;white-space:pre;fill:{TEXT}}}",
        f".f{{visibility:hidden;animation:t {whole_s}s step-end infinite}}",
        f"@keyframes t{{0%{{visibility:visible}}{part:g}%{{visibility:hidden}}}}",
        *(f".f{n}{{animation-delay:{SECONDS * n}s}}" for n in range(len(frames))),
        "@media(prefers-reduced-motion){.f{animation:none}"
        f".f{len(frames) - 1}{{visibility:visible}}}}",
    ]
    for ink, name in classes.items():
        front, _, back = ink.partition("|")
        rules += [f".{name}{{{front}}}"] * bool(front) + [f".{name}b{{fill:{back}}}"] * bool(back)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" fill="{TEXT}">\n<style>{"".join(rules)}</style>\n'
        f'<rect width="{wide}" height="{high}" rx="8" fill="{GROUND}"/>\n'
        f'<svg x="12" y="12" overflow="visible">\n{"".join(drawn)}</svg></svg>\n'
    )
