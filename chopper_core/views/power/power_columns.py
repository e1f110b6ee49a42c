"""The columns of the power view, and the energy of iterations and tokens."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import METRICS, Metric, Scope, column, computed_column
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.tokens import tokens_in

_TIME: Final = (
    "over the scope's time on the GPU: of iterations from the first start to the last end, of "
    "deeper levels while any activity runs"
)
_NEEDS: Final = "no such telemetry of the GPU in the scope's time"


def _over_time(name: str, unit: str, title: str, what: str) -> Metric:
    text = f"{what}, {_TIME}"
    if name.startswith("mean_") and name != "mean_hot_c":
        # A metric of the same signal weights by activities: another figure of the same GPU.
        text += f"; {name.removeprefix('mean_')} is the mean over the durations of the activities"
    return computed_column(
        name, unit, title, f"{text}.", source="telemetry", missing_because=_NEEDS
    )


POWER: Final = _over_time("mean_power_w", "W", "mean power", "Mean power of the socket")
POWER_HIGH: Final = _over_time("p95_power_w", "W", "p95", "95th percentile of the power")
PEAK: Final = _over_time("peak_power_w", "W", "peak", "The largest sample of the power")
PEAK_AT: Final = column(f"""peak_at_ns | ns | peak at
    Time of that sample: the middle of its period, from the run's first activity on.
    missing: {_NEEDS}
    source: telemetry""")
POWER_DEVIATION: Final = _over_time("sd_power_w", "W", "± power", "Standard deviation of the power")
ROLLING_POWER: Final = _over_time(
    "rolling_power_w",
    "W",
    "rolling p95",
    "Mean of the rolling 0.95 quantile of the power's samples (of=window:MS, 100 ms by default)",
)
POWER_RATIO: Final = column(f"""power_x | x | of largest
    mean_power_w over that of the GPU with the largest.
    missing: {_NEEDS}
    source: telemetry""")
LIMIT: Final = column("""limit_w | W | limit
    The power cap in the telemetry, mean over the scope's time; else the product's power in
    hardware.toml.
    missing: no power cap in the telemetry, and the GPU is not in hardware.toml
    source: telemetry or hardware.toml""")
AT_LIMIT: Final = column(f"""at_limit_pct | % | at limit
    Share of the time with power in which it is at 98 % of limit_w or more.
    missing: {_NEEDS}, or limit_w is unknown
    source: telemetry""")
BURSTS: Final = column(f"""bursts | | bursts
    How often the power rises above a level and falls again: 110 % of mean_power_w, or
    of=burst:W.
    missing: {_NEEDS}
    source: telemetry""")
BURST_SHARE: Final = column(f"""burst_pct | % | in bursts
    Share of the time with power samples that is spent in bursts.
    missing: {_NEEDS}
    source: telemetry""")
LONGEST_BURST: Final = column(f"""longest_burst_ns | ns | longest
    The time of the longest burst.
    missing: {_NEEDS}
    source: telemetry""")
STEP_ENERGY: Final = column("""iteration_energy_j | J | per iteration
    Mean energy_j of the GPU over the scope's complete iterations; whole iterations, even if
    the scope is deeper.
    missing: no complete iteration in the scope, or telemetry for only part of one
    source: telemetry""")
TOKEN_ENERGY: Final = column("""token_energy_mj | mJ | per token
    Energy of an iteration over its tokens (see the view throughput): of a GPU its own, of an
    iteration those of all GPUs.
    missing: the tokens are unknown, or telemetry covers only part of an iteration
    source: telemetry, and trace or address""")
GFX: Final = _over_time("mean_gfx_mhz", "MHz", "mean gfx", "Mean clock of the compute units")
GFX_LOW: Final = _over_time(
    "p05_gfx_mhz", "MHz", "p05", "5th percentile of the compute units' clock"
)
GFX_LEAST: Final = _over_time(
    "lowest_gfx_mhz", "MHz", "lowest gfx", "The least sample of the clock of the compute units"
)
GFX_DEVIATION: Final = _over_time(
    "sd_gfx_mhz", "MHz", "± gfx", "Standard deviation of the clock of the compute units"
)
ROLLING_GFX: Final = _over_time(
    "rolling_gfx_mhz",
    "MHz",
    "rolling p05",
    "Mean of the rolling 0.05 quantile of the clock's samples (of=window:MS, 100 ms by default)",
)
GFX_RATIO: Final = column(f"""gfx_x | x | of lowest
    mean_gfx_mhz over that of the GPU with the lowest.
    missing: {_NEEDS}
    source: telemetry""")
MEM: Final = _over_time("mean_mem_mhz", "MHz", "mean mem", "Mean clock of the memory")
MEM_DEVIATION: Final = _over_time(
    "sd_mem_mhz", "MHz", "± mem", "Standard deviation of the clock of the memory"
)
HOT: Final = _over_time("mean_hotspot_c", "°C", "hotspot", "Mean temperature of the hottest spot")
HOTTEST: Final = _over_time("max_hotspot_c", "°C", "max", "Largest temperature of the hottest spot")
HOT_ANYWHERE: Final = _over_time(
    "mean_hot_c", "°C", "mean hot", "Mean temperature: of the hottest spot, else of the edge"
)
HOTTEST_ANYWHERE: Final = _over_time(
    "hottest_c", "°C", "hottest", "Largest temperature: of the hottest spot, else of the edge"
)
VRAM: Final = _over_time("peak_vram_bytes", "B", "peak VRAM", "The most memory in use on the GPU")
MEM_HOT: Final = _over_time("mean_mem_c", "°C", "mean mem °C", "Mean temperature of the memory")
EDGE: Final = _over_time(
    "mean_edge_c", "°C", "mean edge °C", "Mean temperature at the edge of the die"
)
THROTTLED: Final = _over_time(
    "throttled_pct", "%", "throttled", "Share of time under the driver's largest limiter"
)
BY_TEMPERATURE: Final = column(f"""r_gfx_hotspot | | r gfx °C | signed
    Pearson's correlation of the clock's samples with the hottest spot's temperature over their
    times.
    missing: {_NEEDS}, or one of the two doesn't change
    source: telemetry""")
BY_EDGE: Final = column(f"""r_gfx_edge | | r gfx edge °C | signed
    Pearson's correlation of the clock's samples with the edge's temperature over their times.
    missing: {_NEEDS}, or one of the two doesn't change
    source: telemetry""")
_SLOWER: Final = (
    "the duration of the kernels that start in the time of a sample of the clock, over the mean of "
    "kernels of the same name, operation and phase; compute that nothing overlaps"
)
TIME_BY_CLOCK: Final = column(f"""r_time_gfx | | r time MHz | signed
    Pearson's correlation with the clock of how slow kernels are: {_SLOWER}.
    missing: {_NEEDS}, no kernels in the time of four samples, or one doesn't change
    source: trace and telemetry""")
TIME_BY_HEAT: Final = column(f"""r_time_heat | | r time °C | signed
    Pearson's correlation with the temperature (of the hotspot, else of the edge) of how slow
    kernels are: {_SLOWER}.
    missing: {_NEEDS}, no kernels in the time of four samples, or one doesn't change
    source: trace and telemetry""")
CHANCE: Final = column("""r_chance | | r by chance
    The correlation, of either sign, that unrelated series of so few samples exceed in 1 % of
    the cases: tanh(2.576 / sqrt(n - 3)), n the fewest independent samples of the row's
    coefficients. One that isn't larger says nothing.
    missing: fewer than four independent samples
    source: telemetry""")
INDEPENDENT: Final = column("""r_samples | | independent
    The fewest independent samples of the row's correlations: n (1 - ab) / (1 + ab) of n
    samples with autocorrelations a and b of neighbours (Bartlett).
    missing: fewer than four independent samples
    source: telemetry""")
PEAK_OVER: Final = column(f"""peak_over_w | W | peak - limit | signed
    peak_power_w minus limit_w.
    missing: {_NEEDS}, or limit_w is unknown
    source: telemetry, and limit_w""")
OVER: Final = column(f"""over_limit_ns | ns | over limit
    Time of the samples with more power than limit_w.
    missing: {_NEEDS}, or limit_w is unknown
    source: telemetry, and limit_w""")
_PER_DIE: Final = "telemetry has no such value per die: MI300X needs amd-smi metric or gpu_metrics"
DIE_CLOCKS: Final = column(f"""die_spread_mhz | MHz | dies MHz
    Largest minus smallest mean clock of the GPU's dies (XCDs).
    missing: {_PER_DIE}
    source: telemetry""")
DIE_HEAT: Final = column(f"""die_spread_c | °C | dies °C
    Largest minus smallest mean temperature of the GPU's dies, else of its stacks of memory.
    missing: {_PER_DIE}
    source: telemetry""")
BY_POWER: Final = column(f"""r_gfx_power | | r gfx W | signed
    Pearson's correlation of the clock's samples with the power over their times.
    missing: {_NEEDS}, or one of the two doesn't change
    source: telemetry""")
ENERGY_SHARE: Final = column("""energy_pct | % | of energy
    Share of the scope's energy.
    missing: no telemetry of power or energy for all of the row's time
    source: telemetry""")
CHARGED_POWER: Final = column("""charged_power_w | W | charged power
    energy_j over elapsed_ns: mean power of a GPU over the time charged to the row, idle time
    before its activities too.
    missing: no telemetry of power or energy for all of the row's time
    source: telemetry""")


def limiter(part: str) -> Metric:
    """The column of one limiter's residency."""
    return _over_time(f"throttled_{part}_pct", "%", part, f"Share of time under the limiter {part}")


