"""The person's settings, for commands."""

from __future__ import annotations

from chopper_tui.commands.output import tell
from chopper_tui.config import Config, read_config


def settings() -> Config:
    """The person's settings; what they say in vain is told."""
    config = read_config()
    for warning in config.warnings:
        tell(warning)
    return config
