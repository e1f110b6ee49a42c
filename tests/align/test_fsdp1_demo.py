"""What is planted in the committed FSDP1-like run shows in the frames."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render import as_json
from chopper_core.views.query import query
from tests.align.generated import DEMO
from tests.demo import demo_run

GPUS = tuple(map(str, range(8)))


@pytest.fixture(scope="module")
def flat() -> Run:
    return demo_run("fsdp1", named=str(DEMO / "fsdp1"))


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEMO / "fsdp1" / "truth.json").read_text())
    return document


def show(run: Run, path: str) -> dict[str, dict[str, Any]]:
    document = json.loads(as_json(query(run, parse(f"{run.name}:{path}"))))
    return {row["name"]: row for row in document["rows"]}


def test_its_iterations_are_whole_and_its_work_is_named(flat: Run) -> None:
    assert not any(flat.partial_iterations.values())
    rows = show(flat, "gpu=3?order=gpu,operation&columns=elapsed_ns,share_pct")
    assert {"mlp_dp", "attn_fa", "all_gather", "reduce_scatter", "opt_step"} <= rows.keys()
    assert "FullyShardedDataParallel._post_backward_hook" in rows
    assert not any(name.startswith("FSDP::") for name in rows)


def test_gpus_stand_idle_while_the_allocator_asks_for_memory(
    flat: Run, truth: dict[str, Any]
) -> None:
    places = truth["allocator_retries"]["places"]
    assert len(places) == 8
    for place in places:
        path = f"gpu={place['rank']}/iteration={place['iteration']}/phase=forward"
        rows = show(flat, f"{path}?columns=idle_host_ns")
        layer = rows[str(place["layer"])]
        assert layer["idle_host_ns"] == pytest.approx(place["idle_host_ns"], rel=0.1)


def test_its_clocks_are_the_truth_s(flat: Run, truth: dict[str, Any]) -> None:
    for gpu in GPUS:
        rows = show(flat, f"gpu={gpu}?columns=gfx_mhz,mem_mhz,power_w")
        for iteration in ("11", "12"):
            for signal, tolerance in (("gfx_mhz", 0.005), ("mem_mhz", 0.02), ("power_w", 0.03)):
                mean = truth["stability"]["per_gpu"][gpu][signal][iteration]["mean"]
                assert rows[iteration][signal] == pytest.approx(mean, rel=tolerance)
