"""What was found in a run, and what was not: for `chopper info`, as text and as JSON."""

from chopper_core.render.info.document import INFO_SCHEMA, as_json, describe
from chopper_core.render.info.text import as_text

__all__ = ["INFO_SCHEMA", "as_json", "as_text", "describe"]
