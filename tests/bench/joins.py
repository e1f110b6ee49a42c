"""How well data are joined that lack parts: generated runs with known truth, many seeds.

`python -m tests.bench.joins` prints the tables of docs/joins.md, `-o` writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chopper_core.ingest.open import open_run
from chopper_core.views.shared.collectives import collectives_of
from tests.align.damaged_collectives import Damage, Layout, damaged
from tests.align.generated import load_generator

FIRST_SEED = 31_000
_HEAD = """\
# Joins of damaged data

Share of joins that are right, and of those shown the share that is wrong, over generated runs
whose truth is known. `python -m tests.bench.joins -o docs/joins.md` writes this page anew; tests
hold the goals on other seeds (`tests/align/test_collective_sets.py`).
"""


def collectives_of_files(folder: Path, **options: Any) -> tuple[int, int, int]:
    """How many collectives all files have, and of these how many are shown right and wrong."""
    generator = load_generator()
    from generator.kineto import BASE_NS, RUN_START_NS

    config = generator.Config(counters=False, telemetry=False, **options)
    generator.write(folder, config)
    run = open_run(str(folder), jobs=1)
    true = {
        (trace.rank, activity.start_ns + BASE_NS + RUN_START_NS): activity.collective.index
        for trace in generator.simulate(config).traces
        for activity in trace.activities
        if activity.collective
    }
    started = zip(run.table.gpu.tolist(), run.table.start_ns.tolist(), strict=True)
    number = np.array([true.get(place, -1) for place in started])
    found = collectives_of(run)
    assert found is not None
    whole = int((np.bincount(number[number >= 0]) == config.ranks).sum())
    right = wrong = 0
    for each in np.flatnonzero(found.complete).tolist():
        is_right = len(set(number[found.members.rows_of(each)].tolist())) == 1
        right, wrong = right + is_right, wrong + (not is_right)
    return whole, right, wrong


_LOSSES = ((0.0, 4), (0.002, 4), (0.015, 6), (0.05, 6), (0.25, 3), (0.25, 24))


def _collectives(seeds: range) -> Iterator[str]:
    yield "Launch records are lost in stretches; ends of a collective scatter by 9 µs.\n"
    yield "| run | launches lost | collectives | right | wrong among shown |"
    yield "|---|---|---|---|---|"
    layouts = {
        "FSDP, 8 GPUs": Layout(gpus=8, layers=16),
        "FSDP with broadcasts, 4 GPUs": Layout(rooted=2),
        "tensor parallel 2, 8 GPUs": Layout(gpus=8, layers=16, tensor_parallel=2),
        "tensor parallel 4, 8 GPUs": Layout(gpus=8, layers=16, tensor_parallel=4),
    }
    for title, layout in layouts.items():
        for lost, stretches in _LOSSES:
            damage = Damage(labels=lost, stretches=stretches, scatter_ns=9_000)
            yield _row(title, lost, stretches, [damaged(s, layout, damage).score() for s in seeds])
    for title, style in {"files, FSDP2": {}, "files, FSDP1": {"strategy": "FSDP1"}}.items():
        for lost, stretches in _LOSSES:
            scores = []
            for seed in seeds[:3]:
                with TemporaryDirectory() as folder:
                    options = {"ranks": 4, "layers": 6, "seed": seed, "end_scatter_ns": 9_000}
                    options |= {"lost_share": lost, "lost_stretches": stretches}
                    scores.append(collectives_of_files(Path(folder), **options, **style))
            yield _row(title, lost, stretches, scores)


def _row(title: str, lost: float, stretches: int, scores: list[tuple[int, int, int]]) -> str:
    whole, right, wrong = np.array(scores).sum(axis=0).tolist()
    shown = max(right + wrong, 1)
    return (
        f"| {title} | {100 * lost:g} % in {stretches} | {whole:,} | {100 * right / whole:.1f} % | "
        f"{100 * wrong / shown:.2f} % |"
    )


PARTS: Mapping[str, Callable[[range], Iterator[str]]] = {"Collectives": _collectives}


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    lines = [_HEAD, f"Seeds {seeds[0]} to {seeds[-1]}; files with the first three."]
    for title, part in PARTS.items():
        print(f"measuring: {title}", file=sys.stderr, flush=True)
        lines += ["", f"## {title}", "", *part(seeds)]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
