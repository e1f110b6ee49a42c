"""Many runs: a row of settings and figures for each, sweeps and fronts."""

from typing import Final

SET_VIEWS: Final = {name: f"{__name__}.{name}" for name in ("runs", "sweep", "pareto")}
COMMANDS: Final = {
    "runs": ("DIR", "speed, power and heat of all runs below a directory", f"{__name__}.command"),
}
PARTS: Final = {"runs": f"{__name__}.run_set"}
