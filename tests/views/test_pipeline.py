"""The pipeline: microbatches, stages, the bubble against theory, the stage that is too long."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chopper_core.graph.collectives import collectives_of
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model import address
from chopper_core.model.charts import HeatMap
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.render import as_json, as_text
from chopper_core.util.errors import DataError
from chopper_core.views.frame import Frame
from chopper_core.views.query import frame_of
from tests.align.generated import load_generator
from tests.pipelines import Pipeline, pipeline_run, schedule
from tests.realdata.conftest import FOLDER
from tests.support import details
from tests.wording import Wording


def frame(run: Run, text: str) -> Frame:
    return frame_of(run, address.parse(f"R{text}"))


def column(found: Frame, name: str) -> list[float]:
    values = found.values[name]
    return np.where(values.present(), values.numbers, np.nan).tolist()


def dump(folder: Path, rank: int, times: list[tuple[float, float]], total: float) -> None:
    """A dump of one rank: forwards, then backwards, in ms."""
    half = len(times) // 2
    step = {
        "total": total,
        "fwd_start": [begin for begin, _ in times[:half]],
        "fwd_end": [end for _, end in times[:half]],
        "bwd_start": [begin for begin, _ in times[half:]],
        "bwd_end": [end for _, end in times[half:]],
    }
    (folder / f"pp_{rank}.json").write_text(json.dumps({"1": step, "2": step}))


def test_a_dump_is_a_run(tmp_path: Path) -> None:
    dump(tmp_path, 0, [(0, 1), (1, 2), (4, 6), (7, 9)], 10.0)
    dump(tmp_path, 1, [(1, 2), (3, 4), (2, 3), (4, 6.5)], 9.0)
    for run in (open_run(str(tmp_path)), open_cached(str(tmp_path)), open_cached(str(tmp_path))):
        assert len(run.table) == 16
        assert run.parallel is not None
        assert dict(run.parallel.sizes) == {"pp": 2}
        found = frame(run, "?view=pipeline&by=rank")
        assert column(found, "pipeline_idle_pct") == pytest.approx([40.0, 100 * (1 - 5.5 / 9)])
        assert column(found, "microbatches_ns") == [6e6, 5.5e6]
        assert column(found, "theory_pct") == pytest.approx([100 / 3] * 2)
        # The accounting holds: every nanosecond of a rank's span is in one state.
        own = run.table.gpu == 0
        assert int(run.table.compute_ns[own].sum()) == 12_000_000
        assert int(run.table.compute_ns[own].sum() + run.table.idle_ns[own].sum()) == 19_000_000


def test_the_rank_that_made_a_step_of_a_pipeline_long_is_named(tmp_path: Path) -> None:
    """Rank 2 takes 3 ms more in step 4: the others are idle for that long, and wait."""
    for rank in range(4):
        steps = {}
        for step in range(1, 9):
            late = 3.0 if step == 4 else 0.0
            before = late if rank > 2 else 0.0
            forward = (rank + before, rank + 1 + before + late * (rank == 2))
            back = 4 + 2 * (3 - rank) + late
            steps[str(step)] = {
                "total": 12 + late,
                "fwd_start": [forward[0]], "fwd_end": [forward[1]],
                "bwd_start": [back], "bwd_end": [back + 2],
            }  # fmt: skip
        (tmp_path / f"pp_{rank}.json").write_text(json.dumps(steps))
    found = frame(open_run(str(tmp_path)), "?view=findings")
    (row,) = (at for at, each in enumerate(found.labels) if "Step 4" in each)
    assert found.labels[row].endswith("GPU 2 computes longer")
    figures = found.row(row)
    assert figures["cost_ns"] == pytest.approx(3e6 / 8, rel=0.01)
    # It brings no more than it costs; not all ranks end their step with what waited.
    assert 0.7 * 3e6 / 8 < figures["saving_ns"] <= 1.01 * 3e6 / 8


def test_dumps_of_two_jobs_are_not_one_run(tmp_path: Path) -> None:
    for job in "ab":
        (tmp_path / job).mkdir()
        dump(tmp_path / job, 0, [(0, 1), (2, 3)], 4.0)
    with pytest.raises(DataError, match=r"pp_0.json and pp_0.json both have rank 0.*open one"):
        open_run(f"{tmp_path / 'a'},{tmp_path / 'b'}", jobs=1)


def test_real_dumps_have_the_idle_shares_that_were_counted() -> None:
    if not (FOLDER / "pipeline_pp8").is_dir():
        pytest.skip("no real data")
    run = open_run(str(FOLDER / "pipeline_pp8"), jobs=1)
    found = frame(run, ":iteration=20?order=iteration&view=pipeline&by=rank")
    expected = []
    for rank in range(8):
        path = FOLDER / "pipeline_pp8" / f"pp8_{rank}.json"
        step = json.loads(path.read_text())["20"]
        busy = sum(step["fwd_end"]) - sum(step["fwd_start"])
        busy += sum(step["bwd_end"]) - sum(step["bwd_start"])
        expected.append(100 * (1 - busy / step["total"]))
    shares = column(found, "pipeline_idle_pct")
    assert shares == pytest.approx(expected, abs=1e-4)
    known = [36.42, 35.72, 31.72, 31.70, 29.21, 26.71, 26.15, 17.28]
    assert shares == pytest.approx(known, abs=0.01)
    assert column(found, "theory_pct")[0] == pytest.approx(100 * 7 / 23)


def worker_rows(left_out: int | None = None) -> list[dict[str, float | int | str]]:
    """Two stages of two replicas: two microbatches forward, then the replicas reduce."""
    rows: list[dict[str, float | int | str]] = []
    for stage, replica, step in product(range(2), range(2), range(2)):
        rank = 2 * stage + replica

        def add(name: str, start: float, duration: float, microbatch: int = -1) -> None:
            place = {"rank": rank, "stage": stage, "dp_rank": replica, "step": step}  # noqa: B023
            times = {"start_ts": start, "duration": duration, "mb_id": microbatch}
            if rank != left_out:  # noqa: B023
                rows.append({**place, "optype": name, **times})

        for number in range(2):
            at = 0.1 * number + 0.01 * replica
            if stage == 0:
                add("forward-compute", at, 0.05, number)
                add("forward-send", at + 0.05, 0.01)
            else:
                # The receive is posted when the last one is done.
                posted = at - 0.03 if number else 0.0
                add("forward-recv", posted, at + 0.06 - posted)
                add("forward-compute", at + 0.06, 0.05, number)
        add("grads-reduce-scatter", 0.3 + 0.02 * replica, 0.05 - 0.02 * replica)
        add("embedding-grads-all-reduce", 0.4 + 0.03 * stage, 0.05 - 0.03 * stage)
        add("layernorm-grads-all-reduce", 0.5, 0.001)
    return rows


def worker_run(path: Path, rows: list[dict[str, float | int | str]]) -> Run:
    pq.write_table(pa.Table.from_pylist(rows), path / "job.parquet")
    return open_run(str(path / "job.parquet"), jobs=1)


def test_groups_of_a_schedule_follow_from_stage_and_replica(tmp_path: Path) -> None:
    run = worker_run(tmp_path, worker_rows())
    found = collectives_of(run)
    assert found is not None and found.complete.all()
    # Per step: two transfers and one embedding per replica, a reduction per stage, a norm per rank.
    assert len(found) == 2 * (4 + 2 + 2 + 4)
    comms = frame(run, "?view=comms&base=total")
    assert not any("lack ranks" in note for note in comms.notes)
    waits = dict(zip(comms.labels, column(comms, "wait_ns"), strict=True))
    # By hand, over 2 steps and 2 replicas, or 2 stages: receives wait for sends, and so on.
    assert waits["forward-recv"] == pytest.approx(2 * 1e9 * (0.05 + 0.08 + 0.06 + 0.08))
    assert waits["forward-send"] == 0 == waits["layernorm-grads-all-reduce"]
    assert waits["grads-reduce-scatter"] == pytest.approx(2 * 2 * 0.02e9)
    assert waits["embedding-grads-all-reduce"] == pytest.approx(2 * 2 * 0.03e9)


def test_a_rank_left_out_of_a_schedule_is_missed(tmp_path: Path) -> None:
    run = worker_run(tmp_path, worker_rows(left_out=3))
    found = collectives_of(run)
    assert found is not None
    kinds = [run.table.operations[code] for code in found.kind[found.complete].tolist()]
    counts = Counter(kinds)
    assert counts == {
        "forward-send": 4,
        "grads-reduce-scatter": 2,
        "embedding-grads-all-reduce": 2,
    }


@pytest.mark.parametrize("job", ["ST", "SE"])
def test_collectives_of_real_workers_have_all_their_ranks(job: str) -> None:
    path = FOLDER / "straggler_whatif" / f"trace-{job}.parquet"
    if not path.exists():
        pytest.skip("no real data")
    found = collectives_of(run := open_run(str(path), jobs=1))
    assert found is not None
    lacking = {run.table.operations[code] for code in found.kind[~found.complete].tolist()}
    # SE's file has every second rank: those that share its norms are others.
    assert lacking == ({"layernorm-grads-all-reduce"} if job == "SE" else set())
    transfers = np.flatnonzero(np.isin(found.kind, [run.table.operations.index("forward-send")]))
    assert len(transfers) == (11008 if job == "SE" else 768)


def test_real_workers_name_the_last_stage(wording: Wording) -> None:
    path = FOLDER / "straggler_whatif" / "trace-ST.parquet"
    if not path.exists():
        pytest.skip("no real data")
    run = open_run(str(path), jobs=1)
    assert run.parallel is not None
    assert dict(run.parallel.sizes) == {"pp": 4, "dp": 2}
    found = frame(run, "?view=pipeline")
    assert "stage 3 takes " in found.headline[1]
    wording(found.notes[0], "schedule")
    findings = frame(run, "?view=findings")
    assert any("stage 3" in sentence for sentence in details(findings))


@pytest.mark.few(1)
@pytest.mark.parametrize("named", [False, True])
def test_the_planted_stage_and_bubble_are_found(named: bool, wording: Wording) -> None:
    run, config, truth = pipeline_run(names_microbatches=named)
    found = frame(run, "?view=pipeline")
    assert list(found.labels) == ["0", "1", "2", "3"]
    causes = details(frame(run, "?view=findings"))
    (long,) = (each for each in causes if f"stage {config.long_stage} is too long" in each)
    wording(long, "30.0 % longer")
    # The hot slot is a straggler: its partner in each layer and its replicas wait for it.
    (hot,) = (each for each in causes if "hotter" in each)
    wording(hot, f"GPU {config.hot_rank} (pp 1, dp 2, tp 1, node 1)", "7.4 % lower")
    wording(hot, "°C hotter at the edge")
    assert set(column(found, "microbatches")) == {config.microbatches}
    assert column(found, "theory_pct")[0] == pytest.approx(100 * truth["ideal_bubble"])
    assert f"stage {config.long_stage} takes " in found.headline[1]
    times = column(found, "stage_x")
    assert times[config.long_stage] == pytest.approx(config.long_by, rel=0.05)
    # Against a count by hand: forwards and backwards of each stage, without what lies between.
    forward = column(found, "forward_ns")
    for stage in (0, 2, 3):
        layer = config.layer_us(0 if stage else 1, stage, False) + 14 + config.reduce_us
        assert forward[stage] == pytest.approx(1e3 * (config.layers * layer - 10), rel=0.01)
    bubble = column(found, "bubble_pct")
    assert min(bubble) > 10 and max(bubble) < 45
    assert bubble[config.long_stage] == min(bubble)


@pytest.mark.sweep
def test_equal_stages_have_the_bubble_of_theory() -> None:
    run, _, truth = pipeline_run(long_by=1.0, hot_by=1.0, layers=4, send_us=2, reduce_us=4)
    found = frame(run, "?view=pipeline")
    assert len(found.headline) == 1
    for bubble in column(found, "bubble_pct"):
        assert bubble == pytest.approx(100 * truth["ideal_bubble"], abs=3)
    assert not any("too long" in each for each in details(frame(run, "?view=findings")))


def test_microbatches_keep_the_order_of_the_schedule() -> None:
    from chopper_core.analyses.pipeline import blocks_of

    run, config, _ = pipeline_run()
    blocks = blocks_of(run, address.parse("R"))
    assert len(blocks) == 32 * 3 * 2 * config.microbatches
    for gpu in (0, 9, 17, 31):
        own = np.flatnonzero((blocks.gpu == gpu) & (blocks.iteration == 4))
        own = own[np.argsort(blocks.start_ns[own])]
        pairs = list(
            zip((blocks.work[own] == 1).tolist(), blocks.microbatch[own].tolist(), strict=True)
        )
        assert pairs == schedule(config, gpu // 8)


@pytest.mark.sweep
def test_without_process_groups_a_layout_gives_the_stages() -> None:
    run, config, _ = pipeline_run(names_groups=False)
    assert "--parallel" in frame(run, "?view=pipeline").notes[0]
    told, _, _ = pipeline_run("tp=2,pp=4", names_groups=False)
    named = frame(pipeline_run()[0], "?view=pipeline")
    found = frame(told, "?view=pipeline")
    assert f"stage {config.long_stage} takes " in found.headline[1]
    assert column(found, "bubble_pct") == pytest.approx(column(named, "bubble_pct"))


def test_the_view_prints_by_every_split() -> None:
    run = pipeline_run()[0]
    for by in ("stage", "rank", "iteration", "microbatch"):
        found = frame(run, f"?view=pipeline&by={by}")
        assert "bubble" in as_text(found) or by == "microbatch"
        assert json.loads(as_json(found))["rows"]
        assert frame_of(run, found.target(0)) is not None
    whole = frame(run, "?view=pipeline&by=rank")
    part = frame(run, ":pp=1?order=pp&view=pipeline&by=rank")
    assert list(part.labels) == [str(gpu) for gpu in range(8, 16)]
    # A figure of a rank is the same in every scope that has it.
    for name in ("step_window_ns", "bubble_pct", "forward_ns"):
        assert column(part, name) == column(whole, name)[8:16]


def test_a_run_without_a_pipeline_says_so() -> None:
    from tests.support import sample_run

    run = sample_run()
    assert frame(run, "?view=pipeline").notes[0].startswith("no pipeline")


def test_the_defaults_are_32_ranks() -> None:
    assert Pipeline().ranks == 32


def interleaved(stages: int, chunks: int, microbatches: int) -> list[tuple[int, int]]:
    """Microbatch and chunk of the forwards in Megatron's order, by nested loops."""
    return [
        (group + place, chunk)
        for group in range(0, microbatches, stages)
        for chunk in range(chunks)
        for place in range(stages)
    ]


