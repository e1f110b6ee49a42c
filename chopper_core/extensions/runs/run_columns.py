"""The figures of a run in a table of runs: each is a figure of one of its views.

A figure is computed nowhere else than in its view, and reduced to one number: its total, or the
mean, smallest or largest of its rows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Reduces, column, computed_column, metric_named
from chopper_core.model.settings import KNOWN
from chopper_core.model.units import Unit

TOTAL: Final = "total"
MEAN: Final = "mean"
LEAST: Final = "smallest"
LARGEST: Final = "largest"
_WORDS: Final = {
    TOTAL: "The total of {}.",
    MEAN: "The mean of {} over its rows.",
    LEAST: "The smallest {} of its rows.",
    LARGEST: "The largest {} of its rows.",
}
WORLD: Final = "world"
"""The setting of the number of ranks of the job, of which some may have no data."""
TREE: Final = "explore"
"""The name of the tree as a view."""
LOWER: Final = -1
HIGHER: Final = 1


class RunColumn(Struct, frozen=True):
    """A column of a table of runs."""

    metric: Metric
    better: int = 0
    """`LOWER` or `HIGHER` where one is better than the other."""
    view: str = ""
    """The view that has it."""
    name: str = ""
    """Its name there."""
    how: str = TOTAL
    """How the view's figure becomes one of the run."""


def _of_view(
    name: str, unit: str, title: str, better: int, view: str, figure: str, how: str, text: str = ""
) -> RunColumn:
    source = f"`{figure}` of the view {view}" if view != TREE else f"`{figure}` of the tree"
    definition = f"{text} {_WORDS[how].format(source)}".strip()
    missing = NO_SIGNAL if view == "power" else ""
    metric = computed_column(name, unit, title, definition, missing_because=missing)
    return RunColumn(metric, better, view, figure, how)


def _derived(name: str, unit: str, title: str, better: int, text: str, missing: str) -> RunColumn:
    return RunColumn(computed_column(name, unit, title, text, missing_because=missing), better)


_NO_BATCH: Final = "the settings name no global batch (--set global_batch=128)"
_NO_TOKENS: Final = (
    "neither the shapes in the trace nor the settings (global_batch and sequence) give the tokens"
)
NO_SIGNAL: Final = "the telemetry of some of the GPUs lacks it"
_OR_ENERGY: Final = "or j_per_step is unknown"
# fmt: off
_OWN: Final = (
    _of_view("step_time_ns", "ns", "step", LOWER, "throughput", "iteration_ns", TOTAL,
             "Step time: the mean over the complete iterations and GPUs."),
    _derived("samples_per_s", "1/s", "samples", HIGHER,
             "global_batch of the settings / step_time_ns.", _NO_BATCH),
    _derived("run_tokens_per_s", "tok/s", "run tok/s", HIGHER,
             "Tokens per second of the whole run: tokens of a step / step_time_ns. The tokens of"
             " a step are global_batch x sequence of the settings; else tokens_per_s of a GPU x "
             "all ranks.", _NO_TOKENS),
    _of_view("tokens_per_s", "tok/s", "tok/s/GPU", HIGHER, "throughput", "tokens_per_s", TOTAL,
             "Tokens per second and GPU."),
    _derived("j_per_step", "J", "step energy", LOWER,
             "Energy of a step: the total of `iteration_energy_j` of the view power.",
             "telemetry of power or energy doesn't cover an iteration on all GPUs"),
    _derived("j_per_token", "J", "token energy", LOWER,
             "j_per_step / tokens of a step (see run_tokens_per_s).",
             f"{_NO_TOKENS}, {_OR_ENERGY}"),
    _derived("tokens_per_j", "tok/J", "tok/J", HIGHER, "Tokens of a step / j_per_step.",
             f"{_NO_TOKENS}, {_OR_ENERGY}"),
    _derived("j_per_sample", "J", "sample energy", LOWER,
             "j_per_step / global_batch of the settings.", f"{_NO_BATCH}, {_OR_ENERGY}"),
    _derived("samples_per_s_mj", "1/(s·MJ)", "samples", HIGHER,
             "samples_per_s / j_per_step in MJ: CharLLM-PPT's efficiency.",
             f"{_NO_BATCH}, {_OR_ENERGY}"),
    _of_view("gpu_power_w", "W", "W", LOWER, "power", "mean_power_w", MEAN,
             "Power of a GPU over time."),
    _of_view("peak_power_w", "W", "peak W", LOWER, "power", "peak_power_w", LARGEST),
    _of_view("gpu_hotspot_c", "°C", "°C", LOWER, "power", "mean_hot_c", MEAN,
             "Temperature of a GPU over time: of its hottest spot, else of the edge."),
    _of_view("peak_hotspot_c", "°C", "peak °C", LOWER, "power", "hottest_c", LARGEST),
    _of_view("gpu_mhz", "MHz", "gfx MHz", HIGHER, "power", "mean_gfx_mhz", MEAN,
             "Clock of the compute units of a GPU over time."),
    _of_view("low_mhz", "MHz", "low MHz", HIGHER, "power", "p05_gfx_mhz", LEAST,
             "5th percentile over time of the slowest GPU's clock."),
    _of_view("lowest_mhz", "MHz", "lowest MHz", HIGHER, "power", "lowest_gfx_mhz", LEAST),
    _of_view("gpu_throttled_pct", "%", "throttled", LOWER, "power", "throttled_pct", MEAN),
    _of_view("gpu_low_clock_pct", "%", "low clock", LOWER, "power", "low_clock_pct", MEAN,
             "Throttling of a run of telemetry without limiters."),
    _of_view("peak_bytes", "B", "peak mem", LOWER, TREE, "peak_bytes", TOTAL,
             "The most that the framework allocated on a GPU."),
    _of_view("peak_vram_bytes", "B", "peak VRAM", LOWER, "power", "peak_vram_bytes", LARGEST,
             "The most memory in use on a GPU, by telemetry."),
    _of_view("exposed_comm_pct", "%", "exposed", LOWER, "overheads", "exposed_comm_pct", TOTAL,
             "Exposed communication in % of the GPUs' time."),
    _of_view("idle_pct", "%", "idle", LOWER, "overheads", "idle_pct", TOTAL),
    _of_view("bubble_pct", "%", "bubble", LOWER, "pipeline", "bubble_pct", TOTAL),
    _of_view("mfu_pct", "%", "MFU", HIGHER, "overheads", "theoretical_pct", TOTAL,
             "Model FLOPs utilisation: the time that the model's FLOPs take at peak, in % of the"
             " time."),
    _derived("window_ns", "ns", "window", 0,
             "The time of the samples of a run of telemetry alone: the total of `window_ns` of "
             "the overview.", "the run has a trace"),
    _derived("window_energy_j", "J", "energy", LOWER,
             "The energy of all GPUs in the window: the total of `sampled_energy_j` of the "
             "overview.", "the run has a trace, or no power of some GPU"),
    _derived("straggler", "", "straggler", 0,
             "The GPU that the others wait for (see the view ranks).",
             "no GPU delays the others"),
    _derived("straggler_delay_ns", "ns", "delay", LOWER,
             "How long the straggler delays an iteration: its `delay_ns` of the view ranks.",
             "no GPU delays the others, or no collective is complete"),
)
# fmt: on
RUN_COLUMNS: Final = {each.metric.name: each for each in _OWN}
"""The figures of a run by name, the most important first."""
GPUS: Final = column("""gpus | | GPUs
    The number of GPUs with data.""")
