# The tour as a reactive notebook: `pip install chopper-tui marimo polars`, then
# `marimo edit docs/notebooks/tour_marimo.py` in the root of the repository.
import marimo

app = marimo.App()


@app.cell
def _():
    import polars

    import chopper_core as chopper

    run = chopper.open("demo_data/fsdp2")
    run
    return chopper, polars, run


@app.cell
def _(run):
    budget = run.frame("?columns=elapsed_ns,compute_ns,overlap_ns,exposed_comm_ns,idle_ns")
    budget
    return (budget,)


@app.cell
def _(run):
    ranks = run.ranks(columns="caused_ns,wait_ns,apart_by,gfx_mhz", sort="-caused_ns")
    straggler = ranks.labels[0]
    ranks
    return ranks, straggler


@app.cell
def _(run, straggler):
    what_if = run.what_if(f"gpu:{straggler} as peers")
    what_if
    return (what_if,)


@app.cell
def _(chopper, run):
    changes = chopper.diff("demo_data/fsdp1", run)
    changes
    return (changes,)


@app.cell
def _(polars, run):
    power = polars.DataFrame(run.power(sort="mean_gfx_mhz"))
    power.select("name", "mean_gfx_mhz", "mean_hotspot_c", "throttled_pct")
    return (power,)


if __name__ == "__main__":
    app.run()