@pytest.mark.parametrize("listed", [False, True], ids=["config.json", "lists"])
def test_an_interleaved_dump_has_chunks(tmp_path: Path, listed: bool) -> None:
    order = interleaved(2, 3, 4)
    for rank in range(2):
        starts = [2.0 * place + rank for place in range(12)]
        step = {"total": 60.0}
        for name, base in (("fwd", 0.0), ("bwd", 30.0)):
            # Chunk 1 takes twice as long.
            own = [chunk if name == "fwd" else 2 - chunk for _, chunk in order]
            ends = [s + (2 if c == 1 else 1) for s, c in zip(starts, own, strict=True)]
            step |= {f"{name}_start": [base + s for s in starts]}  # type: ignore[dict-item]
            step |= {f"{name}_end": [base + e for e in ends]}  # type: ignore[dict-item]
            if listed:
                step |= {f"{name}_minibatch": [n for n, _ in order]}  # type: ignore[dict-item]
                step |= {f"{name}_chunk": own}  # type: ignore[dict-item]
        (tmp_path / f"pp_rank_{rank}.json").write_text(json.dumps({"0": step}))
    if not listed:
        config = {"pp_size": 2, "vpp_size": 3, "micro_batches": 4}
        (tmp_path / "config.json").write_text(json.dumps(config))
    run = open_run(str(tmp_path), jobs=1)
    found = frame(run, "?view=pipeline")
    stages = "2 stages of 3 chunks, 4 microbatches (interleaved 1F1B)"
    assert found.headline[0].endswith(f" with equal stages · {stages}")
    assert column(found, "theory_pct") == pytest.approx([100 / (3 * 4 + 1)] * 2)
    assert column(found, "microbatches_ns") == [32e6, 32e6]
    chunks = frame(run, "?view=pipeline&by=chunk")
    assert column(chunks, "forward_ns") == [1e6, 2e6, 1e6]
    assert column(chunks, "backward_ns") == [1e6, 2e6, 1e6]
    # Each microbatch has one block per chunk.
    microbatches = frame(run, "?view=pipeline&by=microbatch")
    assert list(microbatches.labels) == ["0", "1", "2", "3"]
    assert column(microbatches, "forward_ns") == pytest.approx([4e6 / 3] * 4)


