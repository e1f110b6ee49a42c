"""DCGM: `dcgmi dmon`, scrapes of dcgm-exporter, and tables with the names of its fields.

`dcgmi dmon` writes no times; a log of it has them only where something put one before each line
(`dcgmi dmon … | ts %.s`). The exporter, like AMD's device-metrics-exporter, writes the values of
one moment; a log is one scrape after another, with a time after each value, or on a line of its own
before each scrape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.signals import GpuName, SignalName, Telemetry
from chopper_core.sources.telemetry.cells import Flaw, quantity, whole_number
from chopper_core.sources.telemetry.nvidia_smi import CORE_C, LIMITED_PCT, limited_pct
from chopper_core.sources.telemetry.rows import Field, FieldKind, RowCollector, RowLoss
from chopper_core.sources.telemetry.series import ratios_or_percent, telemetry_of
from chopper_core.sources.telemetry.table import (
    TelemetryFormat,
    TelemetryTable,
    add_records,
    numbered_gpu,
)
from chopper_core.tables.text import HEADING_LINES, TEXT_SUFFIXES, FileHead, FileText
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.column import Cells


NAME: Final = "DCGM"
FILES: Final = (
    "`dcgmi dmon`, scrapes of dcgm-exporter, AMD's device-metrics-exporter and omnistat, CSV with "
    "columns named as DCGM's fields (`DCGM_FI_DEV_POWER_USAGE`)"
)
EXAMPLE: Final = "dcgmi dmon -e 155,150,100,203,252 -d 100 \\| ts %.s > dcgm.txt"
SUFFIXES: Final = (*TEXT_SUFFIXES, ".prom")
DMON: Final = "dcgmi dmon"
EXPORTER: Final = "dcgm-exporter scrapes"
AMD_EXPORTER: Final = "device-metrics-exporter scrapes"
OMNISTAT: Final = "omnistat scrapes"
TABLE: Final = "DCGM CSV"


def _limited(cell: object) -> object:
    found = quantity(cell)
    return cell if isinstance(found, Flaw) or found[1] else limited_pct(int(found[0]))


def _of_ratio(cell: object) -> object:
    found = quantity(cell)
    return cell if isinstance(found, Flaw) or found[1] else 100 * found[0]


_BYTES_PER_S: Final = "byte/s"
_RATIO: Final = Field(SignalName.GFX_UTIL_PCT, "%", convert=_of_ratio)
_BOARD: Final = (
    ("POWER DEV_POWER_USAGE DEV_BOARD_POWER_WATTS DEV_POWER_USAGE_INSTANT "
     "DEV_BOARD_POWER_RAW_WATTS", Field(SignalName.POWER_W, "w")),
    ("EPLMT DEV_ENFORCED_POWER_LIMIT DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",
     Field(SignalName.POWER_CAP_W, "w")),
    ("PMLMT DEV_POWER_MGMT_LIMIT DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS",
     Field(SignalName.POWER_CAP_W, "w")),
    ("TOTEC DEV_TOTAL_ENERGY_CONSUMPTION", Field(SignalName.ENERGY_J, "mj")),
    ("- DEV_GPU_ENERGY_JOULES", Field(SignalName.ENERGY_J, "j")),
    ("TMPTR DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS", CORE_C),
    ("MMTMP DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS", Field(SignalName.MEM_C, "c")),
    ("SMCLK DEV_SM_CLOCK", Field(SignalName.GFX_MHZ, "mhz")),
    ("- DEV_SM_CLOCK_HERTZ", Field(SignalName.GFX_MHZ, "hz")),
    ("MMCLK DEV_MEM_CLOCK", Field(SignalName.MEM_MHZ, "mhz")),
    ("- DEV_MEMORY_CLOCK_HERTZ", Field(SignalName.MEM_MHZ, "hz")),
    ("DVCCTR DEV_CLOCK_THROTTLE_REASONS DEV_CLOCKS_EVENT_REASONS",
     replace(LIMITED_PCT, convert=_limited)),
    *(
        meaning
        for limiter, short, old in (
            ("POWER", "PVIOL", "POWER"),
            ("THERMAL", "TVIOL", "THERMAL"),
            ("LIMIT", "BLVIO", "BOARD_LIMIT"),
            ("RELIABILITY", "RVIOL", "RELIABILITY"),
        )
        for seconds in [Field(SignalName.THROTTLE_PCT, "s", limiter.lower(), FieldKind.SECONDS)]
        for meaning in (
            (f"- DEV_GPU_{limiter}_THROTTLE_SECONDS", seconds),
            (f"{short} DEV_{old}_VIOLATION", replace(seconds, unit="ns")),
        )
    ),
)  # fmt: skip
"""The short name in `dmon`, and the names of the field less `DCGM_FI_` and `_TOTAL`, the newer ones
last: those since DCGM 4.6 have their unit in the name. Of a GPU in instances (MIG), these are of
the whole GPU and repeat under each."""
_FIELDS: Final = (
    *_BOARD,
    ("GPUTL DEV_GPU_UTIL", Field(SignalName.GFX_UTIL_PCT, "%")),
    ("- DEV_GPU_UTIL_RATIO", Field(SignalName.GFX_UTIL_PCT, "%", of_file=ratios_or_percent)),
    ("GRACT PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO", _RATIO),
    ("MCUTL DEV_MEM_COPY_UTIL", Field(SignalName.MEM_UTIL_PCT, "%")),
    ("- DEV_MEMORY_UTIL_RATIO", replace(_RATIO, signal=SignalName.MEM_UTIL_PCT)),
    ("DRAMA PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO",
     replace(_RATIO, signal=SignalName.MEM_UTIL_PCT)),
    ("SMACT PROF_SM_ACTIVE PROF_SM_UTIL_RATIO", replace(_RATIO, signal=SignalName.SM_ACTIVE_PCT)),
    ("TENSO PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO",
     replace(_RATIO, signal=SignalName.TENSOR_ACTIVE_PCT)),
    ("FBUSD DEV_FB_USED", Field(SignalName.VRAM_BYTES, "mib")),
    ("- DEV_FB_USED_BYTES", Field(SignalName.VRAM_BYTES, "b")),
    ("PCIRX PROF_PCIE_RX_BYTES", Field(SignalName.PCIE_GBPS, _BYTES_PER_S, "rx")),
    ("PCITX PROF_PCIE_TX_BYTES", Field(SignalName.PCIE_GBPS, _BYTES_PER_S, "tx")),
    ("NVLRX PROF_NVLINK_RX_BYTES", Field(SignalName.NVLINK_READ_GBPS, _BYTES_PER_S)),
    ("NVLTX PROF_NVLINK_TX_BYTES", Field(SignalName.NVLINK_WRITE_GBPS, _BYTES_PER_S)),
    ("- DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", Field(SignalName.NVLINK_GBPS, _BYTES_PER_S)),
)  # fmt: skip
_SHORT: Final = {names.split()[0].lower(): field for names, field in _FIELDS}


def _long(fields: Iterable[tuple[str, Field]]) -> dict[str, Field]:
    return {
        f"dcgm_fi_{name}{total}".lower(): field
        for names, field in fields
        for name in names.split()[1:]
        for total in ("", "_total")
    }


_LONG: Final = _long(_FIELDS)
_OF_BOARD: Final = frozenset(_long(_BOARD))
_MAX_INDEX: Final = 32
"""Of XCDs and links in labels."""
_AMD_LIMITERS: Final = {
    "prochot": "processor_hot_residency proc_hot_residency",
    "ppt": "ppt_residency",
    "socket_thermal": "socket_thermal_residency soc_thermal_residency",
    "vr_thermal": "vr_thermal_residency vr_thermal_tracking",
    "hbm_thermal": "hbm_thermal_residency",
}
"""The limiter, and its names before `_accumulated`, the older one (before 1.4.0) last."""
_AMD_FIELDS: Final = {
    **{
        f"gpu_clock_system_{index}": Field(SignalName.GFX_MHZ, "mhz", f"xcd{index}")
        for index in range(_MAX_INDEX)
    },
    "gpu_clock_system_": Field(SignalName.GFX_MHZ, "mhz"),
    "gpu_clock_memory": Field(SignalName.MEM_MHZ, "mhz"),
    "gpu_gfx_activity": Field(SignalName.GFX_UTIL_PCT, "%"),
    "gpu_umc_activity": Field(SignalName.MEM_UTIL_PCT, "%"),
    "gpu_package_power": Field(SignalName.POWER_W, "w"),
    "gpu_power_usage": Field(SignalName.POWER_W, "w"),
    "gpu_average_package_power": Field(SignalName.POWER_W, "w"),
    "gpu_energy_consumed": Field(SignalName.ENERGY_J, "uj"),
    "gpu_junction_temperature": Field(SignalName.HOTSPOT_C, "c"),
    "gpu_edge_temperature": Field(SignalName.EDGE_C, "c"),
    "gpu_memory_temperature": Field(SignalName.MEM_C, "c"),
    "gpu_used_vram": Field(SignalName.VRAM_BYTES, "mib"),
    "pcie_bandwidth": Field(SignalName.PCIE_GBPS, "mb/s"),
    **{
        f"gpu_xgmi_link_{way}_{index}": Field(signal, "kb", f"link{index}")
        for way, signal in (
            ("rx", SignalName.XGMI_READ_BYTES),
            ("tx", SignalName.XGMI_WRITE_BYTES),
        )
        for index in range(_MAX_INDEX)
    },
    **dict.fromkeys(
        ("gpu_violation_current_accumulated_counter", "gpu_current_accumulated_counter"),
        Field(SignalName.THROTTLE_PCT, "", kind=FieldKind.TICKS),
    ),
    **{
        f"gpu_violation_{name}_{what}": replace(field, part=limiter)
        for limiter, names in _AMD_LIMITERS.items()
        for name in names.split()
        for what, field in (
            ("accumulated", Field(SignalName.THROTTLE_PCT, "", kind=FieldKind.RESIDENCY)),
            ("percentage", Field(SignalName.THROTTLE_PCT, "%")),
        )
    },
}
"""The metrics of AMD's exporter, those that have several values with the label that tells them
apart; perhaps with `amd_` before them."""
_OMNISTAT_FIELDS: Final = {
    "rocm_average_socket_power_watts": Field(SignalName.POWER_W, "w"),
    "rocm_energy_joules": Field(SignalName.ENERGY_J, "j"),
    "rocm_sclk_clock_mhz": Field(SignalName.GFX_MHZ, "mhz"),
    "rocm_mclk_clock_mhz": Field(SignalName.MEM_MHZ, "mhz"),
    "rocm_utilization_percentage": Field(SignalName.GFX_UTIL_PCT, "%"),
    "rocm_vram_busy_percentage": Field(SignalName.MEM_UTIL_PCT, "%"),
    **{
        f"rocm_temperature_{heading}": Field(signal, "c")
        for headings, signal in (
            ("celsius_edge edge_celsius", SignalName.EDGE_C),
            ("celsius_hotspot celsius_junction", SignalName.HOTSPOT_C),
            ("memory_celsius_vram memory_celsius_hbm_0 hbm_celsius", SignalName.MEM_C),
        )
        for heading in headings.split()
    },
    "rocm_xgmi_total_read_kilobytes": Field(SignalName.XGMI_READ_BYTES, "kb"),
    "rocm_xgmi_total_write_kilobytes": Field(SignalName.XGMI_WRITE_BYTES, "kb"),
}
"""The metrics of omnistat, those of temperatures with their location."""
_OMNISTAT_MODEL: Final = "rocm_version_info"
"""The metric whose label `type` is the product of a card."""
_SCRAPED_FIELDS: Final = {**_LONG, **_AMD_FIELDS, **_OMNISTAT_FIELDS}
_OLD_CLOCK: Final = "gpu_clock_type_"
"""Before a type of clock up to 1.4.1."""
_GPU: Final = ("gpu", "gpu_id", "gpuid", "gpu-id", "entity", "#entity", "gpu_index", "index")
_HOST: Final = ("hostname", "host", "node")
_TIME: Final = ("timestamp", "time", "ts", "time_s", "time_ns", "datetime", "date")
_HEADINGS: Final = late(r"(?P<before>.*?)#\s*Entity\s+(?P<names>\S.*)", re.IGNORECASE)
_UNITS: Final = late(r"(?:.*\s)?Id(?:\s.*)?", re.IGNORECASE)
_ENTITY: Final = late(
    r"(?P<before>.*?)\b(?P<kind>v?GPU|GPU-C?I|Switch|CPU|Core|Link)\s+(?P<number>\d+)\s+(?P<rest>.*)"
)
_STOPPED: Final = "dmon was stopped"
_SAMPLE: Final = late(
    r"(?:amd_)?(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)"
    r"(?:\s+(?P<time>\d+))?",
)
_GPU_LABELS: Final = ("gpu", "gpu_id", "card")
_OWN_METRICS: Final = late(r"(?:go|process|promhttp|python|scrape|nodejs)_|up$")
"""What an exporter says of itself."""
_LABEL: Final = late(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COMMENT: Final = late(r"#\s*(?:HELP|TYPE|EOF|UNIT)\b")


def recognise(head: FileHead) -> Recognised | Unusable | None:
    return _FORMAT.recognise(head) or _exporter(head)


def _exporter(head: FileHead) -> Recognised | None:
    """The exporter that writes such lines."""
    for line in () if head.is_json else head.lines[:HEADING_LINES]:
        if sample := _SAMPLE.fullmatch(line.strip()):
            if sample["name"].startswith("DCGM_") and sample["labels"]:
                return Recognised(EXPORTER)
            if sample["name"].startswith("gpu_") and "gpu_id" in _labels(sample["labels"]):
                return Recognised(AMD_EXPORTER)
            if sample["name"].startswith("rocm_") and "card" in _labels(sample["labels"]):
                return Recognised(OMNISTAT)
    return None


def read(path: Path, _progress: Progress = silent) -> Telemetry:
    """Read a log of DCGM; raises DataError without any usable sample, or with several hosts."""
    head = FileHead(path)
    exporter = None if _FORMAT.recognise(head) else _exporter(head)
    if exporter is None:
        return _FORMAT.read(path)
    text = FileText(path)
    rows = RowCollector(path, text.losses)
    add_records(rows, [_SCRAPED], _scraped(text, rows))
    return telemetry_of(exporter.format, rows)


def _gpu(cells: Cells) -> GpuName | None:
    """The GPU of a row: `3`, `GPU 3` or `gpu3`."""
    name = next((cells[heading] for heading in _GPU if heading in cells), "")
    number = whole_number(re.sub(r"(?i)^gpu\s*", "", name))
    return None if number is None or number < 0 else GpuName(index=number)


def _dmon_cells(line: str) -> list[str] | None:
    """What is before a row or headings, the GPU, and the fields; of other entities without GPU."""
    if headings := _HEADINGS.fullmatch(line.rstrip()):
        return ["time" if headings["before"].strip() else "", "gpu", *headings["names"].split()]
    if _STOPPED in line or _UNITS.fullmatch(line):
        return None
    entity = _ENTITY.fullmatch(line)
    if entity is None:
        return [line]
    gpu = entity["number"] if entity["kind"] == "GPU" else ""
    return [entity["before"], gpu, *entity["rest"].split()]


@lru_cache(maxsize=1 << 12)
def _labels(text: str | None) -> Mapping[str, str]:
    return dict(_LABEL.findall(text or ""))


@lru_cache(maxsize=1 << 12)
def _heading(name: str, labels: str | None) -> str:
    """The field of a sample: its name in lower case, with the label that tells values apart."""
    heading, found = name.lower().removesuffix("_total"), _labels(labels)
    if heading == "gpu_clock":
        kind = found.get("clock_type", "system").lower().removeprefix(_OLD_CLOCK)
        return f"{heading}_{kind}" + (
            f"_{found.get('clock_index', '')}" if kind == "system" else ""
        )
    place = found.get("link_index") or found.get("location")
    return f"{heading}_{place}" if place else heading


def scraped_lines(text: str, time_ms: int) -> list[str]:
    """The lines of a scrape that are of use, each with a time after its value."""
    found = filter(None, map(_SAMPLE.fullmatch, map(str.strip, text.splitlines())))
    own = {*_SCRAPED_FIELDS, _OMNISTAT_MODEL}
    known = [each for each in found if _heading(each["name"], each["labels"]) in own]
    return [each[0] if each["time"] else f"{each[0]} {time_ms}" for each in known]


def _scraped(text: FileText, rows: RowCollector) -> Iterator[dict[str, str]]:
    """The values of each GPU: a scrape begins where a GPU's metric comes again, or at a time."""
    scrape: dict[tuple[str, ...], dict[str, str]] = {}
    seen: set[tuple[str, ...]] = set()
    models: dict[str, str] = {}
    at = ""
    for line in map(str.strip, text.lines()):
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            if line and not _COMMENT.match(line):
                is_time = rows.stamps.read(line.lstrip("# ")) is not None
                rows.row_losses[RowLoss.FOREIGN] += not is_time
                if is_time:
                    yield from _named(scrape, models)
                    scrape, seen, at = {}, set(), line.lstrip("# ")
            continue
        heading, labels = _heading(sample["name"], sample["labels"]), _labels(sample["labels"])
        instance = labels.get("GPU_I_ID", "")
        if heading == _OMNISTAT_MODEL:
            models[labels.get("card", "")] = labels.get("type", "")
            continue
        if heading not in _SCRAPED_FIELDS or (instance and heading not in _OF_BOARD):
            if not _OWN_METRICS.match(heading):
                name = heading if heading.startswith("gpu_clock_") else sample["name"]
                rows.unused[name + (" of MIG instances" if instance else "")] += 1
            continue
        if host := labels.get("Hostname") or labels.get("hostname"):
            rows.saw_host(host)
        time = sample["time"] or at
        gpu = next((labels[name] for name in _GPU_LABELS if labels.get(name)), "")
        pci, model = (
            labels.get("pci_bus_id", ""),
            labels.get("modelName") or labels.get("card_model", ""),
        )
        place = gpu, pci, time, heading, instance
        if place in seen:
            if time:
                rows.unused[f"{sample['name']} given twice"] += 1
                continue
            yield from _named(scrape, models)
            scrape, seen = {}, set()
        seen.add(place)
        stamp = {"time": time} if time else {}
        named = {"gpu": gpu, "pci_bus_id": pci, "model": model}
        own = scrape.setdefault((gpu, pci, time), named | stamp)
        if instance:
            own.setdefault(heading, sample["value"])
        else:
            own[heading] = sample["value"]
    yield from _named(scrape, models)


