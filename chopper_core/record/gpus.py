"""The GPUs of this node through the vendor's library: one class per library.

`amdsmi` and `pynvml` are imported when a class is made. The columns are those that
`sources/telemetry/sampler.py` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import isfinite
from typing import Any, Final, TypeGuard

from msgspec import Struct

from chopper_core.record.manifest import RecordedGpu
from chopper_core.util.plugins import package_version

Cell = int | float | str
Reading = Cell | tuple[Cell, ...]
"""What is in a column: a cell, or one per member of a list."""
_UNSUPPORTED: Final = (2**16 - 1, 2**32 - 1, 2**64 - 1)
"""What the drivers' structures hold where a GPU lacks a sensor."""
_FRESH_NS: Final = 1_000_000_000
"""A driver's stamp is that of the sample if it isn't older."""
_MIB: Final = 1 << 20
_AMD_METRICS: Final = (
    *("current_socket_power", "average_socket_power", "energy_accumulator"),
    *("current_gfxclks", "current_gfxclk", "current_uclk", "temperature_hotspot"),
    *("temperature_mem", "average_gfx_activity", "average_umc_activity"),
    *("xgmi_read_data_acc", "xgmi_write_data_acc", "throttle_status", "accumulation_counter"),
    *("prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc"),
    *("vr_thm_residency_acc", "hbm_thm_residency_acc"),
)
_NOT_SUPPORTED: Final = {"amdsmi": (2,), "pynvml": (3, 13)}
"""Error codes of the libraries for what a GPU doesn't have."""
_POWER_INSTANT, _MEMORY_TEMP = 186, 82
_NVLINK_IN, _NVLINK_OUT, _PCIE_OUT, _PCIE_IN = 139, 138, 197, 198
"""Fields of NVML. By nvml.h, `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX` and `_TX` count KiB, and
`NVML_FI_DEV_PCIE_COUNT_TX_BYTES` and `_RX_BYTES` bytes, which may wrap. Not
`nvmlDeviceGetPcieThroughput`: it waits for 20 ms per direction."""
_ALL_LINKS: Final = 2**32 - 1
_KIB: Final = 1 << 10
_FAN: Final = 0
"""The first fan of a GPU."""
_LIMITERS: Final = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""The limiters among NVML's clock event reasons."""
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the value of a field, by the number of its type."""


class NoGpusError(Exception):
    """A library can't be used here; the text is the reason, and what helps."""


class Sample(Struct, frozen=True):
    """The values of a device at a moment."""

    device: int
    """Place in the list of devices."""
    cells: tuple[Reading, ...]
    """One per column of the library; '' where unknown."""
    taken_ns: int
    """The time since boot: the driver's stamp, else when the reading began."""
    stamp: Cell = ""
    """The device's own time of it: equal ones are the same sample. '' where it has none."""


class GpuProcess(Struct, frozen=True):
    """A process with memory on a GPU."""

    device: int
    """Place in the list of devices."""
    pid: int
    memory_bytes: int = -1
    """-1 where unknown."""


