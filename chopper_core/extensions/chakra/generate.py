"""`chopper generate`: synthetic Chakra traces for simulators."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from chopper_core.extensions.chakra.synthetic import (
    PATTERNS,
    GeneratorSettings,
    generate,
    pattern_settings,
)
from chopper_tui.commands.output import tell

DESCRIPTION: Final = "Write synthetic Chakra traces of a collective or a training step."
OPTIONS: Final = """
    PATTERN | see below
    SETTING* | such as ranks=8 bytes=64M; see below
    required -o, --output DIR | a new or empty folder"""
_ABOUT: Final = {
    "ranks": "files, one for each",
    "bytes": "what a rank sends at a time: 64M, 1Gi",
    "iterations": "repetitions",
    "gb_s": "rate of a rank's link in GB/s",
    "layers": "of each rank",
    "compute_us": "forward pass of a layer in µs; backward takes twice that",
    "microbatches": "of a pipeline",
}
_SETTINGS: Final = {f"{name}={getattr(GeneratorSettings(), name)}": _ABOUT[name] for name in _ABOUT}
EPILOG: Final = "\n".join((
    "patterns:", *(f"  {name:15} {about}" for name, (_, _, about) in PATTERNS.items()),
    "settings:", *(f"  {given:15} {about}" for given, about in _SETTINGS.items()),
))  # fmt: skip


def run(options: Namespace) -> int:
    settings = pattern_settings(options.pattern, options.setting)
    nodes = generate(options.pattern, settings, Path(os.path.expanduser(options.output)))
    tell(f"wrote {options.output}: {settings.ranks} generated traces, {nodes:,} nodes")
    return 0
