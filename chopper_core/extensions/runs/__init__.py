"""Many runs: a row of settings and figures for each, sweeps and fronts."""