class GpuLibrary:
    """Reads the GPUs of this node; raises NoGpusError where it can't."""

    module = helps = name = driver = lacks = ""
    columns: Sequence[str] = ()
    rare: Sequence[str] = ()
    """The last columns, which change seldom or cost much, and are filled where asked."""

    def __init__(self) -> None:
        try:
            self._api: Any = import_module(self.module)
        except Exception as error:  # Its import loads the driver's library, in whatever state.
            raise NoGpusError(
                f"{self.module} can't be imported ({_why(error)}); {self.helps}"
            ) from error
        self._missing: set[tuple[int, str]] = set()
        self.failed: dict[str, int] = {}
        """Why readings failed, and how often."""
        self.errors: dict[int, str] = {}
        """The last failure of each device."""
        try:
            self._handles = self._open()
        except Exception as error:
            raise NoGpusError(
                f"{self.module} finds no driver or may not use it ({_why(error)}); AMD's needs "
                "the groups render and video"
            ) from error
        if not self._handles:
            raise NoGpusError(f"{self.module} lists no GPU")

    def _open(self) -> list[Any]:
        """Initialize the library, and list its handles of GPUs."""
        raise NotImplementedError

    def devices(self) -> list[RecordedGpu]:
        raise NotImplementedError

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read each device; one that fails is left out."""
        raise NotImplementedError

    def processes(self) -> Iterator[GpuProcess]:
        """The processes on the GPUs; takes milliseconds per GPU."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the library."""

    def ask(self, device: int, what: str, call: Callable[..., Any], *more: object) -> Any:
        """The answer about a device; None where it fails. What it lacks isn't asked again."""
        if (device, what) in self._missing:
            return None
        try:
            return call(self._handles[device], *more)
        except Exception as error:  # The libraries' errors have no common class.
            code = getattr(error, "err_code", getattr(error, "value", None))
            if code in _NOT_SUPPORTED[self.module]:
                self._missing.add((device, what))
            else:
                why = f"{what} of GPU {device}: {_why(error)}"
                self.failed[why] = self.failed.get(why, 0) + 1
                self.errors[device] = why
            return None

    def number(self, device: int, what: str, call: Callable[..., Any], *more: object) -> Cell:
        return cell(self.ask(device, what, call, *more))

    def item(self, device: int, what: str, call: Callable[..., Any], key: str) -> Any:
        """A part of an answer by its key; None where it fails."""
        found = self.ask(device, what, call)
        return found.get(key) if isinstance(found, dict) else None


