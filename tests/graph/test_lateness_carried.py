"""What GPUs are late for between two collectives of a team, against a loop over each GPU."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_core.graph.collectives import _exposed_elsewhere
from chopper_core.model.table import Kind
from tests.support import Row, run_of


@pytest.mark.parametrize("hides", [0.0, 0.3, 1.0])
def test_exposed_time_with_others_is_carried_behind_hidden_waits(hides: float) -> None:
    random = np.random.default_rng(round(10 * hides))
    count, gpus = 300, 3
    rows: list[Row] = [
        Row(1_000 * place, 600 + place, Kind.COMM, gpu=gpu)
        for gpu in range(gpus)
        for place in range(count)
    ]
    table = run_of(rows).table
    own = np.flatnonzero(table.kind == Kind.COMM)[random.permutation(count * gpus)]
    team = random.integers(0, 3, len(own))
    hidden = random.random(len(own)) * (random.random(len(own)) < hides)
    expected = np.zeros(len(own), np.int64)
    for gpu in range(gpus):
        since, before = dict.fromkeys(range(3), 0), dict[int, int]()
        mine = np.flatnonzero(table.gpu[own] == gpu)
        for at in mine[np.argsort(table.start_ns[own[mine]])].tolist():
            this, exposed = int(team[at]), int(table.exposed_comm_ns[own[at]])
            carried = 0
            if this in before:
                last = before[this]
                carried = int(np.rint(hidden[last] * expected[last]))
            expected[at] = since[this] + carried
            since = {each: 0 if each == this else ns + exposed for each, ns in since.items()}
            before[this] = at
    found = _exposed_elsewhere(table, own, team, hidden)
    assert found.tolist() == expected.tolist()
    assert expected.any()
