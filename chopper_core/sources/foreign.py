"""Files that no reader accepts: their kind, recognised by their start, and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from chopper_core.tables.json_stream import members, skip_space
from chopper_core.tables.text import HEADING_LINES, PRINTED, FileHead
from chopper_core.util.compression import COMPRESSED_STARTS, has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.escape import cut_text
from chopper_core.util.patterns import late

CUPTI_RANGE: Final = "cuda_profiler_range"
"""The category of events of CUPTI's range profiler, which records no kernels next to them."""
_MAX_SHOWN: Final = 60
_MAX_KEYS: Final = 6
_TAR_MAGIC: Final = b"ustar"
_TAR_MAGIC_PLACE: Final = 257
_TAR_NAME_BYTES: Final = 100
_ZIP_MAGIC: Final = b"PK\x03\x04"
_ZIP_HEADER_BYTES: Final = 30
_GIVE_TRACE: Final = "give the Kineto trace of the same run"

_BINARY: Final[Sequence[tuple[bytes, str]]] = (
    (b"ARROW1", "is an Arrow file; write it as Parquet or CSV"),
    (b"SQLite format 3\0", "is a compressed SQLite database; decompress it first ({unpack})"),
    *(
        (start, "is compressed twice; decompress it first ({unpack})")
        for start in COMPRESSED_STARTS
    ),
    (b"\0\0\0\0", "holds zeros: the disk was full or the copy was interrupted"),
)
_BY_SUFFIX: Final[Mapping[str, str]] = {
    **dict.fromkeys(("-wal", "-shm", "-journal"), "belongs to the database next to it"),
    **dict.fromkeys(
        (".nsys-rep", ".qdrep"),
        "is a report of Nsight Systems; give what `nsys export --type sqlite` makes of it",
    ),
    ".xplane.pb": (
        "is a profile of JAX or XLA (xplane), which only xprof converts (xspace_to_tool_data); "
        "record the step with rocprofv3 or Nsight Systems"
    ),
    ".ncu-rep": "is a report of Nsight Compute, which is not supported",
    ".pftrace": "is a Perfetto trace (protobuf); rocprofv3 writes CSV, JSON and rocpd too (-f)",
    ".perfetto-trace": f"is a Perfetto trace (protobuf); {_GIVE_TRACE}",
    "comm_group.json": "lists process groups for ASTRA-sim; the .et files next to it name them too",
}
_TEXT: Final[Sequence[tuple[str, str]]] = (
    (r"\s*<(?:!doctype html|html)", "is an HTML page, perhaps a login or error page saved as file"),
    (
        r"version https://git-lfs",
        "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
    ),
    (r"(?:#.*\n|\s)*pmc\s*:", "is a list of counters to collect, input of rocprof"),
    (r"[=\s]*ROCm System Management Interface", "is a screen of rocm-smi; log it with --json"),
    (
        r"\w{3} \w{3} .*\n\+-+\+",
        "is a screen of nvidia-smi; log it with --query-gpu … --format=csv",
    ),
)
_JSON: Final[Sequence[tuple[frozenset[str], str]]] = (
    (
        frozenset(("schema", "nodes")),
        f"is a PyTorch execution trace, which has no GPU activity; {_GIVE_TRACE}",
    ),
    (
        frozenset(("schema", "address", "columns")),
        "is a table that Chopper printed, not a trace; open the run in its `address`",
    ),
    (frozenset(("rocprofiler-sdk-tool",)), "is rocprofv3 JSON, not a PyTorch profiler trace"),
    (frozenset(("distributedInfo",)), "is a part of a PyTorch profiler trace without its events"),
)
_DELIMITERS: Final[Mapping[str, str]] = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBERS: Final = late(r"[-+\d.,;eE\s]+")
_OTHER_DEVICES: Final = ("mtia", "xpu", "hpu", "mlu", "privateuse1", "glow")
"""How the categories of events of other accelerators begin."""
_CHROME: Final[Sequence[tuple[str, str]]] = (
    (
        '"BeginNs"',
        "is a Chrome trace of rocprof v1; give its results.csv, or a trace of rocprofv3",
    ),
    ('"KernelExecution"', "is a Chrome trace made from an RPD file; give the .rpd file itself"),
    ('"name":"Hip ', "is a Chrome trace made from an RPD file; give the .rpd file itself"),
)


class NoActivityError(DataError):
    """A trace that is whole and has no GPU activity."""


class OnlyRangesError(DataError):
    """A Kineto trace has counters of CUPTI ranges, but no activity of a GPU."""


