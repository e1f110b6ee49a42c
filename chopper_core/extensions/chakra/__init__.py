"""Chakra: execution graphs, simulators' logs, host traces and pipeline schedules."""

from typing import Final

SOURCES: Final = {
    "trace": (
        f"{__name__}.linked",
        f"{__name__}.et",
        f"{__name__}.feeder_json",
        f"{__name__}.jsonized",
        f"{__name__}.simulation",
        f"{__name__}.timeline",
    ),
    "host trace": (f"{__name__}.host_trace",),
    "pipeline schedule": (f"{__name__}.schedules.primus", f"{__name__}.schedules.workers"),
}
EXPORTS: Final = {
    "chakra": f"{__name__}.export",
    "dot": f"{__name__}.dot",
    "graphml": f"{__name__}.graphml",
}
COMMANDS: Final = {
    "check": ("DIR", "check Chakra traces for simulators", f"{__name__}.command"),
    "generate": ("PATTERN -o DIR", "write synthetic Chakra traces", f"{__name__}.generate"),
}