def _named(
    scrape: Mapping[tuple[str, ...], dict[str, str]], models: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """The values of each GPU, with the product that another metric names."""
    for (gpu, *_), own in scrape.items():
        own["model"] = own["model"] or models.get(gpu, "")
        yield own


def _scraped_gpu(cells: Cells) -> GpuName | None:
    gpu = numbered_gpu(cells)
    return gpu and GpuName(index=gpu.index, pci=cells["pci_bus_id"], model=cells["model"])


_SCRAPED: Final = TelemetryTable(
    EXPORTER,
    _SCRAPED_FIELDS,
    also_named_by=("pci_bus_id", "model"),
    gpu_of=_scraped_gpu,
    time=("time",),
)
_FORMAT: Final = TelemetryFormat(
    (
        TelemetryTable(DMON, _SHORT, time=("time",), split=_dmon_cells),
        *(
            TelemetryTable(
                TABLE,
                columns,
                gpu=_GPU,
                may_be_nameless=True,
                gpu_of=_gpu,
                time=_TIME,
                host=_HOST,
                marks=frozenset(marks),
            )
            for columns, marks in ((_LONG, ()), (_SHORT, ("tmptr", "smclk", "gputl", "fbusd")))
        ),
    )
)
"""Besides `dmon`, columns named as fields of DCGM, with one row per GPU."""
