"""Large files of counters, as profilers write them: dispatches of which the counters are known.

The value of counter `c` of dispatch `d` is `100 * d + c`, over all instances together.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tests.sources.counters.counter_writers import MINIMAL_SCHEMA

COUNTERS = ("SQ_WAVES", "SQ_INSTS_VALU", "SQ_INSTS_MFMA", "GRBM_GUI_ACTIVE")
KERNELS = (
    "Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
INSTANCES = 8
"""Of each counter in a database or JSON: what the shader engines counted, one by one."""
_SUFFIX = "_0198c1f2"
_GUID = "0198c1f2-7a5e-7c11-9d6b-2f1f6d6a9e01"


def value_of(dispatch: int, counter: int) -> int:
    """What a counter says of a dispatch, numbered from 0 both."""
    return 100 * dispatch + counter


def _parts(dispatch: int, counter: int) -> list[int]:
    whole = value_of(dispatch, counter)
    return [whole - (INSTANCES - 1)] + [1] * (INSTANCES - 1)


def write_counter_csv(path: Path, dispatches: int) -> None:
    """A counter_collection file of rocprofv3: a row for each counter of each dispatch."""
    with path.open("w", encoding="utf-8") as file:
        file.write(
            '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id",'
            '"Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size",'
            '"Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name",'
            '"Counter_Value","Start_Timestamp","End_Timestamp"\n'
        )
        for number in range(dispatches):
            name, start = KERNELS[number % len(KERNELS)], 63_857_982_592_000 + 10_000 * number
            head = (
                f'{number + 1},{number + 1},"Agent 4",1,908,908,262144,{number % 9 + 1},"{name}",'
                "256,0,0,128,128,96,"
            )
            for counter, title in enumerate(COUNTERS):
                value = value_of(number, counter)
                file.write(f'{head}"{title}",{value}.000000,{start},{start + 5_000}\n')


def write_counter_json(path: Path, dispatches: int) -> None:
    """A results file of rocprofv3: each counter in its instances, calls of the runtime beside."""
    head = {
        "metadata": {"pid": 908},
        "agents": [{"id": {"handle": 7}, "type": 2, "node_id": 4, "name": "gfx942"}],
        "counters": [
            {"id": {"handle": number}, "name": name, "description": ""}
            for number, name in enumerate(COUNTERS)
        ],
        "strings": {"buffer_records": []},
        "kernel_symbols": [
            {"kernel_id": number, "kernel_name": name, "formatted_kernel_name": name}
            for number, name in enumerate(KERNELS)
        ],
    }
    with path.open("w", encoding="utf-8") as file:
        file.write('{"rocprofiler-sdk-tool":[' + json.dumps(head)[:-1])
        file.write(',"callback_records":{"counter_collection":[')
        for number in range(dispatches):
            record = {
                "thread_id": 908,
                "dispatch_data": _dispatch(number),
                "records": [
                    {"counter_id": {"handle": counter}, "value": float(part)}
                    for counter in range(len(COUNTERS))
                    for part in _parts(number, counter)
                ],
            }
            file.write(("," if number else "") + json.dumps(record, separators=(",", ":")))
        file.write(']},"buffer_records":{"hip_api":[')
        for number in range(dispatches):
            call = {
                "size": 96, "kind": 3, "operation": 20, "thread_id": 908,
                "correlation_id": {"internal": number + 1, "external": 0},
                "start_timestamp": 10_000 * number, "end_timestamp": 10_000 * number + 900,
            }  # fmt: skip
            file.write(("," if number else "") + json.dumps(call, separators=(",", ":")))
        file.write("]}}]}")


def _dispatch(number: int) -> dict[str, object]:
    start = 63_857_982_592_000 + 10_000 * number
    return {
        "size": 184, "kind": 11, "operation": 2, "thread_id": 908,
        "correlation_id": {"internal": number + 1, "external": 0},
        "start_timestamp": start, "end_timestamp": start + 5_000,
        "dispatch_info": {
            "size": 72, "agent_id": {"handle": 7}, "queue_id": {"handle": 16},
            "kernel_id": number % len(KERNELS), "dispatch_id": number + 1,
            "private_segment_size": 0, "group_segment_size": 0,
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "grid_size": {"x": 262_144, "y": 1, "z": 1},
        },
    }  # fmt: skip


def write_rocpd(path: Path, dispatches: int, calls: int = 4) -> None:
    """A database of rocprofv3: each counter in its instances, `calls` of the runtime to a dispatch.

    One of the calls is the launch, which has the dispatch's stack id.
    """
    schema = MINIMAL_SCHEMA.replace("{u}", _SUFFIX)
    with sqlite3.connect(path) as connection:
        connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {schema}")

        def fill(table: str, rows: Iterator[tuple[object, ...]], width: int) -> None:
            marks = ", ".join("?" * width)
            connection.executemany(f'INSERT INTO "rocpd_{table}{_SUFFIX}" VALUES ({marks})', rows)

        texts = ("KERNEL_DISPATCH", "HIP_RUNTIME_API_EXT", "hipLaunchKernel", "hipSetDevice")
        fill("string", ((n, _GUID, text) for n, text in enumerate(texts, 1)), 3)
        fill("info_process", iter([(1, _GUID, 1, 908)]), 4)
        fill("info_thread", iter([(1, _GUID, 1, 1, 908)]), 5)
        agent = (1, _GUID, 1, 1, "GPU", 4, 4, 0, "gfx942", "MI300X", "{}")
        fill("info_agent", iter([agent]), 11)
        symbols = ((n, _GUID, 1, 1, 1, name, name) for n, name in enumerate(KERNELS, 1))
        fill("info_kernel_symbol", symbols, 7)
        titles = enumerate(COUNTERS, 1)
        fill("info_pmc", ((n, _GUID, 1, 1, 1, name, "", "", "") for n, name in titles), 9)
        fill("event", _events(dispatches, calls), 7)
        fill("region", _regions(dispatches, calls), 9)
        fill("kernel_dispatch", map(_database_dispatch, range(dispatches)), 20)
        fill("pmc_event", _pmc_events(dispatches), 5)
    connection.close()


def _events(dispatches: int, calls: int) -> Iterator[tuple[object, ...]]:
    for number in range(dispatches):
        yield number + 1, _GUID, 1, number + 1, 0, 0, "{}"
    for number in range(dispatches * calls):
        own, call = divmod(number, calls)
        stack = own + 1 if call == 0 else dispatches + number + 1
        yield dispatches + number + 1, _GUID, 2, stack, 0, 0, "{}"


def _regions(dispatches: int, calls: int) -> Iterator[tuple[object, ...]]:
    for number in range(dispatches * calls):
        start, name = 1_000 * number, 3 if number % calls == 0 else 4
        yield number + 1, _GUID, 1, 1, 1, start, start + 900, name, dispatches + number + 1


def _database_dispatch(number: int) -> tuple[object, ...]:
    start = 63_857_982_592_000 + 10_000 * number
    kernel, event = number % len(KERNELS) + 1, number + 1
    return (
        number + 1, _GUID, 1, 1, 1, 1, kernel, number + 1, 1, 1, start, start + 5_000,
        256, 1, 1, 262_144, 1, 1, 1, event,
    )  # fmt: skip


def _pmc_events(dispatches: int) -> Iterator[tuple[object, ...]]:
    row = 0
    for number in range(dispatches):
        for counter in range(len(COUNTERS)):
            for part in _parts(number, counter):
                row += 1
                yield row, _GUID, number + 1, counter + 1, float(part)
