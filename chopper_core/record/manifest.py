"""`run.json`, the manifest of a recorded run: what ran where, on which clocks, and how it ended.

Several processes describe a run: `chopper record` in `run.json`, the sampler of each node in
`nodes/HOST.json`, the hooks in each process in `processes/….json`. Each file is written under a
temporary name and renamed, so that a killed recording is described as far as it got; the end puts
all of them into `run.json`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from chopper_core.record.anchors import Anchor, Whole
from chopper_core.util.atomic import publish, read_small
from chopper_core.util.errors import DataError
from chopper_core.util.plugins import package_version

SCHEMA: Final = "chopper.record/1"
_MARK: Final = b'"chopper.record/'
_HEAD_BYTES: Final = 100
"""The schema comes first."""
MANIFEST: Final = "run.json"
NODES: Final = "nodes"
_JOINED: Final = ".joined"
_COUNTS: Final = ".counts"
PART: Final = "part"
"""Directories of recordings that go into one that is there, by `--join`, are numbered after it."""
PROCESSES: Final = "processes"
STEPS: Final = "steps"
RING: Final = ".ring"
"""The ending of files with each step of a process, in the folder `STEPS`."""
TRIGGER: Final = "trigger.json"
"""Asks running processes for a window."""
_ENVIRONMENT: Final = re.compile(
    r"(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_DEVICE_\w+|(?:TORCH_)?(?:NCCL|RCCL)_\w+|HSA_\w+"
    r"|GPU_MAX_HW_QUEUES|PYTORCH_\w*ALLOC_CONF|TORCHINDUCTOR_\w+|OMP_NUM_THREADS|NVTE_\w+"
    r"|SLURM_(?:JOB_ID|JOB_NUM_NODES|NNODES|NTASKS)|HIPBLASLT_\w+|TORCH_BLAS_\w+"
)
"""What of the environment is kept: nothing that names users, paths of theirs, or secrets."""
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
_MAX_VALUE: Final = 200
_PACKAGES: Final = ("chopper-tui", "amdsmi", "nvidia-ml-py", "psutil")
_GIT_S: Final = 5.0


class RecordedGpu(Struct, frozen=True, omit_defaults=True):
    """A GPU as a library or torch describes it."""

    index: Whole = -1
    """The library's number of it: other libraries and torch count otherwise."""
    pci: str = ""
    """Domain, bus, device and function: `0000:0c:00.0`."""
    uuid: str = ""
    name: str = ""
    kfd_node: Whole = -1
    memory_bytes: Whole = 0
    """0 where the library doesn't state it."""


class RecordedNode(Struct, omit_defaults=True):
    """A host of the run, by its sampler."""

    host: str
    anchors: list[Anchor] = field(default_factory=list)
    gpus: list[RecordedGpu] = field(default_factory=list)
    library: str = ""
    """What the telemetry was read with, and its version."""
    driver: str = ""
    period_ms: float = 0.0
    files: list[str] = field(default_factory=list)
    """The files of telemetry and CPU samples, below the run's directory."""
    samples: Whole = 0
    notes: list[str] = field(default_factory=list)
    """What couldn't be recorded, and why."""
    returncode: Whole | None = None
    """Of the command that `chopper record` ran on it; None where another node's started its."""


class RecordedWindow(Struct, omit_defaults=True):
    """Steps that a process recorded, from `first` to `last`."""

    first: Whole = -1
    last: Whole = -1
    state: str = ""
    """How far it got: `written` at best."""
    file: str = ""
    bytes: Whole = 0
    reason: str = ""
    """Why it has no file, or not all of its steps."""
    private: str = ""
    """The folder on its node that holds the trace until it is compressed into the run."""


