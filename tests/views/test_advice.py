"""What to do about findings: given where the run shows its condition, and nowhere else."""

from __future__ import annotations

import json

import pytest

from chopper_core.findings import RULES
from chopper_core.findings.advice import ADVICE, MAX_ADVICE, advice_for
from chopper_core.findings.rule import Cost, context_of
from chopper_core.model.table import Kind, Phase
from chopper_core.model.view import View
from chopper_core.render.exchange import as_json
from chopper_core.render.text import as_text
from chopper_core.views.query import query
from tests.demo import demo_run
from tests.programs.bench import causes as bench
from tests.programs.bench.causes import planted
from tests.support import Row, run_of

CASES = (
    ("values read back in every layer", "module", "Keep the value on the GPU", "aten::item"),
    ("garbage collection on all GPUs", "module", "gc.freeze()", "gc.collect()"),
    ("data late on all GPUs", "module", "Raise num_workers", "persistent_workers"),
    ("an allocator that retries", "module", "the driver", "hip"),
    ("a step that compiles", "module", "torch._dynamo.mark_dynamic", "TORCH_LOGS=recompiles"),
    ("a stall after the optimizer", "module", "with_stack=True", "Python frames"),
    ("copies from pageable memory", "module", "pin_memory=True", "HtoD"),
)


@pytest.mark.few(2)
@pytest.mark.parametrize(("cause", "style", "words", "named"), CASES, ids=lambda each: str(each))
def test_a_cause_has_its_advice(cause: str, style: str, words: str, named: str) -> None:
    run = bench.opened(planted.plant(cause, 3, 0.1, style).run)
    frame = query(run, View(run.name, name="findings", columns=("+advice",)))
    first = frame.row(0)
    assert words in str(first["advice"]) and named in str(first["advice"])
    text = " ".join(as_text(frame, width=100).split())
    assert words in text


def test_advice_is_data_and_never_without_its_condition() -> None:
    """Every row names rules there are; the demo's findings have what fits them, or nothing."""
    names = {each.name for each in RULES}
    assert all(set(row.rules) <= names and row.sentence.endswith(".") for row in ADVICE)
    run = demo_run()
    rows = json.loads(as_json(query(run, View(run.name, name="findings"))))["rows"]
    advice = {row["rule"]: row["advice"] for row in rows}
    assert "GPU 5's slot" in advice["straggler"]
    # Gradients are reduced once a step: there is no micro-step to skip.
    assert "micro-step" not in (advice["exposed"] or "")
    # A host that is late once, in nothing that the trace names, has none.
    assert advice["late-host"] is None
    # What is missing has what to record.
    assert advice["missing"] is not None and advice["missing"].startswith("Record ")
    for row in rows:
        assert (row["advice"] or "").count(". ") < MAX_ADVICE


@pytest.mark.parametrize(
    ("operation", "words", "other"),
    [("FSDP::pre", "fully_shard", "in FSDP"), ("FullyShardedDataParallel.x", "in FSDP", "fully_")],
)
def test_advice_is_for_the_wrapper_that_the_trace_names(
    operation: str, words: str, other: str
) -> None:
    rows = []
    for step in range(3):
        at = step * 100_000
        for start, name, kind, phase in (
            (0, "mlp", Kind.COMPUTE, Phase.FORWARD),
            (20_000, "all_gather", Kind.COMM, Phase.FORWARD),
            (50_000, operation, Kind.COMPUTE, Phase.BACKWARD),
            (60_000, "reduce_scatter", Kind.COMM, Phase.BACKWARD),
        ):
            rows.append(Row(at + start, 9_000, kind, iteration=step, phase=phase, operation=name))
    run = run_of(rows)
    context = context_of(run, View(run.name))
    finding = context.finding("t", "d", context.at(), Cost.COMMUNICATION, 9_000)
    rule = next(each for each in RULES if each.name == "exposed")
    (text, *_) = advice_for(context, rule, finding, None)
    assert "in forward" in text and words in text and other not in text


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [1, 4])
def test_parameters_are_gathered_earlier_in_the_phase_that_waits_for_them(seed: int) -> None:
    """Prefetching in forward does nothing for what backward gathers."""
    run = bench.opened(planted.plant("parameters not gathered ahead", seed, 0.12).run)
    table, gathers = run.table, run.table.operations.index("all_gather")
    frame = query(run, View(run.name, name="findings", columns=("+advice",)))
    rows = [frame.row(row) for row in range(len(frame))]
    (advice,) = (row["advice"] for row in rows if row["rule"] == "exposed")
    for name, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
        own = (table.operation == gathers) & (table.phase == phase)
        share = table.exposed_comm_ns[own].sum() / table.exposed_comm_ns.sum()
        assert (f"set_modules_to_{name}_prefetch" in advice) == (share >= 0.2)
