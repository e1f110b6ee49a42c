"""The GPUs of this node through the vendor's library: one class per library.

`amdsmi` and `pynvml` are imported when a class is made, which raises `NoGpusError` with the reason
where that is impossible. A class gives the `devices`, and a `sample` of each with the columns that
`sources/telemetry/sampler.py` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any, Final, Protocol

from msgspec import Struct

from chopper_core.record.manifest import RecordedGpu, package_version

Cell = int | float | str
_UNSUPPORTED: Final = (2**16 - 1, 2**32 - 1, 2**64 - 1)
"""What the drivers' structures hold where a GPU lacks a sensor."""
_FRESH_NS: Final = 1_000_000_000
"""A driver's stamp is that of the sample if it isn't older."""
MIB: Final = 1 << 20


class NoGpusError(Exception):
    """A library can't be used here; the text is the reason, and what helps."""


class Sample(Struct, frozen=True):
    """The values of a device at a moment."""

    device: int
    """Place in the list of devices."""
    cells: tuple[Cell, ...]
    """One value per column of the library; '' where unknown."""
    taken_ns: int
    """The time since boot: the driver's stamp, else when the reading began."""
    stamp: Cell = ""
    """The device's own time of it: equal ones are the same sample. '' where it has none."""


class GpuLibrary(Protocol):
    """Reads the GPUs of this node."""

    name: str
    """The library and its version."""
    driver: str
    columns: Sequence[str]
    rare: Sequence[str]
    """Columns that change seldom or cost much, which `sample` fills where asked."""

    def devices(self) -> Sequence[RecordedGpu]:
        """The GPUs, in the library's order."""

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read each device; one that fails is left out, and named in `failures`."""

    def failures(self) -> dict[str, int]:
        """Why reading failed, and how often."""

    def close(self) -> None:
        """Release the library."""


def number(value: object) -> Cell:
    """A reading as a cell; '' for N/A, a type's maximum and anything that isn't a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return ""
    return "" if value in _UNSUPPORTED else value


class _GuardedCalls:
    """Calls of a library: what a device doesn't support isn't asked for again."""

    def __init__(self, unsupported: Callable[[Exception], bool]) -> None:
        self._is_unsupported = unsupported
        self._missing: set[tuple[int, str]] = set()
        self.failed: dict[str, int] = {}

    def value(self, device: int, what: str, call: Callable[[], Any]) -> Any:
        """The answer of a call; None where it fails."""
        if (device, what) in self._missing:
            return None
        try:
            return call()
        except Exception as error:
            if self._is_unsupported(error):
                self._missing.add((device, what))
            else:
                # The libraries' errors have no common class, and some break lines.
                why = f"{what} of GPU {device}: {' '.join(str(error).split())}"
                self.failed[why] = self.failed.get(why, 0) + 1
            return None