class RecordedProcess(Struct, omit_defaults=True):
    """A process of the run that has the hooks, by itself."""

    host: str = ""
    pid: Whole = -1
    rank: Whole | None = None
    """None for a process that isn't a rank, such as a launcher."""
    local_rank: Whole | None = None
    world_size: Whole | None = None
    torch: str = ""
    device: RecordedGpu | None = None
    """Its GPU; `index` is torch's."""
    state: str = ""
    step: Whole = -1
    windows: list[RecordedWindow] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    step_times: dict[str, Whole] = field(default_factory=dict)
    """Median times of steps in windows and outside of them."""
    stood_down: str = ""
    """Why it records no windows; '' if it does."""
    errors: list[str] = field(default_factory=list)
    key: str = ""
    """Tells it from processes of the same number, in other containers."""


class RecordedPass(Struct, omit_defaults=True):
    """An execution of the command in which the hardware counted."""

    counters: list[str]
    state: str = "running"
    """`done` or `failed` at the end."""
    reason: str = ""
    seconds: float = 0.0


class Manifest(Struct, omit_defaults=True):
    """All that is known of a recorded run."""

    schema: str = ""
    command: list[str] = field(default_factory=list)
    directory: str = ""
    host: str = ""
    started_ns: Whole = 0
    ended_ns: Whole | None = None
    """None if the recording was killed, or is still running."""
    returncode: Whole | None = None
    versions: dict[str, str] = field(default_factory=dict)
    git: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    passes: dict[str, RecordedPass] = field(default_factory=dict)
    """Counter passes by the name of their folder."""
    nodes: list[RecordedNode] = field(default_factory=list)
    processes: list[RecordedProcess] = field(default_factory=list)
    overhead: dict[str, Whole | float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


P = TypeVar("P", RecordedNode, RecordedProcess)


def name_of_host() -> str:
    """This host's name, as part of names of files."""
    return re.sub(r"[^\w.-]", "_", os.uname().nodename.partition(".")[0]) or "host"


def start_manifest(run_dir: Path, command: Sequence[str]) -> Manifest:
    """Begin the manifest of a recording, in a directory that is made if needed; raises OSError."""
    run_dir.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        SCHEMA,
        list(command),
        directory=os.getcwd(),
        host=name_of_host(),
        started_ns=time.time_ns(),
        versions=_versions(),
        git=_git(),
        environment=_environment(),
    )
    _write(run_dir / MANIFEST, manifest)
    return manifest


def update(run_dir: Path, **parts: Any) -> Manifest:
    """Replace fields of the manifest; of mappings, their keys. Raises OSError and DataError.

    A single process writes a run's manifest: `chopper record`.
    """
    manifest = _read(run_dir / MANIFEST, Manifest)
    for name, value in parts.items():
        known = getattr(manifest, name)
        setattr(manifest, name, {**known, **value} if isinstance(known, dict) else value)
    _write(run_dir / MANIFEST, manifest)
    return manifest


def finish_manifest(run_dir: Path, rc: int) -> Manifest:
    """End the manifest: it now has what nodes and processes wrote. Raises OSError and DataError."""
    manifest = read_manifest(run_dir) or Manifest(SCHEMA)
    manifest.ended_ns, manifest.returncode = time.time_ns(), rc
    _write(run_dir / MANIFEST, manifest)
    return manifest


def publish_part(run_dir: Path, part: RecordedNode | RecordedProcess) -> None:
    """Write what a node or a process knows; raises OSError."""
    if isinstance(part, RecordedNode):
        path = run_dir / NODES / f"{part.host}.json"
    else:
        parts = (part.host, part.key, str(part.pid))
        path = run_dir / PROCESSES / f"{'-'.join(filter(None, parts))}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, part)


def join_node(run_dir: Path) -> None:
    """Say that this node runs a command of its own for a run; raises OSError."""
    (run_dir / NODES).mkdir(exist_ok=True)
    (run_dir / NODES / f".{name_of_host()}{_JOINED}").touch()


def take_part(run_dir: Path, *, is_over: bool = False) -> None:
    """Say that this node's command will run in each counter pass, or that it won't any more;
    raises OSError."""
    path = run_dir / NODES / f".{name_of_host()}{_COUNTS}"
    if is_over:
        path.unlink(missing_ok=True)
    else:
        path.touch()


