"""Our labels of compute kernels against what the original Chopper says of the same trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, NO_LABEL, KernelTable, Rule
from tests.align.generated import DEMO, Generated
from tests.align.traces import ADD, AUTOGRAD, EVALUATE, GEMM, TinyTrace, align
from tests.oracles.accounting import nanoseconds, read_json
from tests.oracles.original import Kernel, merge

Make = Callable[[str], Generated]


@dataclass(frozen=True)
class Pair:
    """A kernel as the original labels it and as we do."""

    original: Kernel
    iteration: int | None
    layer: int | None
    phase: str
    operation: str
    layer_rule: Rule

    @property
    def thread(self) -> str:
        return str(self.original.event["tid"])


def pairs(run: Run, rank: int, path: Path) -> tuple[list[Pair], Counter[str]]:
    """The compute kernels of which the original says anything, with our labels."""
    document = read_json(path)
    base_ns = document.get("baseTimeNanoseconds") or 0
    table = run.table
    rows = {
        (int(table.start_ns[row]), int(table.stream[row])): int(row)
        for row in (table.gpu == rank).nonzero()[0]
    }
    merged = merge(document)
    found = []
    for kernel in merged.kernels:
        event = kernel.event
        # The original's later steps leave collectives and FSDP's own copies out.
        if event["name"].startswith("nccl") or "FSDP::" in (kernel.operator or ""):
            continue
        row = rows[base_ns + nanoseconds(event["ts"]), event["args"]["stream"]]
        assert table.names[table.kernel[row]] == event["name"]
        found.append(_pair(table, row, kernel))
    return found, merged.skipped


def _pair(table: KernelTable, row: int, kernel: Kernel) -> Pair:
    codes = {level: int(table.column(level)[row]) for level in LEVELS}
    return Pair(
        original=kernel,
        iteration=None if codes["iteration"] == NO_LABEL else codes["iteration"],
        layer=None if codes["layer"] == NO_LABEL else codes["layer"],
        phase=table.text_of("phase", codes["phase"]),
        operation=table.text_of("operation", codes["operation"]),
        layer_rule=Rule(int(table.layer_rule[row])),
    )


def differences(found: list[Pair]) -> Counter[tuple[str, object, object]]:
    """(level, what the original says, what we say) of all that differs."""
    counted: Counter[tuple[str, object, object]] = Counter()
    for pair in found:
        original = pair.original
        said = {
            "iteration": (original.iteration, pair.iteration),
            "layer": (original.layer, pair.layer),
            "phase": (original.phase, pair.phase),
            "operation": (original.operation, pair.operation),
        }
        for level, (theirs, ours) in said.items():
            if theirs is not None and theirs != ours:
                counted[level, theirs, ours] += 1
    return counted


def check_coverage(found: list[Pair]) -> None:
    """The original says nearly everything of nearly all kernels of the complete iterations."""
    complete = [pair for pair in found if pair.iteration is not None]
    for level in ("iteration", "operation", "phase"):
        known = sum(getattr(pair.original, level) is not None for pair in complete)
        assert known > 0.95 * len(complete), level
    in_layers = [pair for pair in complete if pair.layer is not None]
    known = sum(pair.original.layer is not None for pair in in_layers)
    assert known > 0.95 * len(in_layers) > 0.5 * len(complete)


@pytest.mark.sweep
def test_labels_of_the_demonstration_run_are_the_original_s(demo: Run) -> None:
    found, skipped = pairs(demo, 0, DEMO / "fsdp2" / "rank0.json.gz")
    check_coverage(found)
    assert len(found) > 3000
    # The gradient of the loss is launched inside `l`, the range around backward(): the original
    # knows backward by the prefix that its links give, and this operator has none.
    assert differences(found) == {("phase", "forward", "backward"): 2}
    assert {pair.original.operation for pair in found if pair.phase != pair.original.phase} == {
        "l", None
    }  # fmt: skip
    assert skipped["kernel without a launch"] > 10
    assert skipped["flow with one end"] > 100


def test_labels_of_a_generated_run_are_the_original_s(generated: Make) -> None:
    made = generated("annotated")
    for rank in (0, 1):
        found, _ = pairs(made.run, rank, made.folder / f"rank{rank}.json.gz")
        check_coverage(found)
        assert len(found) > 600
        assert differences(found) == {("phase", "forward", "backward"): 2}


@pytest.mark.sweep
def test_recomputed_work_is_the_enclosing_node_s_in_the_original_and_its_own_in_ours(
    generated: Make,
) -> None:
    """Checkpointed work runs inside the down projection's node and takes its name from there."""
    made = generated("recompute")
    for rank in (0, 1):
        found, _ = pairs(made.run, rank, made.folder / f"rank{rank}.json.gz")
        check_coverage(found)
        again = [pair for pair in found if pair.operation.endswith(" (recompute)")]
        assert len(again) > 100
        complete = [pair for pair in again if pair.original.iteration is not None]
        assert {pair.original.operation for pair in complete} == {"mlp_dp"}
        assert {pair.phase for pair in again} == {"backward"}
        for pair in complete:
            assert pair.original.phase == "backward"
            assert pair.original.layer == pair.layer
            assert pair.original.iteration == pair.iteration
        rest = [pair for pair in found if pair not in again]
        assert differences(rest) == {("phase", "forward", "backward"): 2}


def test_a_recomputing_thread_s_sequence_numbers_are_its_own(
    tmp_path: Path,
) -> None:
    """The autograd thread counts for itself when it recomputes, from a number that is taken."""
    trace = TinyTrace()
    trace.note("Iteration1", 0, 1000)
    trace.note("Layer0", 10, 100)
    trace.note("q_ip", 20, 90)
    forward = trace.op("aten::mm", 30, 80, **{"Sequence number": 5})
    trace.launch(GEMM, 40, external_id=forward["args"]["External id"])
    trace.note("Layer1", 110, 200)
    trace.note("mlp_dp", 120, 190)
    last = trace.op("aten::mm", 130, 180, **{"Sequence number": 6})
    trace.launch(GEMM, 140, external_id=last["args"]["External id"])
    args = {"Sequence number": 6, "Fwd thread id": 1}
    trace.op(EVALUATE + "MmBackward0", 300, 400, AUTOGRAD, **args)
    node = trace.op("MmBackward0", 310, 390, AUTOGRAD, **args)
    trace.flow(last, node)
    trace.note("mlp_gp", 320, 380, AUTOGRAD)
    again = trace.op("aten::mm", 330, 370, AUTOGRAD, **{"Sequence number": 5})
    trace.launch(ADD, 340, thread=AUTOGRAD, external_id=again["args"]["External id"])
    backward = trace.op(
        "MmBackward0", 500, 600, AUTOGRAD, **{"Sequence number": 5, "Fwd thread id": 1}
    )
    trace.flow(forward, backward)
    found = align(trace, tmp_path)
    recomputed = found.activities[-1]
    assert recomputed.kernel == ADD
    assert (recomputed.phase, recomputed.layer) == ("backward", "1")
    assert recomputed.operation == "mlp_gp (recompute)"
