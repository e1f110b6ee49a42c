"""Tasks for agents on generated runs with one planted cause, and scores of what they did.

    python -m tests.programs.bench.agent write DIR [--seed N]   runs, tasks.json, key.json
    python -m tests.programs.bench.agent score DIR TRANSCRIPTS  calls, bytes, what is right

An agent gets a run of `tasks.json`, its question and a budget of calls, by `chopper mcp DIR/runs`.
Its transcript `TRANSCRIPTS/TASK.jsonl` has a line per call (`{"tool", "arguments", "bytes"}`), and
a last one with its verdict: `{"verdict": {"cause": text, "gpus": [5], "cost_ns": 1e6}}`. No model
is called here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert
from msgspec import json as fast_json

from tests.programs.bench.causes import EXPECTED, planted

TASKS: Final = (
    "one GPU at a lower clock",
    "a slow link of one group",
    "data of one GPU late, always",
    "one operation slow in one layer",
    "a checkpoint on one GPU",
)
"""Causes of different kinds: hardware, network, input, work, host."""
SIZE: Final = 0.08
"""Of the iteration, that each cause costs about."""
CALLS: Final = 20
WITHIN: Final = 0.3
"""By how much of the true cost a figure may be off."""
QUESTION: Final = (
    "One thing makes the steps of this run slower than they should be. What is it, on which GPUs "
    "(an empty list: all), and how many ns does it cost per step? Cite the addresses that show it."
)


class AgentTask(Struct, frozen=True):
    """What an agent gets."""

    task: str
    run: str
    question: str
    calls: int


class AgentKey(Struct, frozen=True):
    """What is true of a task's run."""

    task: str
    cause: str
    words: str
    """A regular expression that a right cause matches."""
    gpus: tuple[int, ...]
    cost_ns: float
    step_ns: float


class AgentScore(Struct, frozen=True):
    """How an agent did in a task."""

    task: str
    calls: int
    bytes: int
    is_within_budget: bool
    cause: bool
    gpus: bool
    cost: bool


def write(folder: Path, seed: int, names: Sequence[str] = TASKS) -> list[AgentTask]:
    """Make the runs of the tasks, with the tasks and their key next to them."""
    tasks, keys = [], []
    for number, name in enumerate(names, 1):
        truth = planted.plant(name, seed, SIZE)
        run = folder / "runs" / f"run{number}"
        run.mkdir(parents=True)
        truth.run.write(run)
        task = f"task{number}"
        tasks.append(AgentTask(task, f"runs/run{number}", QUESTION, CALLS))
        words = "|".join(filter(None, (EXPECTED[name].words, EXPECTED[name].unseen)))
        keys.append(AgentKey(task, name, words, truth.cause.gpus, truth.cost_ns, truth.step_ns))
    for file, documents in (("tasks.json", tasks), ("key.json", keys)):
        (folder / file).write_bytes(fast_json.format(fast_json.encode(documents), indent=1))
    return tasks


def score(key: AgentKey, lines: Sequence[dict[str, Any]]) -> AgentScore:
    """What of a transcript is right; one without a verdict has nothing right."""
    calls = [line for line in lines if "tool" in line]
    verdict = next((line["verdict"] for line in lines if "verdict" in line), {})
    cost = verdict.get("cost_ns")
    return AgentScore(
        key.task,
        len(calls),
        sum(int(line.get("bytes", 0)) for line in calls),
        len(calls) <= CALLS,
        cause=bool(re.search(key.words, str(verdict.get("cause", "")), re.IGNORECASE)),
        gpus=sorted(verdict.get("gpus", (-1,))) == sorted(key.gpus),
        cost=cost is not None and abs(cost - key.cost_ns) <= WITHIN * key.cost_ns,
    )


def scores(folder: Path, transcripts: Path) -> Iterator[AgentScore]:
    keys = convert(json.loads((folder / "key.json").read_text("utf-8")), list[AgentKey])
    for key in keys:
        path = transcripts / f"{key.task}.jsonl"
        text = path.read_text("utf-8") if path.exists() else ""
        yield score(key, [json.loads(line) for line in text.splitlines() if line.strip()])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.bench.agent", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write")
    writes.add_argument("folder", type=Path)
    writes.add_argument("--seed", type=int, default=7)
    judges = commands.add_parser("score")
    judges.add_argument("folder", type=Path)
    judges.add_argument("transcripts", type=Path)
    given = parser.parse_args(words)
    if given.command == "write":
        for task in write(given.folder, given.seed):
            print(task.task, task.run)
        return
    print("task    calls   bytes  budget  cause  GPUs  cost")
    right = tasks = 0
    for each in scores(given.folder, given.transcripts):
        marks = [each.is_within_budget, each.cause, each.gpus, each.cost]
        right += all(marks)
        tasks += 1
        texts = "".join(f"{'yes' if mark else 'no':>7}" for mark in marks)
        print(f"{each.task:7} {each.calls:5} {each.bytes:7} {texts}")
    print(f"{right} of {tasks} right in all")


if __name__ == "__main__":
    sys.exit(main())