def without_passes(run_dir: Path) -> list[str]:
    """The nodes that run commands of their own, and don't take part in counter passes."""
    joined, counting = (
        {path.name[1 : -len(ending)] for path in (run_dir / NODES).glob(f".*{ending}")}
        for ending in (_JOINED, _COUNTS)
    )
    return sorted(joined - counting)


def end_node(run_dir: Path, rc: int) -> None:
    """Add how the command ended to what the sampler of this node wrote; raises OSError."""
    known, _ = read_record_parts(run_dir / NODES, RecordedNode)
    host = name_of_host()
    node = next((each for each in known if each.host == host), RecordedNode(host))
    node.returncode = rc
    publish_part(run_dir, node)


def recorded_parts(run_dir: Path) -> list[Path]:
    """The parts of a directory that have a manifest, in the order of their numbers."""
    found = (path.parent for path in run_dir.glob(f"{PART}*/{MANIFEST}"))
    return sorted(found, key=lambda part: (len(part.name), part.name))


def is_ring(path: str | Path) -> bool:
    """Whether a file has the steps of a process that may go on: it changes without growing."""
    return str(path).endswith(RING)


def is_recording(run_dir: Path) -> bool:
    """Whether a directory has a manifest; a store has a file of its name, too."""
    path = run_dir / MANIFEST
    if not path.is_file():
        return False
    with suppress(OSError), path.open("rb") as file:
        return _MARK in file.read(_HEAD_BYTES)
    return True


def read_manifest(run_dir: Path) -> Manifest | None:
    """The manifest with the parts next to it, which are newer; None for another directory.

    Parts that can't be read are named in its notes. Raises DataError for a damaged `run.json`.
    """
    if not is_recording(run_dir):
        return None
    manifest = _read(run_dir / MANIFEST, Manifest)
    nodes, unread = read_record_parts(run_dir / NODES, RecordedNode)
    processes, others = read_record_parts(run_dir / PROCESSES, RecordedProcess)
    hosts = {node.host for node in nodes}
    known = {(each.host, each.key, each.pid) for each in processes}
    manifest.nodes = [*(each for each in manifest.nodes if each.host not in hosts), *nodes]
    manifest.processes = [
        *(each for each in manifest.processes if (each.host, each.key, each.pid) not in known),
        *processes,
    ]
    manifest.notes = list(dict.fromkeys((*manifest.notes, *unread, *others)))
    return manifest


def read_record_parts(folder: Path, kind: type[P]) -> tuple[list[P], list[str]]:
    """The parts in a folder, and what can't be read of them."""
    found, notes = [], []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            found.append(_read(path, kind))
        except DataError as error:
            notes.append(str(error))
    return found, notes


T = TypeVar("T", Manifest, RecordedNode, RecordedProcess)


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_small(path), type=kind)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} isn't a manifest of a recorded run: {error}.") from error


def _write(path: Path, content: Manifest | RecordedNode | RecordedProcess) -> None:
    publish(path, msgspec.json.format(msgspec.json.encode(content), indent=1))


def _versions() -> dict[str, str]:
    import platform

    found = {name: package_version(name) for name in _PACKAGES}
    found |= {"python": platform.python_version(), "kernel": os.uname().release}
    return {name: text for name, text in found.items() if text}


def _environment() -> dict[str, str]:
    return {
        name: value[:_MAX_VALUE]
        for name, value in sorted(os.environ.items())
        if _ENVIRONMENT.fullmatch(name) and not _SECRET.search(name)
    }


def _git() -> dict[str, Any]:
    """The revision of the working directory, and whether files differ from it; {} without one."""
    import subprocess

    def answer(*arguments: str) -> str:
        return subprocess.run(
            # A repository may name a program that git runs to look for changes.
            ("git", "-c", "core.fsmonitor=false", *arguments),
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout.strip()

    try:
        revision = answer("rev-parse", "HEAD")
        changed = answer("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"revision": revision, "changed": bool(changed)}
