"""What an agent should read first: the guide, and the glossary."""

from __future__ import annotations

from importlib.resources import files

from chopper_core.model.glossary import OPERATIONS, TERMS


def guide() -> str:
    """The guide for agents, as `chopper skill` prints it."""
    return files("chopper_core.answers").joinpath("skill.md").read_text("utf-8")


def glossary() -> str:
    lines = [f"- {word}: {text}" for word, text in {**TERMS, **OPERATIONS}.items()]
    return "# Glossary\n\n" + "\n".join(lines) + "\n"
