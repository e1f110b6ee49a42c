"""Mixtures of experts: tokens of logs and ranges, what ranks exchange, and balanced experts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.asked import Steady, answer_of, change_of
from chopper_core.analyses.experts import expert_loads, expert_work
from chopper_core.findings import checked
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.experts import ExpertTokens, counts_in
from chopper_core.model.run import Run
from chopper_core.model.training import FailedAllocations
from chopper_core.model.view import View
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import NothingToShow
from chopper_core.views.query import query
from tests import jobs
from tests.align.traces import TinyTrace
from tests.ingest.test_memory_of_jobs import NEW, titan
from tests.jobs import Cause, clean, simulated
from tests.wording import Wording

LOADED = Cause("tokens", 0.8, (3,), operation="experts")
"""The experts of rank 3 get 1.8 times the tokens of the others; the mean is 1.2 times those."""
EVEN = Cause("tokens", 0.2, (), operation="experts")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("layer 5 tokens_per_expert: [12, 33, 0]", (5, [12, 33, 0])),
        ("tokens per expert: tensor([1, 2], device='cuda:0')", (-1, [1, 2])),
        ("moe/layers.3/expert_load=[0.5 1.5]", (3, [0.5, 1.5])),
        ("exp_counts tensor([7, 8])", (-1, [7, 8])),
        ("num_experts: [8]", None),
        ("tokens_per_expert: [1, x]", None),
        ("expert parallel groups: [[0, 1], [2, 3]]", None),
    ],
)
def test_lists_of_tokens(text: str, found: tuple[int, Sequence[float]] | None) -> None:
    counts = counts_in(text)
    assert (None if counts is None else counts[1:]) == found


def test_tokens_of_a_job_s_log(tmp_path: Path, wording: Wording) -> None:
    """Two layers, four experts, two ranks, five steps, against plain sums."""
    random = np.random.default_rng(1)
    tokens = random.integers(50, 200, size=(5, 2, 2, 4))
    tokens[:, :, :, 2] += 300
    text = ""
    for step, line in enumerate(titan(range(1, 6)).splitlines(keepends=True)):
        text += line
        if step % 2:
            text += "".join(
                f"[rank{rank}]: layer {layer}: tokens_per_expert: "
                f"{tokens[step // 2, layer, rank].tolist()}\n"
                for layer in range(2)
                for rank in range(2)
            )
    (tmp_path / "train.log").write_text(text)
    run = open_run(str(tmp_path / "train.log"))
    rows = run.side(ExpertTokens)
    assert len(rows) == tokens.size and set(rows.step.tolist()) == {1, 2, 3, 4, 5}
    frame = query(run, parse("R?view=experts&by=expert"))
    by_expert = tokens.sum(axis=(0, 1, 2)) / 5
    for row, label in enumerate(frame.labels):
        assert frame.values["expert_tokens"].at(row) == pytest.approx(by_expert[int(label)])
        over = 100 * (by_expert[int(label)] / by_expert.mean() - 1)
        assert frame.values["over_mean_pct"].at(row) == pytest.approx(over)
    assert frame.labels[0] == "2"
    cells = tokens.sum(axis=2)
    busiest = cells.max(axis=2).sum() / cells.mean(axis=2).sum()
    wording(frame.headline[0], f"{busiest:.2f} times")
    by_rank = query(run, parse("R?view=experts&by=rank")).values["expert_tokens"]
    assert sorted(by_rank.numbers.tolist()) == pytest.approx(sorted(tokens.sum(axis=(0, 1, 3)) / 5))
    by_layer = query(run, parse("R?view=experts&by=layer"))
    own = cells[:, 1].max(axis=1).sum() / cells[:, 1].mean(axis=1).sum()
    assert by_layer.values["layer_imbalance"].at(1) == pytest.approx(own)
    titles = [each.title for (_, each), _ in checked(run, parse("R")).placed]
    assert any(title.startswith("Expert 2 gets ") for title in titles)
    write_store(run, tmp_path / "store")
    assert len(read_store(tmp_path / "store").side(ExpertTokens)) == tokens.size


def test_tokens_of_a_job_that_runs_out_of_memory(tmp_path: Path) -> None:
    """Lists before the message count as those behind it do."""
    tokens, failed = "layer 0: tokens_per_expert: [1, 2]\n", f"{NEW}\n"
    first, second = titan(range(1, 2)), titan(range(2, 3))
    (tmp_path / "train.log").write_text(first + tokens + second + failed + tokens)
    run = open_run(str(tmp_path / "train.log"))
    assert run.side(ExpertTokens).step.tolist() == [1, 1, 2, 2]
    assert len(run.side(FailedAllocations)) == 1


def job_of(causes: tuple[Cause, ...], monkeypatch: pytest.MonkeyPatch) -> jobs.Simulated:
    """A job whose largest operation is that of experts."""
    block = [(name.replace("gate_up_proj", "experts"), *rest) for name, *rest in jobs.BLOCK]
    monkeypatch.setattr(jobs, "BLOCK", tuple(block))
    monkeypatch.setitem(jobs.WIDTHS, "experts", 14336)
    return simulated(replace(clean("ddp", 91), causes=causes))


def test_what_balancing_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The same job with all experts at the mean load is the truth; ranges have the tokens."""
    loaded, even = job_of((LOADED,), monkeypatch), job_of((EVEN,), monkeypatch)
    saves_ns = 1e3 * (loaded.step_us - even.step_us)
    loaded.write(tmp_path)
    for rank in range(4):
        path = tmp_path / f"host{rank}.trace.json"
        counts = [180, 0] if rank == 3 else [60, 40]
        whole = json.loads(path.read_text())
        whole["traceEvents"] += [
            each
            | {"cat": "user_annotation", "name": f"experts tokens_per_expert={counts}"}
            | {"ts": each["ts"] + 0.001, "dur": each["dur"] - 0.002}
            for each in whole["traceEvents"]
            if each["name"].startswith("nn.Module: experts_")
        ]
        path.write_text(json.dumps(whole))
    run = open_run(str(tmp_path), jobs=1)
    loads, work = expert_loads(run), expert_work(run)
    assert loads is not None and work is not None
    assert loads.imbalance(loads.rank) == pytest.approx(180 / 120)
    assert loads.imbalance(loads.expert) == pytest.approx(360 / 240)
    steady = Steady.of(run, View(run.name))
    change = change_of(steady.predictor, f"{work.question} balanced")
    assert answer_of(steady, [change]).saving_ns == pytest.approx(saves_ns, rel=0.1)
    with pytest.raises(NothingToShow, match="nothing can be shared"):
        change_of(steady.predictor, "gpu:0 compute balanced")
    frame = query(run, parse("R?view=experts"))
    assert frame.labels[0] == "3" and "by replay" in frame.headline[1]
    busy = frame.values["expert_ns"].numbers
    assert busy[0] / busy[1:].mean() == pytest.approx(1.8, rel=0.02)
    found = {rule.name: each for (rule, each), _ in checked(run, parse("R")).placed}
    finding = found["uneven-experts"]
    wording(finding.title, "GPU 3")
    assert finding.saving_ns == pytest.approx(saves_ns, rel=0.1)


