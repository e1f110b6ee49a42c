"""The compute of a GPU next to that of its peers, computed cell by cell from the definition."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import numpy as np
import pytest

from chopper_core.findings import operations
from chopper_core.findings.rule import context_of
from chopper_core.model.address import parse
from chopper_core.model.table import Kind, Phase
from tests.support import Row, run_of

GPUS, ITERATIONS = 5, 3


def ragged() -> list[Row]:
    """GPU 1 lacks an operation of a layer; GPU 3 runs another kernel in one; some is overlapped."""
    random = np.random.default_rng(7)
    rows = []
    for gpu in range(GPUS):
        now = 0
        for iteration in range(ITERATIONS):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                for layer in range(3):
                    for operation in ("norm", "up", "down"):
                        if (gpu, layer, operation) == (1, 2, "up"):
                            continue
                        is_other = (gpu, phase, layer) == (3, Phase.BACKWARD, 0)
                        name = "another" if is_other else "usual"
                        labels = {"gpu": gpu, "iteration": iteration, "phase": phase}
                        for kernel in (name, "last"):
                            took = int(random.integers(500, 1_500))
                            where = {"layer": layer, "operation": operation, "kernel": kernel}
                            rows.append(Row(now, took, **labels, **where))
                            if operation == "down" or random.random() < 0.1:
                                comm = {"kind": Kind.COMM, "stream": 1, "operation": "gather"}
                                rows.append(Row(now, took, **labels, **comm, kernel="nccl"))
                            now += took
    return rows


@pytest.mark.parametrize("piece", [1, 1 << 18])
def test_compute_is_compared_with_peers_that_run_the_same_kernels(
    monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(operations, "_PIECE", piece)
    run = run_of(ragged())
    context = context_of(run, parse("R?view=findings"))
    pairs = [tuple(each) for each in context.together("phase", "operation")[0].tolist()]
    table = run.table
    took: dict[tuple[int, ...], int] = defaultdict(int)
    overlap: dict[tuple[int, ...], int] = defaultdict(int)
    kernels: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(table.kind == Kind.COMPUTE).tolist():
        levels = ("gpu", "iteration", "phase", "layer", "operation")
        cell = tuple(int(table.column(level)[row]) for level in levels)
        took[cell] += int(table.duration_ns[row])
        overlap[cell] += int(table.overlap_ns[row])
        kernels[cell].append(int(table.kernel[row]))
    shape = len(pairs), GPUS, ITERATIONS
    whole, known, own = np.zeros(shape), np.zeros((2, *shape)), np.zeros((2, *shape))
    for cell in took:
        gpu, iteration, phase, _, operation = cell
        at = pairs.index((phase, operation)), gpu, iteration
        every = [each for each in took if each[1:] == cell[1:] and kernels[each] == kernels[cell]]
        if len(every) < 2:
            continue
        whole[at] += took[cell]
        alone = [each for each in every if overlap[each] <= 0.1 * took[each]]
        for number, chosen in enumerate((alone, every)):
            others = [took[each] for each in chosen if each != cell]
            if cell in chosen and others:
                known[number][at] += median(others)
                own[number][at] += took[cell]
    took_ns, *found = operations._compared(context)
    assert took_ns.tolist() == whole.sum(axis=2).tolist()
    assert 0 < known[0].sum() < known[1].sum() < whole.sum()
    for each, usual, mine in zip(found, known, own, strict=True):
        assert each.known_ns.tolist() == usual.sum(axis=2).tolist()
        # Each iteration as the whole: beyond what most of the GPU's compute takes longer.
        longer = 1 + (mine - usual).sum(axis=2) / np.maximum(usual.sum(axis=2), 1)
        general = longer / each.ratio
        assert np.allclose(general, general[:1])
        assert (general >= 1).all()
        compared = usual > 0
        assert (np.isfinite(each.each) == compared).all()
        expected = mine[compared] / usual[compared]
        assert np.allclose((each.each * general[:, :, None])[compared], expected)
