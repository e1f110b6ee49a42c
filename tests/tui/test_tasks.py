"""The questions that people open the explorer with: how few keys answer them, and rightly."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.model.address import parse
from chopper_core.model.charts import HeatMap
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.view import Baseline, View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.views.query import query
from tests.demo import ROOT, demo_run, generated_run
from tests.realdata.conftest import FOLDER
from tests.tui.explorer import Driven, explorer

SIZE = (120, 40)
KEYS_PAGE = ROOT / "docs" / "keys.md"


@cache
def demo() -> Run:
    """The demo run, beside the other one as a baseline."""
    other = demo_run("fsdp1")
    return replace(demo_run(), others={other.name: other})


def in_steps(run: Run) -> Mask:
    """The activities of complete steps: what runs outside of steps is in none."""
    return ~np.isin(run.table.iteration, [NO_LABEL, *run.cut_iterations])


def straggler(at: Driven) -> None:
    table = demo().table
    busy = {
        gpu: int(table.duration_ns[(table.gpu == gpu) & (table.kind == Kind.COMPUTE)].sum())
        for gpu in range(8)
    }
    slow = max(busy, key=lambda gpu: busy[gpu])
    beside_charts = [line.partition("││")[0] for line in at.lines()]
    said = " ".join(" ".join(beside_charts).replace("│", " ").split())
    cause = re.search(rf"GPU {slow} is hot \((\d+) °C\) and ([\d.]+) % slower", said)
    assert cause and f"{cause[0]}: the others" in said
    usual = float(np.median([busy[gpu] for gpu in busy if gpu != slow]))
    assert float(cause[2]) == pytest.approx(100 * (busy[slow] / usual - 1), rel=0.1)
    heat = demo().signal("hotspot_c").curves
    span = np.array([table.start_ns.min(), table.start_ns.max()], np.float64)
    means = {gpu: heat[gpu].means(span)[0] for gpu in heat}
    assert max(means, key=lambda gpu: means[gpu]) == slow
    assert int(cause[1]) == pytest.approx(means[slow], abs=2)


def kernel_times(run: Run) -> Float64:
    """The time of each kernel name in complete steps, with that of communication."""
    table, own = run.table, in_steps(run)
    return np.bincount(table.kernel[own], weights=table.duration_ns[own])


def costliest_kernel(at: Driven) -> None:
    table = demo().table
    kernel = int(kernel_times(demo()).argmax())
    assert at.path == (table.names[kernel],)
    own = in_steps(demo()) & (table.kernel == kernel) & (table.gpu == 1) & (table.layer != NO_LABEL)
    heat = at.explore.first_chart(HeatMap)
    assert heat is not None
    row = heat.numbers[1]
    # The column of a layer, after that of what belongs to none.
    layers = [int(name) if name.isdigit() else NO_LABEL for name in heat.columns]
    shown = {layer: ns for layer, ns in zip(layers, row, strict=True) if layer != NO_LABEL}
    charged: dict[int, int] = defaultdict(int)
    for place in np.flatnonzero(own):
        charged[int(table.layer[place])] += sum(
            int(table.column(state)[place])
            for state in ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns")
        ) + int(table.idle_ns[place])
    assert max(shown, key=lambda layer: shown[layer]) == max(charged, key=lambda at: charged[at])


def exposed_communication(at: Driven) -> None:
    finding = " ".join(" ".join(line.split("││")[0].strip("│") for line in at.lines()).split())
    run = at.explore.run
    table, inside = run.table, in_steps(run)
    exposed: dict[str, int] = defaultdict(int)
    for row in np.flatnonzero((table.exposed_comm_ns > 0) & inside):
        operation = table.text_of("operation", int(table.operation[row]))
        exposed[operation] += int(table.exposed_comm_ns[row])
    steps = len(run.gpus) * len(np.unique(table.iteration[inside]))
    # Its cost is without the waiting for others, which is another finding's.
    waits = query(run, parse(f"{run.name}?view=comms&by=kind&columns=exposed_wait_ns"))
    for place, operation in enumerate(waits.labels):
        exposed[operation] -= round(steps * float(waits.row(place)["exposed_wait_ns"] or 0))
    said = (
        r"Exposed communication costs ([\d.]+) % of the step"
        r"(?:,? (?:\S+ [mµ]s )?([\d.]+) % of it (\w+))?"
    )
    shown = re.search(said, finding)
    whole = float(query(run, View(run.name, name="overview")).total["iteration_ns"])
    assert shown and float(shown[1]) / 100 == pytest.approx(
        sum(exposed.values()) / steps / whole, rel=0.01
    )
    largest = max(exposed, key=lambda operation: exposed[operation])
    share = exposed[largest] / sum(exposed.values())
    if shown[3]:  # A long name has no room in a title.
        assert shown[3] == largest
        assert float(shown[2]) / 100 == pytest.approx(share, rel=0.01)


def clock_in_backward(at: Driven) -> None:
    assert at.path == ("0", "11") and at.label == "backward"
    lines = at.lines()
    begin = next(y for y, line in enumerate(lines) if "backward on every GPU" in line)
    run = at.explore.run
    table, curve = run.table, run.signal("gfx_mhz").curves
    own = (table.iteration == 11) & (table.phase == table.code_of("phase", "backward"))
    means = {}
    for gpu in curve:
        rows = own & (table.gpu == gpu)
        start, end = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
        means[gpu] = curve[gpu].means(np.array([start.min(), end.max()], np.float64))[0]
    found = {}
    for text in (part for line in lines[begin:] for part in line.split("│")):
        words = [int(word) for word in re.split(r"[ ▌▲▼]+", text) if word.isdigit()]
        if words and words[0] in means and words[-1] > 1000:
            found[words[0]] = words[-1]
    assert {0, min(means, key=lambda gpu: means[gpu])} <= set(found)
    for gpu, clock in found.items():
        assert clock == pytest.approx(means[gpu], rel=0.01)


def host_bound(at: Driven) -> None:
    assert "host is late" in at.text()


def slower_in_b(at: Driven) -> None:
    assert at.frame.view.name == "compare" and at.frame.view.baseline is not None
    values = at.frame.values[next(name for name in at.frame.values if "delta" in name)]
    rows = [values.at(row) for row in range(len(at.frame))]
    known = [abs(each) for each in rows if each is not None]
    assert known == sorted(known, reverse=True)


def matrix_utilisation(at: Driven) -> None:
    assert "MFMA %" in at.text()
    for name in ("mlp_gp", "mlp_up", "mlp_dp"):
        row = at.frame.labels.index(name)
        value = at.frame.values["mfma_util_pct"].at(row)
        assert value is not None and 0 < value < 100
        assert any(f" {name} " in line and f"{value:.1f}" in line for line in at.lines())


def waiting_operations(at: Driven) -> None:
    exposed = at.frame.values["exposed_comm_ns"].numbers.tolist()
    assert at.frame.level == "operation" and exposed == sorted(exposed, reverse=True)
    whole = in_steps(demo())
    steps = len(demo().gpus) * len(np.unique(demo().table.iteration[whole]))
    assert sum(exposed) * steps == pytest.approx(demo().table.exposed_comm_ns[whole].sum())


def fixed(at: Driven) -> None:
    assert at.frame.view.name == "whatif" and "replay" in at.text()


def table_in_an_issue(at: Driven) -> None:
    assert at.status.startswith("copied the view")


@dataclass(frozen=True)
class Task:
    """A question, the keys from the first screen on, and a check of what is then on the screen."""

    question: str
    keys: tuple[str, ...]
    most: int
    check: Callable[[Driven], None]
    where: str


TASKS = (
    Task("Which GPU is the straggler, and why?", (), 1, straggler, "findings of the summary"),
    Task(
        "Which kernel costs most, and in which layer?",
        ("3", "enter", "5", "5", "5"),
        5,
        costliest_kernel,
        "kernels, then the heat map of the first one",
    ),
    Task(
        "How much communication is exposed, and where?",
        (),
        2,
        exposed_communication,
        "findings of the summary; Losses · communication has all of it",
    ),
    Task(
        "What clock has a GPU in backward, against the others?",
        ("1", "enter", "enter", "j"),
        4,
        clock_in_backward,
        "the row on every GPU, beside the tree",
    ),
    Task("Is the run host-bound?", ("0",), 2, host_bound, "findings"),
    Task("What got slower in B?", ("6",), 1, slower_in_b, "compare, of `chopper A B`"),
    Task(
        "How well do the MLP's GEMMs use the matrix units?",
        ("3", "p", "o", "enter"),
        6,
        matrix_utilisation,
        "kernels by operation",
    ),
    Task(
        "Which operations wait for communication?",
        ("4", "shift+tab", "shift+tab", "p", "down", "enter"),
        6,
        waiting_operations,
        "comms by the operation that follows",
    ),
    Task("What would fixing the straggler bring?", ("down", "I"), 6, fixed, "replay of the step"),
    Task("A table for an issue", ("Y",), 1, table_in_an_issue, "markdown on the clipboard"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.question)
async def test_a_few_keys_answer_it(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    baseline = Baseline("demo_data/fsdp1") if task.check is slower_in_b else None
    view = View(demo().name, name="overview", baseline=baseline)
    assert len(task.keys) <= task.most
    async with explorer(SIZE, demo(), view) as at:
        await at.press(*task.keys)
        task.check(at)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "at_work", [exposed_communication, clock_in_backward, slower_in_b, matrix_utilisation]
)
async def test_the_same_keys_answer_them_of_a_run_of_another_shape(
    at_work: Callable[[Driven], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    shape = {"ranks": 3, "layers": 6, "iterations": 3, "seed": 7}
    run, base = (
        generated_run(name, strategy=name.partition("_")[0].upper(), **shape)
        for name in ("fsdp2_of_3", "fsdp1_of_3")
    )
    run = replace(run, others={base.name: base})
    baseline = Baseline(base.name) if at_work is slower_in_b else None
    task = next(task for task in TASKS if task.check is at_work)
    async with explorer(SIZE, run, View(run.name, name="overview", baseline=baseline)) as at:
        await at.press(*task.keys)
        at_work(at)


@pytest.mark.sweep
@pytest.mark.skipif(not (FOLDER / "mi300x_ddp4").exists(), reason="no real files")
async def test_the_same_keys_answer_them_of_a_real_run_with_another_cause() -> None:
    run = open_cached(str(FOLDER / "mi300x_ddp4"))
    async with explorer(SIZE, run, View(run.name, name="overview")) as at:
        said = " ".join(" ".join(at.lines()).replace("│", " ").split())
        assert "GPU 3's host is" in said and "The host launches too slowly" in said
        await at.press("3", "enter")
        assert at.path == (run.table.names[int(kernel_times(run).argmax())],)
        await at.press("Y")
        table_in_an_issue(at)
        await at.press("H", "H", "W")
        assert "Why GPU" in at.text()


def as_markdown() -> str:
    lines = ["| question | keys | from the first screen |", "| :-- | :-- | :-- |"]
    for task in TASKS:
        keys = " ".join(f"`{'⏎' if key == 'enter' else key}`" for key in task.keys) or "none"
        lines.append(f"| {task.question} | {keys} | {task.where} |")
    return "\n".join(lines)


@pytest.mark.golden
def test_the_docs_have_the_keys_that_were_played() -> None:
    text = KEYS_PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- tasks -->\n", "\n<!-- /tasks -->"
    before, _, rest = text.partition(begin)
    shown, _, after = rest.partition(end)
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        Path(KEYS_PAGE).write_text(before + begin + as_markdown() + end + after, encoding="utf-8")
        return
    assert shown == as_markdown()
