"""Labels of real traces, as far as something independent of our rules says what they must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render import as_json
from chopper_core.views.query import query

Open = Callable[[str], Run]

DDP = "mi300x_ddp4"
CHECKPOINTED = "mi300x_resnet_act_ckpt_rank0of8.json.gz"
QWEN = "mi300x_qwen05b.json.gz"
QWEN_LAYERS = 24
RECOMPUTE = " (recompute)"


def show(run: Run, path: str = "", **options: str) -> dict[str, dict[str, Any]]:
    """The rows of a frame by name."""
    given = "&".join(f"{key}={value}" for key, value in (options | {"base": "total"}).items())
    address = run.name + (f":{path}" if path else "") + (f"?{given}" if given else "")
    document = json.loads(as_json(query(run, parse(address))))
    return {row["name"]: row for row in document["rows"]}


@pytest.mark.parametrize(
    ("name", "steps"),
    [(DDP, ["9", "10", "11"]), (CHECKPOINTED, ["15", "16", "17"]), (QWEN, ["6"])],
)
def test_iterations_are_the_recorded_steps_and_what_is_outside_of_them(
    opened: Open, name: str, steps: list[str]
) -> None:
    run = opened(name)
    labels = list(show(run, order="iteration"))
    assert labels in (steps, ["none", *steps])
    assert run.partial_iterations[0] == frozenset()


def test_a_step_whose_last_launches_have_no_activity_is_cut(opened: Open) -> None:
    """The files of ranks 1 to 3 lack the activities of the last 22 launches of step 11."""
    run = opened(DDP)
    assert run.partial_iterations == {0: frozenset(), **dict.fromkeys((1, 2, 3), frozenset({11}))}
    counts = [source.findings["launch calls without an activity"] for source in run.sources]
    assert counts == [0, 22, 22, 22]


def kernels_by_phase(run: Run, gpu: int, iteration: int) -> dict[str, int]:
    rows = show(run, f"gpu={gpu}/iteration={iteration}", columns="kernels")
    return {phase: row["kernels"] for phase, row in rows.items() if row["kernels"]}


@pytest.mark.parametrize("gpu", range(4))
def test_each_step_of_ddp_runs_the_same_kernels_in_each_phase_on_all_ranks(
    opened: Open, gpu: int
) -> None:
    """Where the file ends early: 22 launches of the ranks 1 to 3 have no kernel in it."""
    run = opened(DDP)
    first, second, last = (kernels_by_phase(run, gpu, step) for step in (9, 10, 11))
    assert first == second
    assert (first["backward"], first["optimizer"], first["other"]) == (647, 21, 7)
    lost = {"optimizer": 21, "other": 1} if gpu else {}
    assert last == {
        phase: count - lost.get(phase, 0)
        for phase, count in first.items()
        if count > lost.get(phase, 0)
    }


def test_each_step_of_the_checkpointed_run_has_the_same_kernels_in_each_phase(
    opened: Open,
) -> None:
    run = opened(CHECKPOINTED)
    steps = [kernels_by_phase(run, 0, step) for step in (15, 16, 17)]
    assert steps[0] == steps[1] == steps[2]
    assert set(steps[0]) == {"forward", "backward", "optimizer"}
    assert steps[0]["backward"] > 2 * steps[0]["forward"]


def test_kernels_that_were_launched_before_the_start_are_of_no_step(opened: Open) -> None:
    for name, unlinked in ((CHECKPOINTED, 757), (QWEN, 463)):
        assert show(opened(name), order="iteration")["none"]["kernels"] == unlinked


def test_checkpointing_recomputes_in_backward_only(opened: Open) -> None:
    run = opened(CHECKPOINTED)
    recomputed = {
        phase: {
            name: row["kernels"]
            for name, row in show(run, f"phase={phase}", order="phase,operation").items()
            if name.endswith(RECOMPUTE)
        }
        for phase in show(run, order="phase")
    }
    assert [phase for phase, names in recomputed.items() if names] == ["backward"]
    assert sum(recomputed["backward"].values()) > 500
    assert not any("SGD" in name or "opt_" in name for name in recomputed["backward"])


def test_traces_without_checkpointing_recompute_nothing(opened: Open) -> None:
    for name in (DDP, QWEN):
        names = show(opened(name), order="operation")
        assert not [operation for operation in names if operation.endswith(RECOMPUTE)]


def test_qwen_has_its_24_layers_each_with_the_same_kernels(opened: Open) -> None:
    run = opened(QWEN)
    path = "gpu=0/iteration=6/phase=forward"
    layers = show(run, path)
    assert list(layers) == ["none", *map(str, range(QWEN_LAYERS))]
    assert len({layers[str(layer)]["kernels"] for layer in range(QWEN_LAYERS)}) == 1
    operations: dict[str, list[int]] = {}
    for layer in range(QWEN_LAYERS):
        for operation, row in show(run, f"{path}/layer={layer}").items():
            operations.setdefault(operation, []).append(row["kernels"])
    for name in ("q_ip", "k_ip", "v_ip", "attn_fa", "attn_op", "mlp_gp", "mlp_up", "mlp_dp"):
        assert operations[name] == [1] * QWEN_LAYERS, name


def test_inference_has_a_forward_and_nothing_else(opened: Open) -> None:
    assert list(show(opened(QWEN), order="phase")) == ["forward"]
