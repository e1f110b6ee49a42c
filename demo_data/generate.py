#!/usr/bin/env python3
"""Generates the demonstration runs: FSDP2 and FSDP1 training of Llama-3-8B on 8 x MI300X.

Traces of all ranks, hardware counters of two GPUs, telemetry, and the truth about them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from generator import counters, pipeline, telemetry  # noqa: E402
from generator.agents import agents_csv  # noqa: E402
from generator.capture import capture  # noqa: E402
from generator.cluster import Cluster  # noqa: E402
from generator.config import Config  # noqa: E402
from generator.constants import FSDP1  # noqa: E402
from generator.cpu import CPU_FILE, cpu_csv  # noqa: E402
from generator.kineto import render  # noqa: E402
from generator.records import Collective, GpuHistory, RankTrace  # noqa: E402
from generator.serialised import profile  # noqa: E402
from generator.truth import Facts, true_labels, truth  # noqa: E402

DEFAULTS = Config()
PIPELINE = "pipeline"
"""The run of generator/pipeline.py: tp 2 x pp 4 x dp 4, with a long stage and a hot slot."""
RUNS = {
    "fsdp2": DEFAULTS,
    "fsdp1": Config(seed=20251, counters=False, strategy=FSDP1),
    "memory": Config(2, 3, 8, seed=20252, counters=False, telemetry=False, clean=True, memory=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run as its profilers saw it."""

    config: Config
    gpus: tuple[GpuHistory, ...]
    traces: tuple[RankTrace, ...]
    collectives: tuple[Collective, ...]

    def truth(self) -> Facts:
        """The facts of this run."""
        return truth(self.config, self.gpus, self.traces, self.collectives)

    def tables(self) -> Iterator[tuple[str, str]]:
        """The path and the text of every file of counters and telemetry."""
        if self.config.telemetry:
            sensors = [telemetry.signals(self.config, gpu) for gpu in self.gpus]
            yield telemetry.SAMPLES_FILE, telemetry.samples_csv(self.config, sensors)
            yield telemetry.MONITOR_FILE, telemetry.monitor_csv(self.config, sensors)
            yield CPU_FILE, cpu_csv(self.config, self.traces)
        if self.config.counters:
            profiles = [profile(self.config, self.gpus[rank]) for rank in self.config.counter_ranks]
            yield counters.agents_path(profiles[0][0]), agents_csv()
            for passes in profiles:
                for each in passes:
                    yield counters.counters_path(each), counters.counters_csv(each)


def simulate(config: Config) -> Run:
    """Simulates the training of all ranks."""
    cluster = Cluster(config)
    cluster.run()
    return Run(
        config,
        tuple(gpu.history() for gpu in cluster.gpus),
        tuple(capture(config, gpu.host) for gpu in cluster.gpus),
        tuple(cluster.collectives),
    )


def generate(
    out: Path,
    *,
    ranks: int = DEFAULTS.ranks,
    iterations: int = DEFAULTS.iterations,
    layers: int = DEFAULTS.layers,
    seed: int = DEFAULTS.seed,
    annotations: bool = True,
    recompute: bool = False,
    with_counters: bool = True,
    with_telemetry: bool = True,
    strategy: str = DEFAULTS.strategy,
    clean: bool = False,
    labels: Path | None = None,
) -> None:
    """Writes the run's files and truth.json into `out`, and the true labels into `labels`."""
    config = Config(
        ranks,
        iterations,
        layers,
        seed,
        annotations,
        recompute,
        with_counters,
        with_telemetry,
        strategy,
        clean,
    )
    write(out, config, labels)


def write(out: Path, config: Config, labels: Path | None = None) -> None:
    """Writes what `config` says, as `generate` does."""
    run = simulate(config)
    traces = {
        f"rank{trace.rank}.json.gz": _write(
            out / f"rank{trace.rank}.json.gz", render(config, trace)
        )
        for trace in run.traces
    }
    tables = {path: _write(out / path, text) for path, text in run.tables()}
    facts = run.truth() | {"sha256_of_text": traces, "sha256_of_tables": tables}
    (out / "truth.json").write_text(_compact_json(facts), encoding="utf-8")
    if labels is not None:
        rows = {str(trace.rank): true_labels(trace) for trace in run.traces}
        labels.write_text(json.dumps(rows), encoding="utf-8")


def _write(path: Path, text: str) -> str:
    """Writes a file, packed if its name says so, and gives the digest of its text."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        _write_gzip(path, content)
    else:
        path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _write_gzip(path: Path, content: bytes) -> None:
    # gzip.compress() writes other headers in other Python versions; GzipFile does not.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
    ):
        packed.write(content)


def _compact_json(facts: Facts) -> str:
    """JSON with a line for each fact, and for each collective."""
    collectives = ",\n".join(f"  {json.dumps(row)}" for row in facts["collectives"])
    rest = json.dumps({k: v for k, v in facts.items() if k != "collectives"}, indent=1)
    return f'{rest[:-2]},\n "collectives": [\n{collectives}\n ]\n}}\n'


def main() -> None:
    """Reads the command line and generates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", choices=(*RUNS, PIPELINE), default="fsdp2")
    for name, help_ in (
        ("ranks", None),
        ("iterations", "full ones, after the first, which the trace of fsdp2 has the end of"),
        ("layers", None),
        ("seed", None),
    ):
        parser.add_argument(f"--{name}", type=int, help=help_)
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="usually demo_data/RUN")
    parser.add_argument(
        "--no-annotations",
        action="store_true",
        help="leave out the iteration, layer and operation annotations",
    )
    parser.add_argument(
        "--recompute", action="store_true", help="recompute activations in backward"
    )
    parser.add_argument("--no-counters", action="store_true", help="write no counter files")
    parser.add_argument("--no-telemetry", action="store_true", help="write no telemetry")
    parser.add_argument("--clean", action="store_true", help="plant nothing")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="also write every GPU activity's true labels"
    )
    for name in ("tp", "pp", "dp", "microbatches"):
        parser.add_argument(f"--{name}", type=int, help=f"of {PIPELINE}")
    parser.add_argument(
        "--no-groups", action="store_true", help=f"of {PIPELINE}: name no process groups"
    )
    args = parser.parse_args()
    if args.run == PIPELINE:
        if args.out is None:
            parser.error(f"{PIPELINE} needs --out: it isn't part of the repository")
        given = {name: getattr(args, name) for name in ("tp", "pp", "dp", "microbatches", "layers")}
        given["steps"] = args.iterations
        known = {name: value for name, value in given.items() if value is not None}
        config = pipeline.fitting(pipeline.Pipeline(**known, names_groups=not args.no_groups))
        facts = pipeline.write(args.out, config)
        (args.out / "truth.json").write_text(f"{json.dumps(facts)}\n", encoding="utf-8")
        return
    try:
        sizes = ("ranks", "iterations", "layers", "seed")
        given = {name: getattr(args, name) for name in sizes if getattr(args, name) is not None}
        preset = RUNS[args.run]
        config = replace(
            preset,
            **given,
            annotations=not args.no_annotations,
            recompute=args.recompute,
            counters=preset.counters and not args.no_counters,
            telemetry=preset.telemetry and not args.no_telemetry,
            clean=preset.clean or args.clean,
        )
        write(args.out or HERE / args.run, config, args.labels)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
