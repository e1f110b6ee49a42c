"""What the manifests of a recorded run know: hosts and GPUs of ranks, clocks, and the ending."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.telemetry_clock import KnownClocks
from chopper_core.model.inputs import Gpu, RecordingSummary
from chopper_core.model.run import Run
from chopper_core.model.units import utc_text
from chopper_core.record.anchors import clock_steps, offset_between
from chopper_core.record.manifest import (
    MANIFEST,
    NODES,
    PROCESSES,
    TRIGGER,
    Manifest,
    RecordedNode,
    RecordedProcess,
    read_manifest,
    recorded_parts,
)
from chopper_core.sources.signals import ClockDomain
from chopper_core.util.errors import DataError

_CLOCKS: Final = (ClockDomain.EPOCH, ClockDomain.BOOTTIME, ClockDomain.MONOTONIC)


_OWN: Final = (MANIFEST, NODES, PROCESSES, TRIGGER)


class RecordedRun(Struct, frozen=True):
    """The manifests at the paths of a run, by directory: one, or one per node."""

    manifests: Mapping[Path, Manifest]
    unread: tuple[tuple[str, str], ...]
    """Damaged manifests, and why they can't be read."""

    def is_part(self, path: str) -> bool:
        """Whether a file is a manifest's, and no input of its own."""
        own = PurePath(path)
        return any(
            own.is_relative_to(folder) and next(iter(own.relative_to(folder).parts), "") in _OWN
            for folder in (*self.manifests, *(Path(path).parent for path, _ in self.unread))
        )

    @property
    def has_ended(self) -> bool:
        """Whether all manifests say that the recording is over."""
        manifests = self.manifests.values()
        return bool(manifests) and all(each.ended_ns is not None for each in manifests)

    @property
    def has_devices(self) -> bool:
        """Whether some process used a GPU."""
        every = (each for manifest in self.manifests.values() for each in manifest.processes)
        return any(each.device is not None for each in every)

    def node_of(self, path: Path) -> RecordedNode | None:
        """The node whose sampler wrote a file; of a run on one node, that one."""
        nodes = [node for manifest in self.manifests.values() for node in manifest.nodes]
        for folder, manifest in self.manifests.items():
            for node in manifest.nodes:
                if any(folder / name == path for name in node.files):
                    return node
        return nodes[0] if len(nodes) == 1 else None

    def processes(self) -> dict[int, RecordedProcess]:
        """The process of each rank; a single one without a rank wrote the trace of rank 0."""
        every = [each for manifest in self.manifests.values() for each in manifest.processes]
        ranks = {each.rank: each for each in every if each.rank is not None}
        alone = [each for each in every if each.windows]
        return ranks or ({0: alone[0]} if len(alone) == 1 else {})

    def gpus_of(self, path: Path, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
        """The GPUs of the host of a file; all of them where that is unknown."""
        node, processes = self.node_of(path), self.processes()
        own = [
            gpu
            for gpu in gpus
            if node and gpu.rank in processes and processes[gpu.rank].host == node.host
        ]
        return own or gpus

    def offsets(self, path: Path, to: ClockDomain, at_ns: int) -> KnownClocks:
        """What to add to stamps on each clock of a file's host to get times on the run's."""
        node = self.node_of(path)
        if node is None:
            return {}
        found = {}
        for clock in _CLOCKS:
            offset = offset_between(node.anchors, clock.value, to.value, at_ns)
            if offset is not None:
                within = f"within {offset.uncertainty_ns / 1e3:.1f} µs"
                why = f"known from {offset.anchors} anchors of {node.host}, {within}"
                found[clock] = offset.offset_ns, why
        return found


def recorded_at(paths: Sequence[Path]) -> RecordedRun | None:
    """The manifests in directories, or one level below them; None without any."""
    manifests: dict[Path, Manifest] = {}
    unread = []
    for folder in filter(Path.is_dir, paths):
        places = [folder, *recorded_parts(folder)]
        if not (folder / MANIFEST).is_file():
            places = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
        for place in places:
            try:
                if (manifest := read_manifest(place)) is not None:
                    manifests[place] = manifest
            except DataError as error:
                unread.append((str(place / MANIFEST), str(error)))
    return RecordedRun(manifests, tuple(unread)) if manifests or unread else None


def with_recording(run: Run, recorded: RecordedRun) -> Run:
    """The run with the hosts of its ranks and the PCI addresses of its GPUs."""
    processes = recorded.processes()
    sources = (
        replace(source, host=source.host or processes[source.rank].host)
        if source.rank in processes
        else source
        for source in run.sources
    )
    addresses = {
        rank: address for rank, each in processes.items() if (address := _address(each, recorded))
    }
    ranks = [gpu.rank for gpu in run.gpus]
    gpus = (
        replace(gpu, pci=addresses[gpu.rank])
        if gpu.rank in addresses and not gpu.pci and ranks.count(gpu.rank) == 1
        else gpu
        for gpu in run.gpus
    )
    return replace(run, sources=tuple(sources), gpus=tuple(gpus))


def described(run: Run, recorded: RecordedRun) -> Run:
    """The run with its recording for people, and without its files among those that aren't read."""
    skipped = tuple(item for item in run.skipped if not recorded.is_part(item[0]))
    recordings = tuple(_recording(*each) for each in recorded.manifests.items())
    failed = (*run.failed, *recorded.unread)
    return replace(run, skipped=skipped, recordings=recordings, failed=failed)


def without_traces(name: str, recorded: RecordedRun) -> str:
    """Why a recording has nothing to open."""
    manifests = recorded.manifests.items()
    problems = [each for folder, manifest in manifests for each in _problems(folder, manifest)]
    unread = [why for _, why in recorded.unread]
    return f"{name} is a recording with no traces: {'; '.join([*problems, *unread])}"


def _address(process: RecordedProcess, recorded: RecordedRun) -> str:
    """The PCI address of a process's GPU: torch's, else that of the library's GPU of its UUID."""
    if process.device is None:
        return ""
    if process.device.pci or not process.device.uuid:
        return process.device.pci
    nodes = (node for manifest in recorded.manifests.values() for node in manifest.nodes)
    gpus = (gpu for node in nodes if node.host == process.host for gpu in node.gpus)
    own = process.device.uuid.casefold()
    return next((gpu.pci for gpu in gpus if gpu.uuid.casefold().removeprefix("gpu-") == own), "")


def _recording(folder: Path, manifest: Manifest) -> RecordingSummary:
    import shlex

    torches = dict.fromkeys(each.torch for each in manifest.processes if each.torch)
    versions = (*(("torch", each) for each in torches), *manifest.versions.items())
    facts = {
        "command": shlex.join(manifest.command),
        "directory": manifest.directory,
        "started": utc_text(manifest.started_ns) if manifest.started_ns else "",
        "took": _took(manifest),
        "overhead": _overhead(manifest),
        "revision": _revision(manifest),
        "versions": ", ".join(" ".join(each) for each in versions),
        "environment": ", ".join("=".join(each) for each in manifest.environment.items()),
    }
    for node in manifest.nodes:
        models = dict.fromkeys(gpu.name or "GPU" for gpu in node.gpus)
        # A tool's rows name the GPUs, where no library lists them.
        nothing = f"GPUs as in {node.files[0]}" if node.samples and node.files else "no GPU"
        gpus = f"{len(node.gpus)} x {', '.join(models)}" if node.gpus else nothing
        how = f", {node.samples:,} samples through {node.library}" if node.library else ""
        driver = f", {node.driver}" if node.driver else ""
        ended = "" if node.returncode is None else f", exit code {node.returncode}"
        facts[f"node {node.host}"] = f"{gpus}{driver}{how}, {len(node.anchors)} anchors{ended}"
    for name, each in manifest.passes.items():
        facts[name] = f"{each.state}: {' '.join(each.counters)}"
    notes = [f"{node.host}: {note}" for node in manifest.nodes for note in node.notes]
    return RecordingSummary(
        {name: text for name, text in facts.items() if text},
        tuple(_problems(folder, manifest)),
        (*notes, *manifest.notes),
        tuple(node.host for node in manifest.nodes),
        f"Slurm {job}" if (job := manifest.environment.get("SLURM_JOB_ID")) else "",
        slower_pct=_times(manifest).get("pct"),
    )


def _took(manifest: Manifest) -> str:
    if manifest.ended_ns is None:
        return ""
    seconds = (manifest.ended_ns - manifest.started_ns) / 1e9
    return f"{seconds:.0f} s, exit code {manifest.returncode}"


def _times(manifest: Manifest) -> Mapping[str, int | float]:
    """The step inside and outside of windows; a killed recording has what its processes know."""
    from chopper_core.record.states import overhead

    return manifest.overhead or overhead(manifest.processes)


def _overhead(manifest: Manifest) -> str:
    """How much longer steps take in a window."""
    if not (found := _times(manifest)):
        return ""
    inside_ms, outside_ms = (found.get(name, 0) / 1e6 for name in ("inside_ns", "outside_ns"))
    counts = f"medians of {found.get('steps_inside', 0)} and {found.get('steps_outside', 0)} steps"
    times = f"a step takes {inside_ms:.4g} ms in a window, {outside_ms:.4g} ms outside"
    return f"{found.get('pct', 0):+g} %: {times} ({counts})"


def _revision(manifest: Manifest) -> str:
    revision = str(manifest.git.get("revision", ""))
    return f"{revision}, with changes" if revision and manifest.git.get("changed") else revision


def _problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Sentences on what the recording lacks."""
    from chopper_core.record.states import recording_problems

    if manifest.ended_ns is None:
        yield "the recording has no end: it was killed, or is still running"
    elif manifest.returncode:
        yield f"the recorded command ended with exit code {manifest.returncode}"
    has_windows = manifest.options.get("steps") != 0
    for node in manifest.nodes:
        if node.returncode and node.returncode != manifest.returncode:
            yield f"the command of node {node.host} ended with exit code {node.returncode}"
    yield from recording_problems(folder, manifest.processes, has_windows=has_windows)
    for node in manifest.nodes:
        yield from (f"node {node.host}: {step}" for step in clock_steps(node.anchors))
    for name, each in manifest.passes.items():
        if each.state == "failed":
            yield f"{name} of the counters failed: {each.reason}"
