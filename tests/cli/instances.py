"""What a server says of a model's instances, as its endpoint does."""

from typing import Any

UP = {
    "name": "digits_0_0", "state": "up", "pid": 4711, "device": "CPU", "cores": [0, 1, 3], "busy_share": 0.118,
    "batches": 1200, "restarts": 1, "rss_bytes": 50 << 20,
}  # fmt: skip
STARTING = {
    "name": "digits_0_1", "state": "starting", "pid": 0, "device": "GPU 0", "cores": [], "busy_share": None,
    "batches": 0, "restarts": 0, "rss_bytes": 0,
}  # fmt: skip

DIGITS: dict[str, Any] = {
    "model": "digits",
    "versions": [
        {
            "version": "1", "state": "READY", "min_instances": 1, "max_instances": 64, "autoscale": False,
            "instances": [UP, STARTING],
        },
    ],
}  # fmt: skip

#: The same as `shoal models digits` prints it.
PRINTED = """\
digits, version 1: READY, 2 instances, between 1 and 64
INSTANCE    VERSION  STATE     PID   DEVICE  CORES  BUSY  BATCHES  RESTARTS  RSS
digits_0_0  1        up        4711  CPU     0-1,3  12%   1200     1         50 MiB
digits_0_1  1        starting  -     GPU 0   -      -     0        0         -
"""
