"""The communication of a whole job: flight recorders' dumps and inspectors' logs of all ranks."""

from typing import Final

SOURCES: Final = {
    "communication": (f"{__name__}.flight_recorder", f"{__name__}.inspector"),
}
