"""User overrides for a run's sources: clock shifts, GPUs of devices, the hardware.

A shift is spelled `SOURCE=+1.25s`, a device `SOURCE:ID=GPU` (`SOURCE:ID=none`: not in the run).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.parallel import layout_text
from chopper_core.util.errors import UsageError

NO_GPU: Final = "none"
_LIMIT_NS: Final = 2**62


class Overrides(Struct, frozen=True):
    """A user's corrections of a run's sources, in canonical order."""

    clocks: tuple[tuple[str, int], ...] = ()
    """(part of a source's name or format, ns), in order."""
    gpus: tuple[tuple[str, str, int | None], ...] = ()
    """(part of a source's name or format, the source's name of the device, GPU of the run or None),
    in order."""
    hardware: str = ""
    """The product of the GPUs, where the files lack it or are wrong."""
    parallel: str = ""
    """The layout of the ranks, `tp=2,pp=16`; it needs no other alignment of the files."""
    base_parallel: str = ""
    """The layout of the baseline's ranks, where it has another."""
    settings: tuple[str, ...] = ()
    """Settings of runs: `tp=2,pp=16`, `gpt3_*:tp=2`."""
    names: tuple[str, ...] = ()
    """Patterns over the names of runs: `{model}_{tp}-{pp}`."""
    predicted: str = ""
    """The questions of what-if whose predicted run it is; empty: the run as measured."""

    def __bool__(self) -> bool:
        """Whether they change how the files are aligned."""
        return bool(self.clocks or self.gpus or self.hardware)

    @property
    def of_base(self) -> Overrides:
        return replace(
            self.of_run,
            parallel=self.base_parallel or self.parallel,
            settings=self.settings,
            names=self.names,
        )

    @property
    def of_run(self) -> Overrides:
        """Those that reading a run takes; the rest are of views of runs that are open."""
        return Overrides(self.clocks, self.gpus, self.hardware, self.parallel)

    def shift_ns(self, *called: str) -> int | None:
        """The shift of a source with these names; None without one."""
        found = [ns for part, ns in self.clocks if is_meant(part, called)]
        return sum(found) if found else None

    def devices(self, *called: str) -> dict[str, int | None]:
        return {device: gpu for part, device, gpu in self.gpus if is_meant(part, called)}

    def clocks_text(self) -> str:
        return ",".join(f"{_quoted(part)}={seconds_text(ns)}s" for part, ns in self.clocks)

    def gpus_text(self) -> str:
        return ",".join(
            f"{_quoted(part)}:{_quoted(device)}={NO_GPU if gpu is None else gpu}"
            for part, device, gpu in self.gpus
        )


def is_meant(part: str, called: Iterable[str]) -> bool:
    """Whether a part of a name matches one of the names: rank1 doesn't match rank10."""
    ends = r"(?!\d)" if part[-1:].isdigit() else ""
    return any(re.search(re.escape(part) + ends, name) for name in called)


NO_OVERRIDES: Final = Overrides()
"""No overrides: detection decides."""


def overrides_of(
    clocks: Iterable[tuple[str, int]] = (),
    gpus: Iterable[tuple[str, str, int | None]] = (),
    before: Overrides | None = None,
    hardware: str = "",
    parallel: str = "",
    base_parallel: str = "",
) -> Overrides:
    """Overrides in canonical order; of two for the same source the last one wins."""
    old = NO_OVERRIDES if before is None else before
    shifts = dict((*old.clocks, *clocks))
    devices = {(part, device): gpu for part, device, gpu in (*old.gpus, *gpus)}
    return replace(
        old,
        clocks=tuple(sorted(shifts.items())),
        gpus=tuple((*device, gpu) for device, gpu in sorted(devices.items())),
        hardware=hardware or old.hardware,
        parallel=layout_text(parallel) or old.parallel,
        base_parallel=layout_text(base_parallel) or old.base_parallel,
    )


def parse_overrides(options: Mapping[str, str]) -> Overrides:
    """Overrides from the options of an address."""

    def several(key: str) -> tuple[str, ...]:
        return tuple(unquote(part) for part in options.get(key, "").split(";") if part)

    shifts = [parse_clock(item) for item in options.get("clock", "").split(",") if item]
    devices = [parse_gpu(item) for item in options.get("gpu", "").split(",") if item]
    found = overrides_of(
        [(unquote(part), ns) for part, ns in shifts],
        [(unquote(part), unquote(device), gpu) for part, device, gpu in devices],
        hardware=options.get("hardware", ""),
        parallel=options.get("parallel", ""),
        base_parallel=options.get("base_parallel", ""),
    )
    asked = options.get("predicted", "")
    return replace(found, settings=several("set"), names=several("name"), predicted=asked)


def joined(texts: Iterable[str]) -> str:
    return ";".join(text.replace("%", "%25").replace(";", "%3B") for text in texts)


def parse_clock(text: str) -> tuple[str, int]:
    """Parse `SOURCE=+1.25s`; raises UsageError."""
    name, _, shift = text.rpartition("=")
    try:
        shift_ns = Decimal(shift.removesuffix("s")) * 10**9
        if name and abs(shift_ns) < _LIMIT_NS:
            return name, round(shift_ns)
    except InvalidOperation:
        pass
    raise UsageError(f"{text!r} is not SOURCE=+SECONDS, such as amd-smi=+1.25s")


def parse_gpu(text: str) -> tuple[str, str, int | None]:
    """Parse `SOURCE:ID=GPU`; raises UsageError."""
    device, _, gpu = text.rpartition("=")
    source, _, name = device.partition(":")
    if source and name:
        if gpu == NO_GPU:
            return source, name, None
        if gpu.isascii() and gpu.isdigit() and len(gpu) < 10:
            return source, name, int(gpu)
    raise UsageError(
        f"{text!r} is not SOURCE:ID=GPU, such as amd-smi:4=0, or amd-smi:4={NO_GPU} for a device "
        "that is not in the run"
    )


def seconds_text(ns: int) -> str:
    """A shift in seconds with its sign, exact."""
    whole, rest = divmod(abs(ns), 10**9)
    part = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{'-' if ns < 0 else '+'}{whole}{part}"


def _quoted(text: str) -> str:
    return quote(text, safe="()<>*+[]{}@~!;|")
