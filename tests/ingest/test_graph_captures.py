"""Graphs that are replayed in one trace and captured in another: names down to the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import FLOPS
from chopper_core.model.run import Run
from chopper_core.model.table import Category
from chopper_core.util.errors import DataError
from tests.align.traces import ADD, FLASH, GEMM, TinyTrace
from tests.wording import Wording

NORM = "void vllm::rms_norm_kernel<c10::BFloat16>()"
BF16 = "c10::BFloat16"
UNCAPTURED = "kernels of graphs whose capture isn't in the traces"
LAYER = (("RMSNorm", NORM), ("QKVParallelLinear", GEMM), ("Attention", FLASH), ("MLP", ADD))
"""The modules of a layer, and the kernel of each."""


def capture(
    layers: int, rows: int, *, pieces: int = 1, named: bool = True, runtime: str = "hip"
) -> TinyTrace:
    """Layers that are captured into graphs, as many in each; products have `rows` rows."""
    trace = TinyTrace(members={"distributedInfo": {"rank": 0, "world_size": 1}})
    trace.note("ProfilerStep#7", 0, 100_000)
    trace.module("Model_0", 10, 99_000)
    at, correlation = 20, 0
    for piece in range(pieces):
        trace.call(f"{runtime}StreamBeginCapture", at, 5000 + piece)
        for layer in range(piece * layers // pieces, (piece + 1) * layers // pieces):
            trace.module(f"DecoderLayer_{layer}", at + 5, at + 95)
            for place, (module, kernel) in enumerate(LAYER):
                begin = at + 10 + 20 * place
                trace.module(f"{module}_{layer}", begin, begin + 18)
                name, inputs = "aten::add", [[rows, 8], [rows, 8]]
                if kernel == GEMM:
                    name, inputs = "aten::mm", [[rows, 8], [8, 24]]
                types: dict[str, Any] = {"Input Dims": inputs, "Input type": [BF16] * 2}
                trace.op(name, begin + 2, begin + 12, **types)
                correlation += 1
                call = trace.call(f"{runtime}LaunchKernel", begin + 5, correlation)
                call["args"] |= {"kernel": kernel} if named else {}
            at += 100
        trace.call(f"{runtime}StreamEndCapture", at, 6000 + piece)
        at += 100
    return trace


def replay(
    *graphs: list[str], tokens: int = 0, streams: int = 1, runtime: str = "hip"
) -> TinyTrace:
    """Launches of graphs, which run kernels, in an engine's step."""
    trace = TinyTrace(members={"distributedInfo": {"rank": 0, "world_size": 1}})
    length = 1000 * len(graphs)
    if tokens:
        trace.note(f"execute_context_0(0)_generation_{tokens}({tokens})", 0, length)
    for number, kernels in enumerate(graphs):
        trace.call(f"{runtime}GraphLaunch", 1000 * number + 10, 700 + number)
        for place, kernel in enumerate(kernels):
            start = 1000 * number + 20 + 10 * place
            stream = place % streams
            trace.gpu(kernel, start, correlation=700 + number, stream=stream)
    return trace


def opened(folder: Path, run: TinyTrace, **captures: TinyTrace) -> Run:
    run.write(folder / "decode.json")
    for name, trace in captures.items():
        trace.write(folder / f"{name}.json")
    (found,) = find_runs([str(folder)])
    return open_run(found.path, jobs=1)


def labels(run: Run) -> list[tuple[int, str]]:
    table = run.table
    activities = np.flatnonzero(table.category != Category.OUTSIDE).tolist()
    rows = sorted(activities, key=lambda row: int(table.start_ns[row]))
    return [(int(table.layer[row]), table.operations[table.operation[row]]) for row in rows]


def wanted(layers: range) -> list[tuple[int, str]]:
    return [(layer, module) for layer in layers for module, _ in LAYER]


KERNELS = [kernel for _, kernel in LAYER]


def test_a_replay_has_the_modules_of_the_capture_next_to_it(
    tmp_path: Path, wording: Wording
) -> None:
    run = opened(tmp_path, replay(3 * KERNELS, 3 * KERNELS), other=capture(3, 4))
    assert labels(run) == 2 * wanted(range(3))
    assert run.table.measured[FLOPS][~(run.table.measured[FLOPS] != 2 * 4 * 8 * 24)].size == 6
    (source,) = run.sources
    (note,) = source.notes
    wording(note, str(tmp_path / "other.json"), "replayed graphs")
    assert not run.skipped and not run.failed and source.findings[UNCAPTURED] == 0
    assert (run.table.iteration == run.table.iteration[0]).all()
    # Nothing of the capture is work of the host in the run.
    assert "ProfilerStep#7" not in str(run.side_tables)


@pytest.mark.parametrize("runtime", ["cuda", "cu"])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_capture_of_cuda_names_no_kernels_and_one_stream_needs_none(
    runtime: str, streams: int, tmp_path: Path
) -> None:
    own = capture(3, 4, named=False, runtime=runtime)
    run = opened(tmp_path, replay(3 * KERNELS, runtime=runtime, streams=streams), other=own)
    assert (labels(run) == wanted(range(3))) is (streams == 1)
    assert run.sources[0].findings[UNCAPTURED] == (0 if streams == 1 else 12)


