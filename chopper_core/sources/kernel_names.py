"""Names of kernels as different tools write them."""

from __future__ import annotations

from typing import Final

from chopper_core.util.patterns import late

_NAME_SUFFIX: Final = late(r"(?:\s*+(?:\[clone [^\]]*+\]|\(\.kd\)|\.kd))++$")
_SUFFIX_ENDS: Final = (".kd", "(.kd)", "]")
_MAX_SUFFIX: Final = 1 << 10


def clean_kernel_name(name: str) -> str:
    """Return the name without `.kd`, ` (.kd)`, ` [clone .kd]` and other clone suffixes."""
    name = name.strip()
    if not name.endswith(_SUFFIX_ENDS):
        return name
    found = _NAME_SUFFIX.search(name, max(len(name) - _MAX_SUFFIX, 0))
    return name[: found.start()] if found else name
