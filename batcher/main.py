"""The batcher process: a standby until it is activated, then the batcher's loop.

Forked by a zygote, or exec'd as `python -m shoal.batcher.main`: `-m` cannot run a compiled module, so this module stays
uncompiled.
"""

import faulthandler
import sys

from shoal import control, fault, log
from shoal.batcher.batcher import Batcher
from shoal.control import GONE
from shoal.messages import to_batcher
from shoal.messages.from_batcher import BatcherConnected
from shoal.process import die_with_parent, ignore_group_signals, set_title


def main() -> None:
    """Join the supervisor, wait as standby until activated, then serve until the supervisor has gone."""
    die_with_parent()
    faulthandler.enable()
    ignore_group_signals()
    fault.install("batcher")
    try:
        with control.join(BatcherConnected()) as channel:
            set_title("batcher (standby)")
            # A standby batcher waits here, with all its imports done.
            settings, _ = channel.receive(to_batcher.TO_STANDBY)
            set_title("batcher")
            log.describe("batcher")
            log.configure(**settings.log)
            batcher = Batcher(channel, settings)
            batcher.run()
    except GONE:
        sys.exit(0)  # the supervisor is gone, and unacknowledged messages with it


if __name__ == "__main__":
    main()
