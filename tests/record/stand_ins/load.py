"""The work of the stand-ins' GPUs: busy in each second half of a period, by the time since boot.

`STAND_IN` in the environment is JSON: `gpus`, `period_ms` of the load, `refresh_ms` of the driver,
`broken` GPUs whose reading fails, `denied` for a user without rights, and `script`, a file with
clock, use, power and heat of each GPU as they are now.
"""

import json
import os
import time

SETTINGS = {
    "gpus": 2,
    "period_ms": 200,
    "refresh_ms": 10,
    "broken": [],
    "denied": False,
    "script": "",
    **json.loads(os.environ.get("STAND_IN", "{}")),
}
IDLE_W, BUSY_W = 150, 700
IDLE_MHZ, BUSY_MHZ = 130, 2100


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def refreshed_ns():
    """When the driver took the values that it gives now."""
    refresh = int(SETTINGS["refresh_ms"] * 1e6)
    return now_ns() // refresh * refresh


def is_busy(at_ns):
    period = int(SETTINGS["period_ms"] * 1e6)
    return at_ns % period >= period // 2


def scripted(gpu):
    """What a script says of a GPU; None without one."""
    if not SETTINGS["script"]:
        return None
    with open(SETTINGS["script"]) as file:
        return json.load(file)[gpu]


def pci(gpu):
    """GPUs lie on the bus in the order of HIP."""
    return f"0000:{0x0C + 0x10 * gpu:02x}:00.0"
