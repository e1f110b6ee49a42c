"""Writes the counter run as rocprofv3 lays out its CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from generator import constants as c
from generator.kineto import BASE_NS, FIRST_NODE, RUN_START_NS
from generator.serialised import Dispatch, Profile

FOLDER = "counters"
HOST = "generated-node"
HEADER = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size",'
    '"Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count",'
    '"Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp",'
    '"End_Timestamp"\n'
)
WAVE_SIZE = 64
# In this pass names come without the suffixes of kernel descriptors.
BARE_NAMES_PASS = 2
# How the bytes split into requests of 128, 64 and 32
BUBBLE_SHARE = 0.85
READ_32B_SHARE = 0.002
WRITE_64B_SHARE = 0.985

MFMA_REGISTERS = (65_536, 0, 256, 256, 112)
OTHER_REGISTERS = (0, 0, 32, 0, 32)


def counters_path(profile: Profile) -> str:
    """Where a pass of one process lies."""
    return f"{_folder(profile.number)}/{profile.process}_counter_collection.csv.gz"


def counters_csv(profile: Profile) -> str:
    """The whole counter file of one process."""
    return HEADER + "".join(_rows(profile))


def agents_path(profile: Profile) -> str:
    """Where the description of the devices lies."""
    return f"{_folder(profile.number)}/{profile.process}_agent_info.csv"


def clock_offset() -> dict[str, str | int]:
    """What to add to the stamps of the counter files."""
    offset_ns = BASE_NS + RUN_START_NS - c.BOOTTIME_ORIGIN_NS
    return {"clock": "boottime", "offset_ns": offset_ns}


def _folder(number: int) -> str:
    return f"{FOLDER}/pass_{number}/{HOST}"


def _rows(profile: Profile) -> Iterator[str]:
    kernel_ids: dict[str, int] = {}
    node = FIRST_NODE + profile.rank
    for dispatch in profile.dispatches:
        kernel = dispatch.kernel
        name = kernel.name if profile.number == BARE_NAMES_PASS else _descriptor(kernel.name)
        kernel_id = kernel_ids.setdefault(name, len(kernel_ids) + 11 + profile.number)
        registers = MFMA_REGISTERS if kernel.flops else OTHER_REGISTERS
        numbers = ",".join(map(str, registers))
        head = (
            f'{dispatch.number},{dispatch.number},"Agent {node}",{dispatch.stream + 1},'
            f"{profile.process},{profile.process},{kernel.grid * kernel.block},{kernel_id},"
            f'"{name}",{kernel.block},{numbers}'
        )
        for counter in profile.counters:
            value = COUNTERS[counter](dispatch)
            yield f'{head},"{counter}",{value}.000000,{dispatch.start_ns},{dispatch.end_ns}\n'


def _descriptor(name: str) -> str:
    """A name with the suffix of its kernel descriptor, as demangling leaves it."""
    return f"{name} [clone .kd]" if name.endswith(")") else f"{name}.kd"


def _waves(dispatch: Dispatch) -> int:
    return dispatch.kernel.grid * -(-dispatch.kernel.block // WAVE_SIZE)


def _busy_cycles(dispatch: Dispatch) -> int:
    """Shader engines are idle for a moment at both ends of a kernel."""
    return c.SHADER_ENGINES * max(1, dispatch.cycles - 900)


def _reads_128b(dispatch: Dispatch) -> int:
    return round(dispatch.kernel.read_bytes * BUBBLE_SHARE / 128)


def _reads_32b(dispatch: Dispatch) -> int:
    return round(dispatch.kernel.read_bytes * READ_32B_SHARE / 32)


def _reads(dispatch: Dispatch) -> int:
    share = 1 - BUBBLE_SHARE - READ_32B_SHARE
    middle = round(dispatch.kernel.read_bytes * share / 64)
    return _reads_128b(dispatch) + middle + _reads_32b(dispatch)


def _writes_64b(dispatch: Dispatch) -> int:
    return round(dispatch.kernel.written_bytes * WRITE_64B_SHARE / 64)


def _writes(dispatch: Dispatch) -> int:
    small = round(dispatch.kernel.written_bytes * (1 - WRITE_64B_SHARE) / 32)
    return _writes_64b(dispatch) + small


COUNTERS: dict[str, Callable[[Dispatch], int]] = {
    "GRBM_GUI_ACTIVE": lambda dispatch: c.XCDS * dispatch.cycles,
    "SQ_BUSY_CYCLES": _busy_cycles,
    "SQ_WAVES": _waves,
    "SQ_VALU_MFMA_BUSY_CYCLES": lambda dispatch: dispatch.kernel.mfma_busy_cycles,
    "SQ_INSTS_VALU_MFMA_MOPS_BF16": lambda dispatch: dispatch.kernel.executed_flops // 512,
    "TCC_EA0_RDREQ_sum": _reads,
    "TCC_EA0_WRREQ_sum": _writes,
    "TCC_EA0_RDREQ_32B_sum": _reads_32b,
    "TCC_BUBBLE_sum": _reads_128b,
    "TCC_EA0_WRREQ_64B_sum": _writes_64b,
}