class AmdSmi:
    """AMD's GPUs through `amdsmi`: one call per sample gives the driver's table of metrics."""

    rare: Sequence[str] = ("power_cap_w", "vram_bytes")
    columns: Sequence[str] = (
        "current_socket_power",
        "average_socket_power",
        "energy_accumulator",
        "current_gfxclks",
        "current_gfxclk",
        "current_uclk",
        "temperature_hotspot",
        "temperature_mem",
        "average_gfx_activity",
        "average_umc_activity",
        "xgmi_read_data_acc",
        "xgmi_write_data_acc",
        "throttle_status",
        "accumulation_counter",
        "prochot_residency_acc",
        "ppt_residency_acc",
        "socket_thm_residency_acc",
        "vr_thm_residency_acc",
        "hbm_thm_residency_acc",
        *rare,
    )

    def __init__(self) -> None:
        try:
            import amdsmi
        except Exception as error:  # Its import loads the driver's library, in whatever state.
            raise NoGpusError(
                "amdsmi can't be imported "
                f"({_first_line(error)}); install the module of the installed ROCm "
                "(/opt/rocm/share/amd_smi), or pip install 'chopper-tui[amd]'"
            ) from error
        try:
            amdsmi.amdsmi_init()
            self._handles = list(amdsmi.amdsmi_get_processor_handles())
        except Exception as error:
            raise NoGpusError(
                f"amdsmi finds no driver or may not use it ({_first_line(error)}); the user has "
                "to be in the groups render and video"
            ) from error
        if not self._handles:
            raise NoGpusError("amdsmi lists no GPU")
        self._smi: Any = amdsmi
        self._reader = _GuardedCalls(lambda error: getattr(error, "err_code", None) == 2)
        self.name = f"amdsmi {package_version('amdsmi')}".strip()
        driver = self._of(0, "driver", amdsmi.amdsmi_get_gpu_driver_info)
        self.driver = f"amdgpu {driver['driver_version']}" if isinstance(driver, dict) else ""

    def _of(self, device: int, what: str, call: Callable[[Any], Any]) -> Any:
        return self._reader.value(device, what, lambda: call(self._handles[device]))

    def devices(self) -> Sequence[RecordedGpu]:
        """The GPUs in the order of amdsmi, which isn't HIP's."""
        smi, found = self._smi, []
        for device in range(len(self._handles)):
            asic = self._of(device, "model", smi.amdsmi_get_gpu_asic_info)
            node = self._of(device, "KFD node", smi.amdsmi_get_gpu_kfd_info)
            node_id = number(node.get("node_id")) if isinstance(node, dict) else ""
            found.append(
                RecordedGpu(
                    device,
                    str(self._of(device, "PCI address", smi.amdsmi_get_gpu_device_bdf) or ""),
                    str(self._of(device, "UUID", smi.amdsmi_get_gpu_device_uuid) or ""),
                    str(asic.get("market_name", "")) if isinstance(asic, dict) else "",
                    node_id if isinstance(node_id, int) else -1,
                )
            )
        return found

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read the metrics of each GPU; the driver stamps them with the time since boot."""
        smi = self._smi
        for device in range(len(self._handles)):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            metrics = self._of(device, "metrics", smi.amdsmi_get_gpu_metrics_info)
            if not isinstance(metrics, dict):
                continue
            cells = [_amd_cell(metrics.get(name)) for name in self.columns[: -len(self.rare)]]
            cap, vram = None, None
            if is_full:
                cap = self._of(device, "power cap", smi.amdsmi_get_power_cap_info)
                vram = self._of(device, "VRAM", smi.amdsmi_get_gpu_vram_usage)
            watts = number(cap.get("power_cap")) if isinstance(cap, dict) else ""
            used = number(vram.get("vram_used")) if isinstance(vram, dict) else ""
            cells += [
                "" if isinstance(watts, str) else watts / 1e6,
                "" if isinstance(used, str) else used * MIB,
            ]
            taken_ns = number(metrics.get("system_clock_counter"))
            if isinstance(taken_ns, str) or abs(began_ns - taken_ns) > _FRESH_NS:
                taken_ns = began_ns
            stamp = number(metrics.get("firmware_timestamp"))
            yield Sample(device, tuple(cells), int(taken_ns), stamp)

    def failures(self) -> dict[str, int]:
        """Why reading failed, and how often."""
        return self._reader.failed

    def close(self) -> None:
        """Release the library."""
        self._reader.value(0, "shut down", self._smi.amdsmi_shut_down)


def _amd_cell(value: object) -> Cell:
    if not isinstance(value, list):
        # The limiters of a GPU without residencies.
        return int(value) if isinstance(value, bool) else number(value)
    members = [str(number(member)) for member in value]
    while members and not members[-1]:
        members.pop()
    return f"[{' '.join(member or 'N/A' for member in members)}]" if members else ""


_LIMITERS: Final = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""Of the clock event reasons, the limiters."""
_THROTTLE: Final = tuple(f"throttle_pct.{limiter}" for limiter in _LIMITERS)


