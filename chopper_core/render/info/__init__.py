"""The description of a run for `chopper info`: what was read, matched, labelled and missing."""

from chopper_core.render.info.document import INFO_SCHEMA, as_json, describe
from chopper_core.render.info.text import as_text

__all__ = ["INFO_SCHEMA", "as_json", "as_text", "describe"]