def test_a_zero_bubble_dump_has_gradients_of_weights_apart(tmp_path: Path) -> None:
    for rank in range(2):
        step = {"total": 20.0}
        for name, base, took in (("fwd", 0.0, 1.0), ("bwd", 5.0, 1.5), ("wgrad", 12.0, 0.5)):
            starts = [base + 2 * number for number in range(3)]
            step |= {f"{name}_start": starts, f"{name}_end": [s + took for s in starts]}  # type: ignore[dict-item]
        (tmp_path / f"pp_rank_{rank}.json").write_text(json.dumps({"1": step}))
    found = frame(open_run(str(tmp_path), jobs=1), "?view=pipeline")
    assert "(ZB-H1)" in found.headline[0]
    assert column(found, "weight_gradient_ns") == [5e5] * 2
    assert column(found, "pipeline_idle_pct") == pytest.approx([55.0] * 2)
    # (p - 1)(F + B - W) over that and m (F + B + W): 2 / (2 + 9).
    assert column(found, "theory_pct") == pytest.approx([100 * 2 / 11] * 2)


@pytest.mark.parametrize(
    ("name", "microbatch", "chunk"),
    [
        ("forward microbatch 3", 3, -1),
        ("fwd mb=3 chunk=1", 3, 1),
        ("forward_step micro_batch: 7 virtual stage 2", 7, 2),
        ("backward microbatch 0 vpp 1", 0, 1),
        ("chunked_loss", -1, -1),
    ],
)
def test_annotations_say_microbatch_and_chunk(name: str, microbatch: int, chunk: int) -> None:
    from chopper_core.analyses.pipeline import _CHUNKED, _NUMBERED

    for pattern, number in ((_NUMBERED, microbatch), (_CHUNKED, chunk)):
        match = pattern.search(name)
        assert (int(match[1]) if match else -1) == number


