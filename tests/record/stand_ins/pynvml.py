"""A stand-in for nvidia-ml-py: a GPU without some readings, values that repeat, errors, bytes."""

# ruff: noqa: N802
import os
import time
from types import SimpleNamespace

from load import BUSY_MHZ, BUSY_W, IDLE_MHZ, IDLE_W, SETTINGS, is_busy, pci, refreshed_ns

NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND = 4, 3, 13
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_MEMORY_TEMP = 186, 82
CALLS = []


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return {3: "Not Supported", 4: "Insufficient Permissions"}.get(self.value, "Unknown Error")


def nvmlInit():
    if SETTINGS["denied"]:
        raise NVMLError(NVML_ERROR_NO_PERMISSION)


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return b"570.86.10"


def nvmlDeviceGetCount():
    return SETTINGS["gpus"]


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=f"0000{pci(handle)}".upper().encode())


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle:08x}"


def nvmlDeviceGetName(handle):
    return "NVIDIA H100 80GB HBM3"


def _busy(handle):
    if handle in SETTINGS["broken"]:
        raise NVMLError(15)
    time.sleep(0.0002)
    return is_busy(refreshed_ns())


LINKS = {(139, 2**32 - 1): 1 << 20, (138, 2**32 - 1): 2 << 20, 197: 3 << 20, 198: 4 << 20}
"""KiB of NVLink in and out, and bytes of PCIe out and in, per second."""


def nvmlDeviceGetFanSpeed(handle):
    return 30 + handle


def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)] if handle == 0 else []


def nvmlDeviceGetFieldValues(handle, fields):
    if fields[0] in LINKS:
        counts = [int(LINKS[field] * refreshed_ns() / 1e9) for field in fields]
        members = [SimpleNamespace(ullVal=count) for count in counts]
        return [SimpleNamespace(nvmlReturn=0, valueType=3, value=each) for each in members]
    value = SimpleNamespace(uiVal=(BUSY_W if _busy(handle) else IDLE_W) * 1000)
    power = SimpleNamespace(nvmlReturn=0, valueType=1, value=value)
    missing = SimpleNamespace(nvmlReturn=3, valueType=1, value=SimpleNamespace(uiVal=0))
    return [power if field == NVML_FI_DEV_POWER_INSTANT else missing for field in fields]


def nvmlDeviceGetClockInfo(handle, clock):
    return (BUSY_MHZ if _busy(handle) else IDLE_MHZ) if clock == NVML_CLOCK_SM else 2619


def nvmlDeviceGetTemperature(handle, sensor):
    return 55


def nvmlDeviceGetUtilizationRates(handle):
    CALLS.append("utilization")
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x4 if _busy(handle) else 0x1


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return refreshed_ns() // 1_000_000


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=80 << 30, used=2 << 30)


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 700_000


def nvmlDeviceGetPowerUsage(handle):
    raise NVMLError(15)
