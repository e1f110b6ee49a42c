"""The directory that `chopper record` puts first on PYTHONPATH."""
