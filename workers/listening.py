"""How a worker awaits what the supervisor says: it obeys whatever comes until it was that.

The thread that runs the loop and those of response senders may wait at once. Runs in a worker.
"""

import select
import time
from collections.abc import Callable

from shoal.control import Channel

#: Another thread may take the message that one waits for: look after so long whether it has (ours).
_LOOK_MS = 10


def listen_until(is_done: Callable[[], bool], channel: Channel, listen: Callable[[], None], wait_s: float) -> None:
    """Have `listen` obey the next message of the channel, again and again, until `is_done` or for `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while not is_done() and (left_s := deadline_s - time.monotonic()) > 0:
        if poller.poll(min(left_s * 1000, _LOOK_MS)):
            listen()
