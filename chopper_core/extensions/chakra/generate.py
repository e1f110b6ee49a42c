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
    settings_of,
)
from chopper_tui.commands.output import tell

DESCRIPTION: Final = "Write synthetic Chakra traces of a collective or a training step."
OPTIONS: Final = """
    PATTERN | see below
    SETTING* | such as ranks=8 bytes=64M; see below
    required -o, --output DIR | a new or empty folder"""
EPILOG: Final = "\n".join((
    "patterns:", *(f"  {name:14} {about}" for name, (_, _, about) in PATTERNS.items()),
    "settings and their defaults:",
    *(f"  {name}={getattr(GeneratorSettings(), name)}" for name in PATTERNS["pipeline"][1]),
))  # fmt: skip


def run(options: Namespace) -> int:
    settings = settings_of(options.pattern, options.setting)
    nodes = generate(options.pattern, settings, Path(os.path.expanduser(options.output)))
    tell(f"wrote {options.output}: {settings.ranks} generated traces, {nodes:,} nodes")
    return 0
