"""Programs that measure and attack Chopper for longer than a test may.

`python -m tests.programs.NAME --help` says how.
"""
