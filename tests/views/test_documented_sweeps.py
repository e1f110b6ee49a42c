"""docs/figures.md: recomputation, overlap and microbatches, on a sweep whose answers are planted.

Times follow from the schedule of each experiment, watts, °C and MHz from what its telemetry is
made of; energies are added up here sample by sample.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.extensions.runs.run_rows import Reading
from chopper_core.extensions.runs.run_set import RunSet, open_runs
from chopper_core.model.address import parse
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.charllm import (
    IB_STEPS,
    MICROBATCHES,
    OPTIONS,
    SAMPLE_NS,
    START_S,
    STEPS,
    joules,
    sweep,
    watts,
    write_ib,
)
from tests.pipelines import Pipeline
from tests.test_figures import rows

EVERY = {**OPTIONS, **MICROBATCHES}
TOKENS, RANKS, PER_STAGE = 128 * 4096, 8, 4
SETTINGS = "model:\n  global_batch_size: 128\n  encoder_seq_length: 4096\n"
BASE = "gpt3-175b_1_00000"
NEAR = 0.01


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[RunSet, dict[str, Truth]]:
    """The runs, and what is planted in each."""
    folder = tmp_path_factory.mktemp("charllm") / "sweep"
    truths = {name: Truth(folder / name, *found) for name, found in sweep(folder, SETTINGS).items()}
    for name in truths:
        write_ib(folder / name, 0, len((folder / name / "gpu_power_0.csv").open().readlines()))
    found = open_runs("SWEEP", [str(folder / name) for name in truths], jobs=1, use_cache=False)
    while found.waiting(wait=True):
        pass
    return found, truths


class Truth:
    """What is planted in one experiment, from its definition."""

    def __init__(self, folder: Path, config: Pipeline, steps_us: list[tuple[int, int]]) -> None:
        self.folder, self.config, self.planted = folder, config, EVERY[folder.name]
        ends = [START_S * 10**9 + 1000 * end for _, end in steps_us]
        begin = START_S * 10**9 + 1000 * (steps_us[0][0] + 10)
        self.steps_ns = [*zip([begin, *ends], ends, strict=False)]

    @property
    def step_ns(self) -> float:
        return (self.steps_ns[-1][1] - self.steps_ns[0][0]) / len(self.steps_ns)

    def energy(self, ranks: range = range(RANKS)) -> float:
        own = (joules(rank, *step, self.planted.more_w) for rank in ranks for step in self.steps_ns)
        return sum(own) / len(self.steps_ns)

    def products_ns(self, stage: int) -> dict[str, float]:
        """The products of a step on the traced rank of a stage, by the schedule."""
        rank = stage * PER_STAGE
        layers = self.config.microbatches * self.config.layers
        forward, backward = (
            1000.0 * layers * self.config.layer_us(rank, stage, back) for back in (False, True)
        )
        again = forward * self.config.recompute
        return {"mm": forward, "MmBackward0": backward, "mm (recompute)": again}

    def events(self, stage: int) -> list[tuple[bool, int, int]]:
        """Whether it is communication, start and duration in µs of the kernels of a trace."""
        path = self.folder / "123_kineto" / f"rank-{stage * PER_STAGE}.json"
        events = json.loads(path.read_text())["traceEvents"]
        return [
            ("nccl" in event["name"], event["ts"], event["dur"])
            for event in events
            if event["cat"] == "kernel"
        ]

    def kernels_ns(self, stage: int) -> float:
        """All kernels of a step on the traced rank of a stage, their durations added."""
        return 1000.0 * sum(took for *_, took in self.events(stage)) / len(self.steps_ns)

    def exposed_ns(self, stage: int) -> float:
        """Communication of a step next to which nothing is computed, µs by µs."""
        runs = np.zeros((2, 1 << 17), np.bool_)
        for is_comm, start, took in self.events(stage):
            runs[int(is_comm), start : start + took] = True
        return 1000.0 * float((runs[1] & ~runs[0]).sum()) / len(self.steps_ns)

    def hottest_c(self, rank: int) -> float:
        """The hottest of the eight slots of a node, and of the samples until the end."""
        samples = range(-(-(self.steps_ns[-1][1] - START_S * 10**9) // SAMPLE_NS))
        return max(50 + rank + (at * 3) % 11 for at in samples) + self.planted.more_c

    @property
    def figures(self) -> dict[str, float]:
        last = range(-(-(self.steps_ns[-1][1] - START_S * 10**9) // SAMPLE_NS))
        energy, per_step = self.energy(), self.step_ns / SAMPLE_NS
        ways = [per_step * sum(own[way] for own in IB_STEPS.values()) for way in ("rx", "tx")]
        links = [1024 * STEPS[f"nvlink_{way}_throughput"] * per_step for way in ("rx", "tx")]
        return {
            "step_time_ns": self.step_ns,
            "run_tokens_per_s": TOKENS / (1e-9 * self.step_ns),
            "gpu_power_w": energy / RANKS / (1e-9 * self.step_ns),
            "peak_power_w": watts(RANKS - 1, max(last, key=lambda at: at % 5))
            + self.planted.more_w,
            "peak_hotspot_c": self.hottest_c(RANKS - 1),
            "gpu_mhz": self.clock_mhz(),
            "j_per_token": energy / TOKENS,
            "nvlink_in_step_bytes": RANKS * links[0],
            "nvlink_token_bytes": RANKS * sum(links) / TOKENS,
            "ib_in_step_bytes": ways[0],
            "ib_token_bytes": sum(ways) / TOKENS,
        }

    def clock_mhz(self) -> float:
        """The mean over ranks and time; each sample holds until the next one."""
        begin, end = self.steps_ns[0][0], self.steps_ns[-1][1]
        total = 0.0
        for at in range(-(-(end - START_S * 10**9) // SAMPLE_NS)):
            since = START_S * 10**9 + at * SAMPLE_NS
            held = min(end, since + SAMPLE_NS) - max(begin, since)
            total += held * sum(1980 - 15 * ((at + rank) % 9) for rank in range(RANKS)) / RANKS
        return total / (end - begin) - self.planted.less_mhz


def of_runs(frame: Frame, truths: dict[str, Truth], asked: tuple[str, ...]) -> None:
    """A row per run: its figures, or those over the base's."""
    for row, name in enumerate(frame.labels):
        own, base = truths[name].figures, truths[BASE].figures
        for column in asked:
            if column == "options":
                word = {"00000": "base", "10000": "cc", "01000": "act"}[name[-5:]]
                assert frame.values[column].cell(row) == word
                continue
            stem = column.removesuffix("_x")
            expected = own[stem] / (base[stem] if column != stem else 1)
            assert frame.values[column].at(row) == pytest.approx(expected, rel=NEAR), (name, column)