class Nvml:
    """NVIDIA's GPUs through `pynvml` of `nvidia-ml-py`."""

    rare: Sequence[str] = ("energy_j", "vram_bytes", "power_cap_w")
    columns: Sequence[str] = (
        "power_w",
        "gfx_mhz",
        "mem_mhz",
        "edge_c",
        "mem_c",
        "gfx_util_pct",
        "mem_util_pct",
        *_THROTTLE,
        *rare,
    )

    def __init__(self) -> None:
        try:
            import pynvml
        except Exception as error:
            raise NoGpusError(
                f"pynvml can't be imported ({_first_line(error)}); "
                "pip install 'chopper-tui[nvidia]'"
            ) from error
        try:
            pynvml.nvmlInit()
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index)
                for index in range(pynvml.nvmlDeviceGetCount())
            ]
        except Exception as error:
            raise NoGpusError(f"NVML finds no driver ({_first_line(error)})") from error
        if not self._handles:
            raise NoGpusError("NVML lists no GPU")
        self._nvml: Any = pynvml
        unsupported = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._reader = _GuardedCalls(lambda error: getattr(error, "value", None) in unsupported)
        self.name = f"nvidia-ml-py {package_version('nvidia-ml-py')}".strip()
        driver = self._reader.value(0, "driver", pynvml.nvmlSystemGetDriverVersion)
        self.driver = f"NVIDIA {_text(driver)}" if driver else ""
        self._reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        self._fields = [
            getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", 186),
            getattr(pynvml, "NVML_FI_DEV_MEMORY_TEMP", 82),
        ]

    def _of(self, device: int, what: str, call: Callable[..., Any], *more: object) -> Any:
        return self._reader.value(device, what, lambda: call(self._handles[device], *more))

    def devices(self) -> Sequence[RecordedGpu]:
        """The GPUs in the order of NVML, which is CUDA's only by PCI_BUS_ID."""
        nvml, found = self._nvml, []
        for device in range(len(self._handles)):
            pci = self._of(device, "PCI address", nvml.nvmlDeviceGetPciInfo)
            found.append(
                RecordedGpu(
                    device,
                    _text(pci.busId).lower() if pci is not None else "",
                    _text(self._of(device, "UUID", nvml.nvmlDeviceGetUUID)),
                    _text(self._of(device, "model", nvml.nvmlDeviceGetName)),
                )
            )
        return found

    def sample(self, *, is_full: bool = True) -> Iterator[Sample]:
        """Read each GPU; NVML has no time of its own for what it gives."""
        for device in range(len(self._handles)):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            cells = (*self._often(device), *(self._seldom(device) if is_full else ("",) * 3))
            if any(cell != "" for cell in cells):
                yield Sample(device, cells, began_ns)

    def _often(self, device: int) -> Iterator[Cell]:
        nvml = self._nvml
        power, memory_c = self._field_values(device)
        if power == "":
            # An average over a second on most GPUs: better than nothing.
            power = number(self._of(device, "power", nvml.nvmlDeviceGetPowerUsage))
        yield _scaled(power, 1e-3)
        for clock in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM):
            yield number(self._of(device, f"clock {clock}", nvml.nvmlDeviceGetClockInfo, clock))
        core = nvml.NVML_TEMPERATURE_GPU
        yield number(self._of(device, "temperature", nvml.nvmlDeviceGetTemperature, core))
        yield memory_c
        rates = self._of(device, "utilization", nvml.nvmlDeviceGetUtilizationRates)
        yield from (number(getattr(rates, name, None)) for name in ("gpu", "memory"))
        reasons = self._of(device, "clock event reasons", self._reasons)
        for bit in _LIMITERS.values():
            yield "" if reasons is None else 100 if reasons & bit else 0

    def _seldom(self, device: int) -> Iterator[Cell]:
        nvml = self._nvml
        energy = self._of(device, "energy", nvml.nvmlDeviceGetTotalEnergyConsumption)
        yield _scaled(number(energy), 1e-3)
        memory = self._of(device, "memory", nvml.nvmlDeviceGetMemoryInfo)
        yield number(getattr(memory, "used", None))
        cap = self._of(device, "power limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
        yield _scaled(number(cap), 1e-3)

    def _field_values(self, device: int) -> list[Cell]:
        """Instantaneous power in mW, and the memory's temperature."""
        call = self._nvml.nvmlDeviceGetFieldValues
        values = self._of(device, "field values", call, self._fields)
        return [
            number(_member(each)) if each is not None and each.nvmlReturn == 0 else ""
            for each in values or (None,) * len(self._fields)
        ]

    def failures(self) -> dict[str, int]:
        """Why reading failed, and how often."""
        return self._reader.failed

    def close(self) -> None:
        """Release the library."""
        self._reader.value(0, "shut down", self._nvml.nvmlShutdown)


_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field's value, by the number of its type."""


def _member(field: Any) -> object:
    kind = int(field.valueType)
    return getattr(field.value, _MEMBERS[kind]) if 0 <= kind < len(_MEMBERS) else None


def _scaled(value: Cell, factor: float) -> Cell:
    return "" if isinstance(value, str) else round(value * factor, 6)


def _text(value: object) -> str:
    """Text of NVML, which older versions give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _first_line(error: BaseException) -> str:
    lines = " ".join(str(error).split())
    return f"{type(error).__name__}: {lines}" if lines else type(error).__name__


def open_library() -> tuple[GpuLibrary | None, list[str]]:
    """The library that finds GPUs here, AMD's first; and why others don't."""
    reasons: list[str] = []
    for library in (AmdSmi, Nvml):
        try:
            return library(), reasons
        except NoGpusError as error:
            reasons.append(str(error))
    return None, reasons