def test_what_ranks_exchange_stands_for_tokens(tmp_path: Path, wording: Wording) -> None:
    """Uneven all-to-alls of four ranks, without any list."""
    run = exchanging(tmp_path)
    frame = query(run, parse("R?view=experts"))
    assert frame.labels[0] == "2"
    assert frame.values["over_mean_pct"].at(0) == pytest.approx(100 * (400 / 175 - 1))
    wording(frame.headline[0], "rank 2.29 times")
    with pytest.raises(NothingToShow, match="name no experts; by=rank"):
        query(run, parse("R?view=experts&by=expert"))


def exchanging(folder: Path) -> Run:
    for rank, moved in enumerate((100, 100, 400, 100)):
        trace = TinyTrace(members={"distributedInfo": {"rank": rank, "world_size": 4}})
        for step in range(3):
            begin = 1000 * step
            trace.note(f"ProfilerStep#{step}", begin, begin + 900)
            trace.launch(
                "ncclDevKernel_SendRecv", begin + 10, start=begin + 20, duration=100,
                **{"Collective name": "all_to_allv", "In msg nelems": 1000,
                   "Out msg nelems": 1000 * moved, "Group size": 4, "dtype": "BFloat16"},
            )  # fmt: skip
        trace.write(folder / f"rank{rank}.json")
    return open_run(str(folder), jobs=1)
