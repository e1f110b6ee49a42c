"""The tasks for agents: their runs have the cause of the key, and transcripts are judged by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chopper_core.answers.tools import Toolbox
from tests.programs.bench import agent


def play(folder: Path, task: agent.AgentTask) -> list[dict[str, object]]:
    """A transcript of the guide's first steps: the card, the first finding, and its evidence."""
    toolbox = Toolbox([str(folder / "runs")])
    lines: list[dict[str, object]] = []

    def call(tool: str, **arguments: object) -> dict[str, object]:
        text = toolbox.call(tool, arguments)
        lines.append({"tool": tool, "arguments": arguments, "bytes": len(text.encode())})
        found: dict[str, object] = json.loads(text)
        return found

    call("open", run=str(folder / task.run))
    (first, *_) = call("findings", limit=3)["rows"]  # type: ignore[misc]
    call("show", address=first["address"], limit=3)
    gpus = json.loads((folder / "key.json").read_text())[int(task.task[-1]) - 1]["gpus"]
    cause = f"{first['name']}: {first['detail']}"
    verdict = {"cause": cause, "gpus": gpus, "cost_ns": first["saving_ns"]}
    return [*lines, {"verdict": verdict}]


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.sweep)])
def test_the_guide_s_first_steps_find_the_planted_causes(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tasks"
    agent.write(folder, 7, agent.TASKS[-count:])
    tasks = json.loads((folder / "tasks.json").read_text())
    assert len(tasks) == count
    for each in tasks:
        transcript = play(folder, agent.AgentTask(**each))
        sizes = [line["bytes"] for line in transcript if "bytes" in line]
        assert max(sizes) < 8_000, sizes
        text = "\n".join(json.dumps(line) for line in transcript)
        (tmp_path / f"{each['task']}.jsonl").write_text(text)
    agent.main(["score", str(folder), str(tmp_path)])
    assert capsys.readouterr().out.endswith(f"{count} of {count} right in all\n")


def test_a_wrong_verdict_has_nothing_right() -> None:
    key = agent.AgentKey("task1", "a cause", "clock", (0,), 1e6, 1e7)
    wrong = {"verdict": {"cause": "cosmic rays", "gpus": [3, 4], "cost_ns": 1.0}}
    found = agent.score(key, [wrong])
    assert not (found.cause or found.gpus or found.cost) and found.is_within_budget
    calls = [{"tool": "show", "bytes": 10}] * (agent.CALLS + 1)
    found = agent.score(key, [*calls, {"verdict": {"cause": "its CLOCK", "gpus": [0]}}])
    assert found.cause and found.gpus and not found.cost
    assert found.bytes == 210 and not found.is_within_budget