class AmdSmi(GpuLibrary):
    """AMD's GPUs: one call per sample gives the driver's table of metrics.

    PCIe traffic isn't read. Of `pcie_bandwidth_inst` the driver's header said Mbps for tables up to
    1.6 and says GB/s now, of the same whole number of the firmware; amdsmi.h has that number, as
    `pcie_bandwidth`, in Mb/s. The library doesn't say of which version a table is.
    """

    module = "amdsmi"
    lacks = (
        "no PCIe traffic: AMD's driver counts it in GB/s, its library says Mb/s of the same number"
    )
    helps = (
        "install the module of the installed ROCm (/opt/rocm/share/amd_smi), or pip install "
        "'chopper-tui[amd]'"
    )
    rare: Sequence[str] = ("power_cap_w", "vram_bytes", "fan_pct")
    columns: Sequence[str] = (*_AMD_METRICS, *rare)

    def __init__(self) -> None:
        super().__init__()
        self.name = f"amdsmi {package_version('amdsmi')}".strip()
        version = self.item(0, "driver", self._api.amdsmi_get_gpu_driver_info, "driver_version")
        self.driver = f"amdgpu {version}" if version else ""

    def _open(self) -> list[Any]:
        self._api.amdsmi_init()
        return list(self._api.amdsmi_get_processor_handles())

    def devices(self) -> list[RecordedGpu]:
        """The GPUs in the order of amdsmi, which isn't HIP's."""
        api, found = self._api, []
        for device in range(len(self._handles)):
            node = cell(self.item(device, "KFD node", api.amdsmi_get_gpu_kfd_info, "node_id"))
            model = self.item(device, "model", api.amdsmi_get_gpu_asic_info, "market_name")
            place = self.ask(device, "PCI address", api.amdsmi_get_gpu_device_bdf)
            uuid = self.ask(device, "UUID", api.amdsmi_get_gpu_device_uuid)
            place, uuid, model = (str(each or "") for each in (place, uuid, model))
            number = node if isinstance(node, int) else -1
            total = cell(self.item(device, "VRAM", api.amdsmi_get_gpu_vram_usage, "vram_total"))
            total_bytes = int(total) * _MIB if not isinstance(total, str) else 0
            found.append(RecordedGpu(device, place, uuid, model, number, total_bytes))
        return found

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read the metrics of each GPU; the driver stamps them with the time since boot."""
        api = self._api
        for device in range(len(self._handles)):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            metrics = self.ask(device, "metrics", api.amdsmi_get_gpu_metrics_info)
            if not isinstance(metrics, dict):
                continue
            cap = used = None
            fan: Cell = ""
            if is_full:
                fan = self._fan_pct(device)
                cap = self.item(device, "power cap", api.amdsmi_get_power_cap_info, "power_cap")
                used = self.item(device, "VRAM", api.amdsmi_get_gpu_vram_usage, "vram_used")
            cells: list[Reading] = [_reading(metrics.get(name)) for name in _AMD_METRICS]
            cells += [_scaled(cell(cap), 1e-6), _scaled(cell(used), _MIB), fan]
            taken_ns = cell(metrics.get("system_clock_counter"))
            if isinstance(taken_ns, str) or abs(began_ns - taken_ns) > _FRESH_NS:
                taken_ns = began_ns
            stamp = cell(metrics.get("firmware_timestamp"))
            yield Sample(device, tuple(cells), int(taken_ns), stamp)

    def _fan_pct(self, device: int) -> Cell:
        """The speed of the fan; its scale differs between boards."""
        api = self._api
        most = self.number(device, "fastest fan", api.amdsmi_get_gpu_fan_speed_max, _FAN)
        now = self.number(device, "fan", api.amdsmi_get_gpu_fan_speed, _FAN)
        return "" if isinstance(most, str) or most <= 0 else _scaled(now, 100 / most)

    def processes(self) -> Iterator[GpuProcess]:
        for device in range(len(self._handles)):
            found = self.ask(device, "processes", self._api.amdsmi_get_gpu_process_list)
            for each in filter(_is_dict, found or ()):
                memory = each.get("memory_usage")
                used = cell(memory.get("vram_mem") if _is_dict(memory) else each.get("mem"))
                pid = cell(each.get("pid"))
                if isinstance(pid, int):
                    yield GpuProcess(device, pid, -1 if isinstance(used, str) else int(used))

    def close(self) -> None:
        self._api.amdsmi_shut_down()


class Nvml(GpuLibrary):
    """NVIDIA's GPUs through `pynvml` of `nvidia-ml-py`."""

    module = "pynvml"
    helps = "pip install 'chopper-tui[nvidia]'"
    rare: Sequence[str] = (
        *("energy_j", "vram_bytes", "power_cap_w", "fan_pct"),
        *("nvlink_read_bytes", "nvlink_write_bytes", "pcie_bytes"),
    )
    columns: Sequence[str] = (
        *("power_w", "gfx_mhz", "mem_mhz", "edge_c", "mem_c", "gfx_util_pct", "mem_util_pct"),
        *(f"throttle_pct.{limiter}" for limiter in _LIMITERS),
        *rare,
    )

    def __init__(self) -> None:
        super().__init__()
        self.name = f"nvidia-ml-py {package_version('nvidia-ml-py')}".strip()
        version = self.ask(0, "driver", lambda _: self._api.nvmlSystemGetDriverVersion())
        self.driver = f"NVIDIA {_decoded(version)}" if version else ""
        # Its older name; both are of one function.
        self._reasons = getattr(self._api, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
            self._api.nvmlDeviceGetCurrentClocksThrottleReasons
        )

    def _open(self) -> list[Any]:
        self._api.nvmlInit()
        count = self._api.nvmlDeviceGetCount()
        return [self._api.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def devices(self) -> list[RecordedGpu]:
        """The GPUs in the order of NVML, which is CUDA's only by PCI_BUS_ID."""
        api, found = self._api, []
        for device in range(len(self._handles)):
            pci = self.ask(device, "PCI address", api.nvmlDeviceGetPciInfo)
            uuid = self.ask(device, "UUID", api.nvmlDeviceGetUUID)
            model = self.ask(device, "model", api.nvmlDeviceGetName)
            place = _decoded(getattr(pci, "busId", "")).lower()
            memory = self.ask(device, "memory", api.nvmlDeviceGetMemoryInfo)
            total = cell(getattr(memory, "total", None))
            total_bytes = 0 if isinstance(total, str) else int(total)
            uuid, model = _decoded(uuid), _decoded(model)
            found.append(RecordedGpu(device, place, uuid, model, memory_bytes=total_bytes))
        return found

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read each GPU; NVML has no time of its own for what it gives."""
        for device in range(len(self._handles)):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            seldom = self._seldom(device) if is_full else ("",) * len(self.rare)
            cells = (*self._often(device), *seldom)
            if any(each != "" for each in cells):
                yield Sample(device, cells, began_ns)

    def _often(self, device: int) -> Iterator[Cell]:
        api = self._api
        fields = [_POWER_INSTANT, _MEMORY_TEMP]
        values = self.ask(device, "field values", api.nvmlDeviceGetFieldValues, fields)
        power, memory_c = map(_field_cell, values or (None, None))
        if power == "":
            # An average over a second on most GPUs: better than nothing.
            power = self.number(device, "power", api.nvmlDeviceGetPowerUsage)
        yield _scaled(power, 1e-3)
        for clock in (api.NVML_CLOCK_SM, api.NVML_CLOCK_MEM):
            yield self.number(device, f"clock {clock}", api.nvmlDeviceGetClockInfo, clock)
        core = api.NVML_TEMPERATURE_GPU
        yield self.number(device, "temperature", api.nvmlDeviceGetTemperature, core)
        yield memory_c
        rates = self.ask(device, "utilization", api.nvmlDeviceGetUtilizationRates)
        yield from (cell(getattr(rates, name, None)) for name in ("gpu", "memory"))
        reasons = self.ask(device, "clock event reasons", self._reasons)
        for bit in _LIMITERS.values():
            yield "" if reasons is None else 100 if reasons & bit else 0

    def _seldom(self, device: int) -> Iterator[Cell]:
        api = self._api
        energy = self.number(device, "energy", api.nvmlDeviceGetTotalEnergyConsumption)
        yield _scaled(energy, 1e-3)
        yield cell(getattr(self.ask(device, "memory", api.nvmlDeviceGetMemoryInfo), "used", None))
        yield _scaled(self.number(device, "limit", api.nvmlDeviceGetEnforcedPowerLimit), 1e-3)
        yield self.number(device, "fan", api.nvmlDeviceGetFanSpeed)
        links = [(_NVLINK_IN, _ALL_LINKS), (_NVLINK_OUT, _ALL_LINKS), _PCIE_IN, _PCIE_OUT]
        values = self.ask(device, "links", api.nvmlDeviceGetFieldValues, links)
        read, write, *pcie = map(_field_cell, values or (None,) * len(links))
        yield _scaled(read, _KIB)
        yield _scaled(write, _KIB)
        both = [each for each in pcie if not isinstance(each, str)]
        yield sum(both) if len(both) == len(pcie) else ""

    def processes(self) -> Iterator[GpuProcess]:
        call = self._api.nvmlDeviceGetComputeRunningProcesses
        for device in range(len(self._handles)):
            for each in self.ask(device, "processes", call) or ():
                used = cell(each.usedGpuMemory)
                yield GpuProcess(device, int(each.pid), -1 if isinstance(used, str) else int(used))

    def close(self) -> None:
        self._api.nvmlShutdown()


def cell(value: object) -> Cell:
    """A reading as a cell; '' for N/A, a type's maximum and anything that isn't a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return ""
    return "" if value in _UNSUPPORTED else value


def _reading(value: object) -> Reading:
    if not isinstance(value, list):
        return int(value) if isinstance(value, bool) else cell(value)
    members = [*map(cell, value)]
    while members and members[-1] == "":
        members.pop()
    return tuple(members) if members else ""


def text_of(reading: Reading) -> str:
    """A reading as it is written to a file."""
    if not isinstance(reading, tuple):
        return str(reading)
    return f"[{' '.join(str(member) if member != '' else 'N/A' for member in reading)}]"


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _field_cell(field: Any) -> Cell:
    if field is None or field.nvmlReturn or not 0 <= int(field.valueType) < len(_MEMBERS):
        return ""
    return cell(getattr(field.value, _MEMBERS[int(field.valueType)]))


def _scaled(value: Cell, factor: float) -> Cell:
    return "" if isinstance(value, str) else round(value * factor, 6)


def _decoded(value: object) -> str:
    """Text of NVML, which older versions give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def open_library() -> tuple[GpuLibrary | None, list[str]]:
    """The library that finds GPUs here, AMD's first; and why others don't."""
    reasons: list[str] = []
    for library in (AmdSmi, Nvml):
        try:
            return library(), reasons
        except NoGpusError as error:
            reasons.append(str(error))
    return None, reasons
