"""CSV of every version: columns by header, odd names and numbers, agents, regions."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.hardware import DERIVED, SUM, counter_info
from chopper_core.model.table import Category
from chopper_core.sources.counters.pmc_csv import read as read_pmc_csv
from chopper_core.sources.counters.rocprofv3_csv import read_processes
from chopper_core.sources.kernel_names import clean_kernel_name
from chopper_core.tables.column import TableColumn
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import KERNELS, counter_rows, write_csv
from tests.wording import Wording

VALUES = {"SQ_WAVES": [1.0, 2.0, 3.0], "GRBM_COUNT": [10.0, 0.0, 30.0]}
DROPPED = {
    "6.2": {"Kernel_Id", "Start_Timestamp", "End_Timestamp"},
    "6.3": set(),
    "least": {
        "Correlation_Id", "Queue_Id", "Process_Id", "Thread_Id", "Grid_Size", "Kernel_Id",
        "Workgroup_Size", "Start_Timestamp", "End_Timestamp", "Agent_Id",
    },
    "by correlation": {"Dispatch_Id"},
}  # fmt: skip


@pytest.mark.parametrize("version", DROPPED)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
@pytest.mark.parametrize("guid", [False, True])
def test_columns_are_found_by_header(tmp_path: Path, version: str, case: type, guid: bool) -> None:
    columns, rows = counter_rows(KERNELS, VALUES)
    kept = [index for index, name in enumerate(columns) if name not in DROPPED[version]]
    columns = [case(columns[index]) for index in kept]
    rows = [[row[index] for index in kept] for row in rows]
    if guid:
        columns, rows = ["Guid", *columns], [["0198-77", *row] for row in rows]
    path = write_csv(tmp_path / "1_counter_collection.csv", columns, rows)
    (run,) = read_processes(counters=path)
    assert [run.names[code] for code in run.dispatches.name] == [
        "gemm",
        "void add<float, 4>(float*, int)",
        'odd "name", with',
    ]
    for name, values in VALUES.items():
        assert run.dispatches.counters[name].tolist() == values
    has_times = "Start_Timestamp" not in DROPPED[version]
    assert run.dispatches.end_ns.tolist() == ([505, 1505, 2505] if has_times else [-1, -1, -1])
    assert not run.losses.notes


@pytest.mark.parametrize(
    ("written", "node", "type_index"),
    [(4, 4, 0), ("Agent 4", 4, 0), ("agent-5", 5, 1), ("GPU-1", 5, 1), ("GPU 0", 4, 0)],
)
def test_agents(tmp_path: Path, written: str | int, node: int, type_index: int) -> None:
    agents = write_csv(
        tmp_path / "1_agent_info.csv",
        ["Node_Id", "Logical_Node_Id", "Agent_Type", "Cu_Count", "Simd_Per_Cu", "Num_Xcc",
         "Max_Engine_Clk_Fcompute", "Name", "Product_Name"],
        [[0, 0, "CPU", 128, 0, 1, 0, "EPYC", "EPYC"], [5, 2, "GPU", 304, 4, 8, 2100, "gfx942", "M"],
         [4, 1, "GPU", 304, 4, 8, 2100, "gfx942", "M"]],
    )  # fmt: skip
    columns, rows = counter_rows(KERNELS, VALUES, Agent_Id=written)
    path = write_csv(tmp_path / "1_counter_collection.csv", columns, rows)
    (run,) = read_processes(counters=path, agent_info=agents)
    (gpu,) = set(run.dispatches.gpu.tolist())
    agent = run.agents[gpu]
    assert (agent.node_id, agent.type_index, agent.xccs) == (node, type_index, 8)
    assert len(run.agents) == 2


def test_kernel_trace_of_the_same_process(tmp_path: Path, wording: Wording) -> None:
    columns, rows = counter_rows(KERNELS, VALUES)
    counters = write_csv(tmp_path / "1_counter_collection.csv", columns, rows[2:4])
    trace = write_csv(
        tmp_path / "1_kernel_trace.csv",
        ["Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
         "Correlation_Id", "Start_Timestamp", "End_Timestamp", "Workgroup_Size_X",
         "Workgroup_Size_Y", "Workgroup_Size_Z", "Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"],
        [["KERNEL_DISPATCH", "Agent 4", 1, 78, number, 9, name, number, 1000 * number,
          1000 * number + 50, 64, 1, 1, 128, 2, 1] for number, name in enumerate(KERNELS, 1)],
    )  # fmt: skip
    markers = write_csv(
        tmp_path / "1_marker_api_trace.csv",
        ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
         "End_Timestamp"],
        [["MARKER_CORE_API", "step", 77, 78, 0, 100, 9000],
         ["MARKER_CORE_API", "layer 3", 77, 78, 0, 150, 300],
         ["MARKER_CORE_API", "other thread", 77, 99, 0, 100, 9000],
         ["MARKER_CORE_API", "a mark", 77, 78, 0, 210, 210]],
    )  # fmt: skip
    calls = write_csv(
        tmp_path / "1_hip_api_trace.csv",
        ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
         "End_Timestamp"],
        [["HIP_RUNTIME_API", "hipLaunchKernel", 77, 78, 1, 50, 60],
         ["HIP_RUNTIME_API", "hipLaunchKernel", 77, 78, 2, 220, 230],
         ["HIP_RUNTIME_API", "hipLaunchKernel", 77, 78, 3, 400, 410]],
    )  # fmt: skip
    (run,) = read_processes(counters=counters, kernel_trace=trace, api_traces=(markers, calls))
    rows_there = run.dispatches
    assert len(rows_there) == 3 and run.passes == 1
    first, second = run.join_notes
    wording(first, "kind, kernel_id")
    wording(second, ": kernel_id")
    assert rows_there.grid.tolist() == [[128, 2, 1]] * 3
    assert rows_there.start_ns.tolist() == [1000, 2000, 3000]
    assert set(rows_there.process.tolist()) == {77}
    regions = [run.names[code] if code >= 0 else None for code in rows_there.region]
    assert regions == [None, "layer 3", "step"]
    assert np.array_equal(rows_there.counters["SQ_WAVES"], [np.nan, 2, np.nan], equal_nan=True)
    (run,) = read_processes(kernel_trace=trace, api_traces=(markers,))
    regions = [run.names[code] for code in run.dispatches.region]
    assert regions == ["step"] * 3
    wording(run.join_notes[0], "on the GPU")


@pytest.mark.parametrize("named", ["ProfilerStep#{}", "step {}"])
@pytest.mark.parametrize(
    ("inner", "operation"),
    [
        ("head", "head"),
        ("aten::mm, seq = 1{0}, op_id = 2{0}, sizes = [[8], [8]]", "aten::mm"),
    ],
)
def test_ranges_of_steps_are_steps_and_others_are_operations(
    inner: str, operation: str, named: str, tmp_path: Path
) -> None:
    """Two kernels of each step, of which the second is launched in a range within the step; they
    run when the host is in the next one."""
    calls, kernels, ranges = [], [], []
    for step in (3, 4, 5):
        at = 100_000 * step
        ranges += [
            [named.format(step), at, at + 99_000],
            [inner.format(step), at + 50_000, at + 60_000],
        ]
        for place in (1, 2):
            number = 10 * step + place
            launch = at + 25_000 * place
            calls.append([number, launch, launch + 5_000])
            start = launch + 110_000
            kernels.append([number, f"kernel_{place}", number, start, start + 9_000])
    write_csv(
        tmp_path / "1_kernel_trace.csv",
        ["Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Name",
         "Correlation_Id", "Start_Timestamp", "End_Timestamp"],
        [["KERNEL_DISPATCH", "Agent 4", 1, 78, *row] for row in kernels],
    )  # fmt: skip
    header = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
              "End_Timestamp"]  # fmt: skip
    write_csv(
        tmp_path / "1_hip_api_trace.csv",
        header,
        [["HIP_RUNTIME_API", "hipLaunchKernel", 77, 78, *row] for row in calls],
    )
    write_csv(
        tmp_path / "1_marker_api_trace.csv",
        header,
        [["MARKER_CORE_RANGE_API", name, 77, 78, 0, *times] for name, *times in ranges],
    )
    table = open_run(str(tmp_path), jobs=1).table
    of = {
        (int(table.iteration[row]), table.names[table.kernel[row]]): (
            table.operations[table.operation[row]]
        )
        for row in np.flatnonzero(table.category == Category.KERNEL).tolist()
    }
    assert of.keys() == {(step, f"kernel_{place}") for step in (3, 4, 5) for place in (1, 2)}
    assert {name for (_, kernel), name in of.items() if kernel == "kernel_2"} == {operation}
    assert not {name for name in of.values() if "tep" in name}


def test_rocprof_v1_and_v2(tmp_path: Path) -> None:
    v1 = tmp_path / "results.csv"
    v1.write_text(
        "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,"
        "accum_vgpr,sgpr,wave_size,sig,obj,SQ_WAVES,TCC_HIT[3],DispatchNs,BeginNs,EndNs,"
        "CompleteNs\n"
        '0,"add(int, int) [clone .kd]",1,0,0,5,6,256,64,0,0,4,4,16,64,0x0,0x7f,4,9,1,2,3,4\n'
        '1,"add(int, int) [clone .kd]",1,0,1,5,6,256,64,0,0,4,4,16,64,0x0,0x7f,8,7,5,6,7,8\n'
    )
    (run,) = read_pmc_csv(v1)
    assert run.format == "rocprof v1 CSV" and run.names == ["add(int, int)"]
    assert list(run.dispatches.counters) == ["SQ_WAVES", "TCC_HIT[3]"]
    assert run.dispatches.counters["SQ_WAVES"].tolist() == [4, 8]
    assert run.dispatches.start_ns.tolist() == [2, 6]
    v2 = tmp_path / "results_1.csv"
    v2.write_text(
        "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
        "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,"
        "End_Timestamp,Correlation_ID,GRBM_COUNT\n"
        '3,2,1,5,6,256,64,0,0,4,4,16,64,"gemm.kd",10,20,7,1.5e3\n'
    )
    (run,) = read_pmc_csv(v2)
    assert run.format == "rocprof v2 CSV" and run.names == ["gemm"]
    assert run.dispatches.counters["GRBM_COUNT"].tolist() == [1500]


def test_long_names_and_gzip(tmp_path: Path) -> None:
    name = 'void k<"a", \x0b\u2028[b]>(int, ' + "x" * 6000 + ")"
    columns, rows = counter_rows([name, "gemm"], {"SQ_WAVES": [1, 2]})
    plain = write_csv(tmp_path / "1_counter_collection.csv", columns, rows)
    packed = tmp_path / "2_counter_collection.csv"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        (run,) = read_processes(counters=path)
        assert run.names == [name, "gemm"] and not run.losses.notes


@pytest.mark.parametrize(
    ("written", "clean"),
    [
        ("gemm.kd", "gemm"),
        ("f(int) [clone .kd]", "f(int)"),
        ("f(int) (.kd)", "f(int)"),
        ("f(int) [clone .isra.0] [clone .kd]", "f(int)"),
        ("f(int) [clone .part.1]", "f(int)"),
        ("a.kdb", "a.kdb"),
        ("operator[](int)", "operator[](int)"),
    ],
)
def test_kernel_names(written: str, clean: str) -> None:
    assert clean_kernel_name(written) == clean


def test_numbers() -> None:
    texts = ["66345.000000", "0x10", "", "7.5", "1e3", "9" * 30, " 12 ", "nan", "-4"]
    assert TableColumn.of(texts).integers().tolist() == [66345, 16, -1, -1, 1000, -1, 12, -1, -1]
    times = ["13386742234691895.0", "8.1097E+14", "12", "-4", "", "8.0e-1", " 7.75", "1.2.3"]
    assert TableColumn.of(times).times_ns().tolist() == [
        13386742234691895,
        -1,
        12,
        -1,
        -1,
        -1,
        8,
        -1,
    ]
    assert TableColumn.of(["1248227792617386.5"]).times_ns().tolist() == [1248227792617386]


def test_counters_described_by_their_names() -> None:
    found = {
        name: counter_info(name).aggregation
        for name in ("SQ_WAVES", "TCC_HIT_sum", "TA_BUSY_max", "L2CacheHit", "FETCH_SIZE")
    }
    assert found == {
        "SQ_WAVES": SUM,
        "TCC_HIT_sum": SUM,
        "TA_BUSY_max": "maximum over instances",
        "L2CacheHit": DERIVED,
        "FETCH_SIZE": DERIVED,
    }
    assert counter_info("TCC_HIT[7]").aggregation == "one instance"
    assert counter_info("FETCH_SIZE").unit == "KB" and counter_info("L2CacheHit").unit == "%"


@pytest.mark.parametrize("named", ["{}", "Agent {}"])
def test_calls_of_hip_and_copies_are_in_the_run(tmp_path: Path, named: str) -> None:
    """Without roctx ranges too: a launch of each of two kernels, a copy to the GPU, one from it,
    and one from the host to itself, which is of no GPU. Agent 0 is the host's."""
    write_csv(
        tmp_path / "1_kernel_trace.csv",
        ["Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Name",
         "Correlation_Id", "Start_Timestamp", "End_Timestamp"],
        [["KERNEL_DISPATCH", named.format(2), 1, 7, number, "gemm", number, 1000 * number,
          1000 * number + 400] for number in (1, 2)],
    )  # fmt: skip
    write_csv(
        tmp_path / "1_hip_api_trace.csv",
        ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
         "End_Timestamp"],
        [["HIP_RUNTIME_API", "hipLaunchKernel" if number < 3 else "hipMemcpyAsync", 77, 7, number,
          100 * number, 100 * number + 9] for number in (1, 2, 3, 4, 5)],
    )  # fmt: skip
    write_csv(
        tmp_path / "1_memory_copy_trace.csv",
        ["Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id",
         "Start_Timestamp", "End_Timestamp"],
        [["MEMORY_COPY", f"MEMORY_COPY_{direction}", *map(named.format, ends), number,
          2000 + 1000 * number, 2060 + 1000 * number]
         for number, direction, ends in ((3, "HOST_TO_DEVICE", (0, 2)),
                                         (4, "DEVICE_TO_HOST", (2, 0)),
                                         (5, "HOST_TO_HOST", (0, 0)))],
    )  # fmt: skip
    run = open_run(str(tmp_path), jobs=1)
    table = run.table
    rows = sorted(
        zip(
            table.start_ns.tolist(), table.duration_ns.tolist(), table.launch_ns.tolist(),
            [table.names[code] for code in table.kernel], strict=True,
        )
    )  # fmt: skip
    assert rows == [
        (1000, 400, 100, "gemm"),
        (2000, 400, 200, "gemm"),
        (5000, 60, 300, "Memcpy HtoD (Host -> Device)"),
        (6000, 60, 400, "Memcpy DtoH (Device -> Host)"),
    ]
    assert [gpu.device for gpu in run.gpus] == [2]
    assert run.sources[0].events == {"dispatch": 2, "copy": 2, "call": 5}
    assert int(table.exposed_copy_ns.sum()) == 120