def of_microbatches(frame: Frame, truths: dict[str, Truth], asked: tuple[str, ...]) -> None:
    (figure,) = asked
    assert list(frame.labels) == ["1", "2", "4"]
    (values,) = frame.values.values()
    own = [truths[name].figures[figure] for name in MICROBATCHES]
    assert values.known() == pytest.approx(own, rel=NEAR)
    assert len(set(own)) == len(own)


def of_stages(figure: Callable[[Truth, int], float]) -> Callable[..., None]:
    """A row per stage, a column per run."""

    def check(frame: Frame, truths: dict[str, Truth], asked: tuple[str, ...]) -> None:
        assert sorted(frame.labels) == ["0", "1"]
        assert {*asked} <= {*frame.values}
        for name, values in frame.values.items():
            for row, stage in enumerate(map(int, frame.labels)):
                expected = figure(truths[name], stage)
                assert values.at(row) == pytest.approx(expected, rel=NEAR), (name, stage)

    return check


def own_ranks(stage: int) -> range:
    return range(stage * PER_STAGE, (stage + 1) * PER_STAGE)


def of_operations(frame: Frame, truths: dict[str, Truth], asked: tuple[str, ...]) -> None:
    """What recomputation adds is the products of forward once more; the rest is as before."""
    assert len(frame.values) == len(OPTIONS)
    for name, values in frame.values.items():
        known = dict(zip(frame.labels, values.known(), strict=True))
        for operation in ("mm", "MmBackward0", "mm (recompute)"):
            expected = sum(truths[name].products_ns(stage)[operation] for stage in (0, 1)) / 2
            if expected:
                assert known[operation] == pytest.approx(expected, rel=NEAR), (name, operation)
            else:
                assert np.isnan(known[operation])


def of_exposed(frame: Frame, truths: dict[str, Truth], asked: tuple[str, ...]) -> None:
    for row, name in enumerate(frame.labels):
        truth = truths[name]
        exposed = sum(truth.exposed_ns(stage) for stage in (0, 1)) / 2
        assert frame.values["elapsed_ns"].at(row) == pytest.approx(truth.step_ns, rel=NEAR)
        share = 100 * exposed / truth.step_ns
        assert frame.values["exposed_comm_pct"].at(row) == pytest.approx(share, rel=NEAR)


by_stage = of_stages(lambda truth, stage: truth.kernels_ns(stage))
heat = of_stages(lambda truth, stage: truth.hottest_c(stage * PER_STAGE + PER_STAGE - 1))
energy = of_stages(lambda truth, stage: truth.energy(own_ranks(stage)))
ANSWERS: dict[str, Callable[[Frame, dict[str, Truth], tuple[str, ...]], None]] = {
    "view=runs": of_runs,
    "view=overheads": of_exposed,
    "view=kernels&by=operation": of_operations,
    "view=kernels&by=pp": by_stage,
    "view=power&by=pp&columns=iteration_energy_j": energy,
    "view=power&by=pp&columns=hottest_c": heat,
    "view=sweep": of_microbatches,
}
DOCUMENTED = [each for each in rows() if each[0].startswith("SWEEP")]


def test_documented_comparisons_have_the_planted_answers(
    planted: tuple[RunSet, dict[str, Truth]],
) -> None:
    """One test, not one each: workers that share them would each read all runs."""
    runs, truths = planted
    for address, columns in DOCUMENTED:
        (check,) = (each for view, each in ANSWERS.items() if address.startswith(f"SWEEP?{view}"))
        check(query(runs, parse(address)), truths, columns)


def test_a_sweep_waits_for_its_runs(planted: tuple[RunSet, dict[str, Truth]]) -> None:
    """Its setting may be that of runs that are still being read."""
    runs = planted[0]
    row = next(each for each in runs.reading(False).rows if each.name == BASE)
    early = replace(runs, reading=lambda wait: Reading([row], 5))
    for by in ("", "&by=microbatch"):
        found = query(early, parse(f"SWEEP?view=sweep&of=peak_power_w{by}"))
        assert (len(found), found.is_pending) == (0, True)
        assert found.notes == ("still reading 5 runs",)


def test_every_comparison_is_documented() -> None:
    found = {
        view for view in ANSWERS for address, _ in DOCUMENTED if address.startswith(f"SWEEP?{view}")
    }
    assert found == {*ANSWERS}