def test_a_folder_of_captures_belongs_to_the_traces_above_it(tmp_path: Path) -> None:
    (tmp_path / "graph_capture").mkdir()
    capture(3, 4).write(tmp_path / "graph_capture" / "rank_0_bs4.json")
    capture(3, 2).write(tmp_path / "graph_capture" / "rank_0_bs2.json")
    run = opened(tmp_path, replay(3 * KERNELS, tokens=3))
    assert labels(run) == wanted(range(3))


@pytest.mark.parametrize(("tokens", "rows"), [(1, 2), (2, 2), (3, 4), (4, 4)])
def test_of_equal_captures_the_smallest_batch_that_holds_the_tokens_counts(
    tokens: int, rows: int, tmp_path: Path
) -> None:
    captures = {f"capture_{size}": capture(3, size, named=size % 4 == 0) for size in (2, 4, 8)}
    run = opened(tmp_path, replay(3 * KERNELS, tokens=tokens), **captures)
    assert labels(run) == wanted(range(3))
    assert set(run.table.measured[FLOPS]) >= {2 * rows * 8 * 24}


@pytest.mark.parametrize("tokens", [0, 9])
def test_no_capture_is_guessed(tokens: int, tmp_path: Path) -> None:
    captures = {f"capture_{size}": capture(3, size) for size in (2, 4, 8)}
    run = opened(tmp_path, replay(3 * KERNELS, tokens=tokens), **captures)
    assert {layer for layer, _ in labels(run)} == {-1}
    assert run.sources[0].findings[UNCAPTURED] == 12


def test_memory_that_a_graph_sets_and_copies_is_none_of_its_launches(tmp_path: Path) -> None:
    trace = capture(3, 4)
    trace.call("hipMemsetAsync", 50, 9000)
    run = opened(tmp_path, replay(["__amd_rocclr_fillBufferAligned", *3 * KERNELS]), other=trace)
    assert labels(run)[1:] == wanted(range(3))
    assert run.sources[0].findings[UNCAPTURED] == 0


def test_kernels_of_other_names_are_no_replay(tmp_path: Path) -> None:
    other = [NORM, GEMM + "_PGR1", *KERNELS[2:]]
    run = opened(tmp_path, replay([*KERNELS, *KERNELS, *other]), capture=capture(3, 4))
    assert run.sources[0].findings[UNCAPTURED] == 12


def test_streams_change_the_order_of_other_names_only(tmp_path: Path) -> None:
    swapped = [FLASH, GEMM, NORM, ADD]
    run = opened(tmp_path, replay([*swapped, *swapped], streams=4), capture=capture(2, 4))
    module = {kernel: name for name, kernel in LAYER}
    assert labels(run) == [(layer, module[name]) for layer in (0, 1) for name in swapped]
    (tmp_path / "two").mkdir()
    # Two kernels of one name on two streams: which is the first?
    run = opened(tmp_path / "two", replay(2 * KERNELS, streams=3), capture=capture(2, 4))
    assert run.sources[0].findings[UNCAPTURED] == 8


def test_pieces_of_a_model_are_replayed_in_their_order(tmp_path: Path) -> None:
    """Every piece but the last has the same kernels; the window begins within a step."""
    trace = capture(7, 4, pieces=4)  # of 1, 2, 2 and 2 layers
    pieces = [KERNELS, *(3 * [2 * KERNELS])]
    run = opened(tmp_path, replay(*pieces[2:], *pieces, *pieces), capture=trace)
    assert [layer for layer, _ in labels(run)[:16]] == 16 * [-1]
    assert labels(run)[16:] == 2 * wanted(range(7))


def test_the_capture_of_another_rank_is_none(tmp_path: Path, wording: Wording) -> None:
    trace = capture(3, 4)
    trace.members = {"distributedInfo": {"rank": 1, "world_size": 2}}
    run = opened(tmp_path, replay(3 * KERNELS), capture=trace)
    assert run.sources[0].findings[UNCAPTURED] == 12
    (note,) = [reason for _, reason in run.skipped]
    wording(note, "graphs", "rank")


def test_captures_alone_have_no_activity(tmp_path: Path) -> None:
    capture(3, 4).write(tmp_path / "capture_4.json")
    capture(3, 2).write(tmp_path / "capture_2.json")
    with pytest.raises(DataError, match="no GPU activity"):
        open_run(str(tmp_path), jobs=1)


def test_damage_of_a_capture_is_told(tmp_path: Path) -> None:
    path = capture(3, 4).write(tmp_path / "capture_4.json")
    path.write_text(path.read_text()[: len(path.read_text()) // 2])
    run = opened(tmp_path, replay(3 * KERNELS))
    assert len(run.sources) == 1 and run.sources[0].findings[UNCAPTURED] == 12
