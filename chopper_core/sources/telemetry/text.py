"""The text of a telemetry file: decompressed, decoded and cut into lines and cells."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.shared.bytes import BYTE_ORDER_MARK, ByteSource
from chopper_core.sources.trace import Losses
from chopper_core.util.errors import DataError

SNIFFED_BYTES: Final = 1 << 16
_PROBED_BYTES: Final = 1 << 9
"""Text may have zeros further on: a file that was open at a power failure often ends in them."""
_PICKLE_STARTS: Final = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_WIDE_TEXT: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""What PowerShell writes for `nvidia-smi > file`."""

PICKLE: Final = (
    "is a Python pickle, which Chopper never opens since that can run any code; where it comes "
    'from, convert gpu.pkl with pandas.read_pickle("gpu.pkl").to_csv("gpu.csv", index=False), '
    "which keeps ts (CLOCK_MONOTONIC), gpu (the KFD node) and the columns of "
    "amdsmi_get_gpu_metrics_info"
)


class TelemetryText(Struct, frozen=True):
    """The text of a file, or of its start."""

    path: Path
    text: str
    losses: Losses
    """What was lost on the way to this text."""
    is_whole: bool = True

    def lines(self) -> list[str]:
        """Return the lines without the last one if it is cut: half a number is a wrong number."""
        lines = self.text.splitlines()
        if len(lines) > 2 and not self.text.endswith(("\n", "\r")):
            del lines[-1]
            if self.is_whole:
                self.losses.truncated = True
                self.losses.notes.append("The file ends within a row: that row is left out.")
        return lines


def sniff(path: Path) -> TelemetryText:
    """Return the start of a file; raises DataError if it is no text."""
    return _text_of(path, SNIFFED_BYTES)


def read_text(path: Path) -> TelemetryText:
    """Return the text of a file; raises DataError if it is no text."""
    return _text_of(path, None)


def csv_cells(line: str) -> list[str]:
    """Return the cells of a line, without the space around them."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _text_of(path: Path, limit_bytes: int | None) -> TelemetryText:
    losses = Losses()
    with ByteSource(path, limit_bytes or SNIFFED_BYTES) as source:
        data = bytearray(source.read())
        while limit_bytes is None and (piece := source.read()):
            data += piece
        if source.problem and limit_bytes is None:
            losses.truncated = True
            losses.notes.append(f"{source.problem}: what lies before is used.")
    plain = bytes(data).removeprefix(BYTE_ORDER_MARK)
    if plain.startswith(_PICKLE_STARTS):
        raise DataError(f"{path} {PICKLE}.")
    encoding = _WIDE_TEXT.get(plain[:2], "utf-8")
    if encoding != "utf-8":
        plain = plain[2:]
    elif b"\x00" in plain[:_PROBED_BYTES]:
        raise DataError(f"{path} is binary, not text.")
    text = plain.decode(encoding, "replace")
    if not text.strip():
        raise DataError(f"{path} is empty.")
    return TelemetryText(path, text, losses, is_whole=limit_bytes is None)