STATUS: Final = column("""status | | status
    ok; short: no complete iteration; partial: some files, or parts of them, can't be read;
    failed: none can.""")  # fmt: skip
REASON: Final = column("""reason | | reason
    Why a run is short, partial or failed.
    missing: the run is ok""")  # fmt: skip
DEFAULT: Final = (
    "step_time_ns",
    "run_tokens_per_s",
    "samples_per_s",
    "j_per_step",
    "j_per_token",
    "samples_per_s_mj",
    "gpu_power_w",
    "peak_power_w",
    "gpu_hotspot_c",
    "peak_hotspot_c",
    "window_ns",
    "window_energy_j",
    "gpu_mhz",
    "low_mhz",
    "gpu_throttled_pct",
    "gpu_low_clock_pct",
    "peak_bytes",
    "peak_vram_bytes",
    "exposed_comm_pct",
    "idle_pct",
    "bubble_pct",
    "mfu_pct",
    "straggler",
    "straggler_delay_ns",
)
"""The default columns among them; one that no run has is left out."""


def setting_column(name: str) -> Metric:
    if name == WORLD:
        text = "The number of ranks of the job, according to its traces."
        return computed_column(name, "", "ranks", text, missing_because="no trace gives it")
    text = f"The setting {name}: from the command line, a manifest, the job's file or the name."
    return computed_column(
        name, "", KNOWN.get(name, name), text, missing_because="no source gives it"
    )


def is_better(name: str) -> int:
    """Whether lower or higher figures of a column are better; 0 where neither is."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].better
    known = METRICS.get(name)
    if known is None:
        return 0
    if known.unit in (Unit.TFLOPS, Unit.TOKENS_PER_S) or name in ("busy_pct", "gfx_mhz"):
        return HIGHER
    return LOWER if known.unit in (Unit.NS, Unit.JOULES, Unit.WATTS, Unit.CELSIUS) else 0


def known_column(name: str) -> Metric:
    """The column of a name in a table of runs: its own, or any metric; raises UsageError."""
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].metric
    metric = metric_named(name)
    # Each from one run: sums over runs don't make a total.
    return replace(metric, reduces=Reduces.NONE)


def columns_table() -> str:
    metrics = (GPUS, *(each.metric for each in RUN_COLUMNS.values()), STATUS, REASON)
    rows = [f"| `{each.name}` | {each.unit} | {each.definition} |" for each in metrics]
    return "\n".join(["| column | unit | definition |", "| :-- | :-- | :-- |", *rows])