def test_rows_of_several_processes_in_converted_files(tmp_path: Path) -> None:
    """`rocpd convert` writes the processes of several databases into one file of each kind: ids are
    those of a process, and each has a GPU, three calls and steps of its own, half a step apart."""
    kernels, calls, ranges, agents, expected = [], [], [], [], []
    for rank, node in enumerate((2, 3)):
        guid = f"0198-{9 - rank}"
        agents += [[guid, 0, "CPU"], [guid, 2, "GPU"], [guid, 3, "GPU"]]
        for step in (3, 4, 5):
            at = 100_000 * step + 50_000 * rank
            ranges.append(
                [guid, "MARKER_CORE_RANGE_API", f"step {step}", 70, 7, 0, at, at + 99_000]
            )
            calls.append(
                [guid, "HIP_RUNTIME_API", "hipLaunchKernel", 70, 7, step, at + 90_000, at + 92_000]
            )
            kernels.append([guid, "KERNEL_DISPATCH", f"Agent {node}", 1, 7, step, "gemm", step,
                            at + 95_000, at + 140_000])  # fmt: skip
            expected.append((rank, node, step, at + 90_000))
    head = ["Guid", "Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id",
            "Start_Timestamp", "End_Timestamp"]  # fmt: skip
    write_csv(tmp_path / "out_hip_api_trace.csv", head, calls)
    write_csv(tmp_path / "out_marker_api_trace.csv", head, ranges)
    write_csv(tmp_path / "out_agent_info.csv", ["Guid", "Node_Id", "Agent_Type"], agents)
    write_csv(
        tmp_path / "out_kernel_trace.csv",
        ["Guid", "Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Name",
         "Correlation_Id", "Start_Timestamp", "End_Timestamp"],
        kernels,
    )  # fmt: skip
    run = open_run(str(tmp_path), jobs=1)
    table = run.table
    rows = np.flatnonzero(table.category == Category.KERNEL)
    gpus = [run.gpus[gpu] for gpu in table.gpu[rows]]
    found = zip(
        [gpu.rank for gpu in gpus], [gpu.device for gpu in gpus],
        table.iteration[rows].tolist(), table.launch_ns[rows].tolist(), strict=True,
    )  # fmt: skip
    assert sorted(found) == expected
    assert not run.doubts


def test_more_processes_than_any_node_has_are_refused(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "out_kernel_trace.csv",
        ["Guid", "Kind", "Agent_Id", "Kernel_Name", "Start_Timestamp", "End_Timestamp"],
        [[number, "KERNEL_DISPATCH", 2, "gemm", 1, 2] for number in range(1_001)],
    )
    with pytest.raises(DataError, match="over 1,000 processes"):
        read_processes(kernel_trace=path)