def what_is(head: FileHead) -> str:
    name = head.path.name.casefold()
    for suffix, meaning in _BY_SUFFIX.items():
        if has_ending(name, (suffix,)):
            return meaning
    if head.magic.startswith(_ZIP_MAGIC):
        return _zip(head)
    if not head.data:
        return head.problem or "is empty"
    for start, meaning in _BINARY:
        if head.data.startswith(start):
            return meaning.format(unpack=head.compression.unpack if head.compression else "")
    if head.data.startswith(_TAR_MAGIC, _TAR_MAGIC_PLACE):
        member = head.data[:_TAR_NAME_BYTES].partition(b"\0")[0].decode("utf-8", "replace")
        return (
            f"is a tar archive ({_shortened(member)} …); unpack it (tar -xf FILE -C DIR) and "
            "open the directory"
        )
    if head.is_json:
        return _json(head)
    return _text(head) if head.text else "is binary, of no known format"


def why_no_activity(head: FileHead, counts: Mapping[str, int], launches: int = 0) -> str:
    """Return why a Chrome trace, with these events per category, has no GPU activity.

    `launches` are calls that launched some.
    """
    for mark, meaning in _CHROME:
        if mark in head.text:
            return f"{meaning}."
    if counts.get(CUPTI_RANGE):
        return f"has {counts[CUPTI_RANGE]} ranges with CUPTI counters, but no kernel."
    other = next((each for each in counts if each.startswith(_OTHER_DEVICES)), "")
    if other:
        return f"is a trace of another accelerator ({other}), which is not supported."
    total = sum(counts.values())
    if '"ph"' not in head.text:
        return "holds no events of a profiler trace."
    if not any(count for category, count in counts.items() if category):
        return (
            f"is a Chrome trace of another tool: none of its {total} events has a category, as "
            "the PyTorch profiler writes it."
        )
    if launches:
        return (
            f"has {launches:,} launches and no GPU activity: the profiler recorded only the host. "
            "Check that no other profiler uses the GPU, that the profiler's library (CUPTI, "
            "rocprofiler) fits the driver, and what it printed when it started."
        )
    return (
        f"has no GPU activity: {total} events, none of them a kernel, copy or memset. Was the "
        "profiler started with ProfilerActivity.CUDA?"
    )


def _zip(head: FileHead) -> str:
    """Tell an archive by its first member, whose name follows a header of 30 bytes."""
    with head.path.open("rb") as file:
        header = file.read(_ZIP_HEADER_BYTES)
        name = file.read(int.from_bytes(header[26:28], "little")).decode("utf-8", "replace")
    return (
        f"is a zip archive ({_shortened(name)} …); unpack it (unzip FILE -d DIR) and open the "
        "directory"
    )


def _json(head: FileHead) -> str:
    data = head.data
    start = skip_space(data)
    if data[start : start + 1] == b"[":
        return "is a JSON list, but not of trace events"
    keys = [member.key for member in members(data, start + 1, stop_at="traceEvents")]
    for known, meaning in _JSON:
        if known.issubset(keys):
            return meaning
    if PRINTED.match(head.text):
        return "is JSON that Chopper printed, not a trace; open the run itself"
    if "traceEvents" in keys:
        return "is a Chrome trace in JSON"
    return f"is JSON of no known tool{f' (keys {_listed(keys)})' if keys else ''}"


def _text(head: FileHead) -> str:
    for pattern, meaning in _TEXT:
        if re.match(pattern, head.text, re.IGNORECASE):
            return meaning
    first = next((cells for cells in head.rows if any(cells)), [])
    line = next((line.strip() for line in head.lines if line.strip()), "")
    if len(first) > 1 and _NUMBERS.fullmatch(line):
        return "has no headings that say what its numbers are"
    table = [each for each in head.lines[:HEADING_LINES] if each.strip() and each[0] != "#"][:2]
    for mark, name in _DELIMITERS.items():
        if len(table) > 1 and table[0].count(mark) == table[1].count(mark) > 1:
            shown = ", ".join(map(_shortened, table[0].split(mark)[:_MAX_KEYS]))
            return (
                f"is a table separated by {name} ({shown} …); write it with commas, and "
                "numbers with points"
            )
    if len(first) > 1 and len(head.rows) > 1 and len(head.rows[1]) == len(first):
        return f"is a table of no known tool (columns {_listed(first)})"
    return f"is text of no known tool ({_shortened(line)!r})" if line else "is empty"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(_shortened, names[:_MAX_KEYS]))
    return shown + (" …" if len(names) > _MAX_KEYS else "")


def _shortened(text: str) -> str:
    """Return the start of a text from the file, without what could act on a terminal."""
    short = cut_text(text, _MAX_SHOWN)
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in short)