def step_energy(run: Run, view: View, given: float | None = None) -> tuple[Float64, Float64]:
    """J per whole iteration of each GPU of the scope, and mJ per token; NaN where not known."""
    gpus, iterations, energy, whole = energy_of_steps(run, view)
    means = np.full(len(gpus), np.nan)
    per_token = np.full(len(gpus), np.nan)
    if not whole.any():
        return means, per_token
    tokens = tokens_of(run, gpus, iterations, given)
    for place in range(len(gpus)):
        own = whole[place] & np.isfinite(energy[place])
        if own.any() and own.sum() == whole[place].sum():
            means[place] = energy[place, own].mean()
            per_token[place] = 1e3 * energy[place, own].sum() / tokens[place, own].sum()
    return means, per_token


def energy_of_steps(run: Run, view: View) -> tuple[list[int], list[int], Float64, Mask]:
    """GPUs, iterations, J of each GPU in each iteration, and whether it is whole there."""
    scoped = run.tree_of(view).split(view.path, ("gpu", "iteration"))
    gpus = distinct(scoped.codes("gpu")).tolist()
    iterations = [n for n in distinct(scoped.codes("iteration")).tolist() if n != NO_LABEL]
    energy = np.full((len(gpus), len(iterations)), np.nan)
    whole = np.zeros(energy.shape, np.bool_)
    cut = run.truncated(view)
    steps = run.tree().split((), ("gpu", "iteration"))
    scope = Scope(steps, steps, run.origin_ns, run.hardware, run.measured)
    values = METRICS["energy_j"].compute(scope)
    present = values.present()
    for row, (gpu, iteration) in enumerate(
        zip(steps.codes("gpu").tolist(), steps.codes("iteration").tolist(), strict=True)
    ):
        if gpu in gpus and iteration in iterations:
            at = gpus.index(gpu), iterations.index(iteration)
            energy[at] = values.numbers[row] if present[row] else np.nan
            whole[at] = view.cut or iteration not in cut
    return gpus, iterations, energy, whole


def tokens_of(run: Run, gpus: list[int], iterations: list[int], given: float | None) -> Float64:
    """The tokens of each iteration of each GPU: as many as given, or as the trace shows."""
    if given is None:
        return tokens_in(run, gpus, iterations)
    return np.full((len(gpus), len(iterations)), given)


def token_energy(run: Run, view: View, labels: list[str], given: float | None) -> Float64:
    """mJ per token of each iteration of the labels, over all GPUs; NaN where not known."""
    gpus, iterations, energy, whole = energy_of_steps(run, view)
    tokens = tokens_of(run, gpus, iterations, given)
    found = {
        str(iteration): 1e3 * energy[:, place].sum() / tokens[:, place].sum()
        for place, iteration in enumerate(iterations)
        if whole[:, place].all()
    }
    return np.array([found.get(label, np.nan) for label in labels])
