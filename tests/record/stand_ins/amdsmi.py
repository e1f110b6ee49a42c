"""A stand-in for AMD's amdsmi: an order of GPUs unlike HIP's, N/A, maxima, repeats, errors."""

import os
import time
from enum import IntEnum

from load import (
    BUSY_MHZ,
    BUSY_W,
    IDLE_MHZ,
    IDLE_W,
    SETTINGS,
    is_busy,
    pci,
    refreshed_ns,
    scripted,
)

__version__ = "7.0.2"


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | AMDSMI_STATUS"


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


NOT_SUPPORTED, NO_PERM, BUSY = 2, 10, 30


class Handle:
    def __init__(self, gpu):
        self.gpu = gpu


def amdsmi_init(flag=AmdSmiInitFlags.INIT_AMD_GPUS):
    if SETTINGS["denied"]:
        raise AmdSmiLibraryException(NO_PERM)


def amdsmi_shut_down():
    pass


def amdsmi_get_processor_handles():
    return [Handle(gpu) for gpu in reversed(range(SETTINGS["gpus"]))]


def amdsmi_get_gpu_device_bdf(handle):
    return pci(handle.gpu)


def amdsmi_get_gpu_device_uuid(handle):
    return f"ff{handle.gpu:02x}74a1-0000-1000-80aa-000000000000"


def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": "AMD Instinct MI300X"}


def amdsmi_get_gpu_kfd_info(handle):
    return {"kfd_id": 1000 + handle.gpu, "node_id": 2 + handle.gpu, "current_partition_id": 0}


def amdsmi_get_gpu_driver_info(handle):
    return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}


def amdsmi_get_power_cap_info(handle):
    return {"power_cap": 750_000_000, "default_power_cap": 750_000_000}


def amdsmi_get_gpu_vram_usage(handle):
    if handle.gpu == 1:
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return {"vram_total": 196592, "vram_used": 1024}


def amdsmi_get_gpu_fan_speed(handle, sensor):
    if handle.gpu == 1:
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return 51


def amdsmi_get_gpu_fan_speed_max(handle, sensor):
    return 255


def amdsmi_get_gpu_process_list(handle):
    if handle.gpu == 1:
        return []
    memory = {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 18 << 30}
    return [{"name": "python", "pid": os.getpid(), "mem": 1, "memory_usage": memory}]


def amdsmi_get_violation_status(handle):
    raise AssertionError("sleeps 100 ms: not for a loop")


def amdsmi_get_gpu_metrics_info(handle):
    if handle.gpu in SETTINGS["broken"]:
        raise AmdSmiLibraryException(BUSY)
    time.sleep(0.0005)
    taken = refreshed_ns()
    busy = is_busy(taken)
    mhz = BUSY_MHZ if busy else IDLE_MHZ
    own = {}
    if values := scripted(SETTINGS["gpus"] - 1 - handle.gpu):
        clock, use, power, heat = values
        own = {"average_gfx_activity": use, "current_socket_power": power,
               "temperature_hotspot": heat, "current_gfxclks": [clock] * 8}  # fmt: skip
    found = {
        "temperature_edge": "N/A",
        "temperature_hotspot": 60 + 5 * handle.gpu,
        "temperature_mem": 0xFFFF,
        "average_gfx_activity": 100 if busy else 0,
        "average_umc_activity": 40 if busy else 0,
        "average_socket_power": "N/A",
        "current_socket_power": BUSY_W if busy else IDLE_W,
        "energy_accumulator": taken // 10_000_000 * 65536,
        "system_clock_counter": taken,
        "firmware_timestamp": taken // 10,
        "current_gfxclk": "N/A",
        "current_gfxclks": [mhz + number for number in range(6)] + ["N/A", "N/A"],
        "current_uclk": 1300,
        "xgmi_read_data_acc": ["N/A"] * 8,
        "xgmi_write_data_acc": ["N/A"] * 8,
        "throttle_status": "N/A",
        "accumulation_counter": taken // 1_000_000,
        "ppt_residency_acc": taken // 2_000_000,
        "prochot_residency_acc": 0,
        "socket_thm_residency_acc": 0,
        "vr_thm_residency_acc": 0,
        "hbm_thm_residency_acc": 0,
    }
    return {**found, **own}
