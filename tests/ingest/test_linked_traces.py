"""What `chakra_trace_link` leaves opens as a run, and costs the host traces next to it nothing.

The linker is written anew here: nodes are renumbered, operators get Kineto's times, and each kernel
is a copy of the node that launched it, with times of its own.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.extensions.chakra.host_trace import SCHEMAS
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.render.exports import export
from chopper_core.sources.registry import Family, family_of
from chopper_core.util.errors import DataError
from tests.ingest.chakra_files import sorted_rows
from tests.ingest.test_host_traces import GROUPS, OPERATORS, comm_of, host, kineto
from tests.wording import Wording

BASE_US = 1_694_128_201_428_006
"""As Kineto of before 2.2 counts: µs since 1970."""
KERNELS = (
    # The operator that launches it, its start and duration in µs, stream, category, name.
    (1, 17, 10, 7, "kernel", "gemm"),
    (3, 117, 10.5, 22, "kernel", "ncclDevKernel_Generic_1(x)"),
    (4, 207, 10, 7, "kernel", "gemm"),
    (4, 218, 2, 7, "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)"),
)


def linked(path: Path, schema: str, *, timed: bool = True, kernels: Any = KERNELS) -> Path:
    """The host trace of `test_host_traces` linked with kernels."""
    document = json.loads(host(path.with_suffix(".tmp"), schema).read_bytes())
    path.with_suffix(".tmp").unlink()
    nodes = sorted(document["nodes"], key=lambda each: each["id"])
    number = {each["id"]: place for place, each in enumerate(nodes, 2)}
    for each in nodes:
        for key in ("id", "parent", "ctrl_deps"):
            if each.get(key) in number:
                each[key] = number[each[key]]
    operators = [each for each in nodes if "init" not in each["name"]]
    added = []
    for owner, start, lasts, stream, category, name in kernels:
        own = operators[owner]
        times = {"inclusive_dur": lasts, "exclusive_dur": lasts, "ts": BASE_US + start}
        more = {"cat": category, "name": name, "ph": "X", "stream": stream, **times}
        ids = {"id": len(nodes) + len(added) + 2, "ctrl_deps": own["id"]}
        added.append(json.loads(json.dumps(own)) | ids | more)
    for each, (_, start, lasts, *_) in zip(operators, OPERATORS, strict=True):
        if timed:
            each |= {"inclusive_dur": lasts, "exclusive_dur": 0, "ts": BASE_US + start}
            each["inter_thread_dep"] = None
    document["nodes"] = nodes + added
    text = json.dumps(document, indent=4).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def rows(run: Run) -> list[tuple[int, int, int, str, str]]:
    table = run.table
    order = np.argsort(table.start_ns).tolist()
    return [
        (
            int(table.start_ns[row]) - BASE_US * 1000,
            int(table.duration_ns[row]),
            int(table.stream[row]),
            table.names[int(table.kernel[row])],
            table.text_of("operation", int(table.operation[row])),
        )
        for row in order
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("schema", SCHEMAS[1:])
def test_a_linked_trace_is_a_run(schema: str, tmp_path: Path) -> None:
    path = linked(tmp_path / "linked.3.json", schema, timed=schema > "1.0.2")
    assert family_of(path) is Family.TRACE
    run = open_run(str(path), jobs=1)
    assert rows(run) == [
        (17_000, 10_000, 7, "gemm", "aten::mm"),
        (117_000, 10_500, 22, "ncclDevKernel_Generic_1(x)", "all_gather"),
        (207_000, 10_000, 7, "gemm", "aten::mm"),
        (218_000, 2_000, 7, "Memcpy DtoH (Device -> Pinned)", "aten::mm"),
    ]
    kinds = [Kind(int(kind)) for kind in run.table.kind[np.argsort(run.table.start_ns)]]
    assert kinds == [Kind.COMPUTE, Kind.COMM, Kind.COMPUTE, Kind.COPY]
    # The larger side of the all-gather: 512 elements of 2 bytes.
    name, size, group = comm_of(run)
    assert (name, size) == ("all_gather", 1024)
    assert (group == "") == (schema < "1.0.3") and run.marks == ()
    assert run.gpus[0].rank == 3 and not run.sources[0].losses
    # Its dependencies are those of the times, so that steps can be replayed.
    export(run, "chakra", tmp_path / "out")
    assert sorted_rows(open_run(str(tmp_path / "out"), jobs=1))["kernel"]


def test_groups_of_the_kernel_come_first(tmp_path: Path) -> None:
    path = linked(tmp_path / "linked.0.json", SCHEMAS[-1])
    document = json.loads(path.read_bytes())
    for node in document["nodes"]:
        if node["name"].startswith("ncclDevKernel"):
            node["pg_name"] = GROUPS[0]["pg_name"]
    path.write_text(json.dumps(document))
    assert comm_of(open_run(str(path), jobs=1))[2].startswith(GROUPS[0]["pg_name"])


def test_ranks_in_a_folder_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        linked(tmp_path / f"linked.{rank}.json.gz", SCHEMAS[1], timed=False)
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.rank for gpu in run.gpus] == [0, 1, 2] and len(run.table) == 3 * len(KERNELS)


def test_next_to_its_parts_the_pair_is_read(tmp_path: Path) -> None:
    """As upstream's script leaves them: host, device and linked traces in one folder."""
    kineto(tmp_path / "kineto_0.json", ids=True)
    host(tmp_path / "host_0.json", SCHEMAS[-1])
    alone = open_run(str(tmp_path), jobs=1)
    linked(tmp_path / "linked.0.json", SCHEMAS[-1])
    run = open_run(str(tmp_path), jobs=1)
    joins = [[note for note in each.sources[0].notes if "joined by" in note]
             for each in (alone, run)]  # fmt: skip
    assert joins[0] == joins[1] and len(joins[0]) == 1
    assert sorted_rows(run) == sorted_rows(alone)
    ((_, why),) = [each for each in run.skipped if each[0].endswith("linked.0.json")]
    assert "open it alone" in why


def test_activities_without_times_are_counted(tmp_path: Path, wording: Wording) -> None:
    path = linked(tmp_path / "linked.0.json", SCHEMAS[-1])
    text = path.read_text().replace(f'"ts": {BASE_US + 117}', '"ts": null')
    path.write_text(text)
    run = open_run(str(path), jobs=1)
    assert len(run.table) == len(KERNELS) - 1
    (note,) = run.sources[0].losses
    wording(note, "1 GPU node")


def test_damage_is_a_sentence(tmp_path: Path) -> None:
    path = linked(tmp_path / "linked.0.json", SCHEMAS[-1])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"linked\.0\.json can't be read"):
        open_run(str(path), jobs=1)
    path.write_bytes(whole.replace(b'"ctrl_deps": 4', b'"ctrl_deps": -4'))
    with pytest.raises(DataError, match="a number that is no id"):
        open_run(str(path), jobs=1)
    # A linker that found no kernel leaves a host trace.
    linked(path, SCHEMAS[-1], kernels=())
    with pytest.raises(DataError, match="give the Kineto trace"):
        open_run(str(path), jobs=1)