@pytest.mark.few(1)
@pytest.mark.parametrize("parallel", ["", "tp=2,pp=3"], ids=["pg_config", "--parallel"])
def test_a_generated_run_has_its_grid_bubble_groups_and_cause(
    parallel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small run of the command in docs/parallelism.md, with named groups and without."""
    sizes = ["--tp=2", "--pp=3", "--dp=3", "--microbatches=6", "--iterations=2", "--layers=1"]
    unnamed = ["--no-groups"] if parallel else []
    command = ["generate.py", "pipeline", "-o", str(tmp_path), *sizes, *unnamed]
    monkeypatch.setattr("sys.argv", command)
    load_generator().main()
    truth = json.loads((tmp_path / "truth.json").read_text())
    run = open_run(str(tmp_path), jobs=1, overrides=overrides_of(parallel=parallel))
    (grid,) = frame(run, "?view=grid&of=edge_c").charts
    assert isinstance(grid, HeatMap)
    assert grid.rows == ("pp 0", "pp 1", "pp 2")
    assert [each for each in grid.columns if each] == [
        f"{dp} {t}" for dp in range(3) for t in (0, 1)
    ]
    assert "1F1B" in frame(run, "?view=pipeline").headline[0]
    assert column(frame(run, "?view=pipeline"), "theory_pct")[0] == pytest.approx(25)
    causes = "\n".join(details(frame(run, "?view=findings")))
    assert f"stage {truth['long_stage']} is too long" in causes
    assert f"GPU {truth['hot_rank']} (pp 2, dp 0, tp 1" in causes
    found = collectives_of(run)
    assert found is not None
    members = {
        tuple(run.table.gpu[found.members.rows_of(one)].tolist())
        for one in np.flatnonzero(found.complete).tolist()
    }
    assert members == {tuple(group) for kind in ("tp", "dp") for group in truth["groups"][kind]}


@pytest.mark.parametrize("level", ["gpu", "iteration", "pp"])
def test_figures_of_a_pipeline_are_columns_of_the_tree(level: str) -> None:
    """As the view has them by rank, step and stage, with its totals."""
    run = pipeline_run()[0]
    names = (
        *("forward_ns", "backward_ns", "microbatches", "microbatches_ns", "step_window_ns"),
        *("pipeline_idle_pct", "bubble_pct", "theory_pct", "stage_x"),
    )
    split = {"gpu": "rank", "pp": "stage"}.get(level, level)
    asked = f"columns={','.join(names)}"
    tree = frame(run, f"?{'by' if level == 'pp' else 'order'}={level}&{asked}")
    view = frame(run, f"?view=pipeline&by={split}")
    assert len(view) > 1
    for name in names:
        known = {label: tree.row(number)[name] for number, label in enumerate(tree.labels)}
        if name in view.values:
            for number, label in enumerate(view.labels):
                assert known[label] == pytest.approx(view.row(number)[name]), name
            if view.total.get(name) is not None:
                assert tree.total[name] == pytest.approx(view.total[name]), name
        assert (name == "stage_x" and level == "iteration") == (not any(known.values())), name


def test_a_part_of_microbatches_has_no_figures_of_a_pipeline() -> None:
    """Forward work alone is whole microbatches of forward, and no whole step."""
    run = pipeline_run()[0]
    names = "forward_ns,backward_ns,microbatches_ns,bubble_pct"
    found = frame(run, f"?order=phase&columns={names}")
    forward = found.row(found.labels.index("forward"))
    whole = frame(run, f"?order=gpu&columns={names}").total
    assert forward["forward_ns"] == pytest.approx(whole["forward_ns"])
    assert forward["backward_ns"] is forward["microbatches_ns"] is forward["bubble_pct"] is None
    layers = frame(run, "?order=layer&columns=forward_ns")
    assert sum(layers.values["forward_ns"].present()) <= 1
