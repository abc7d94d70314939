"""A paced client without load, then beside a crowd: the measurement of most situations of isolation."""

from dataclasses import replace

from bench.isolation.crowd import Crowd
from bench.isolation.figures import Measure, compared, lost
from bench.isolation.probe import LONG_PATIENCE_S, PATIENCE_S, Probe, paced
from bench.isolation.site import warm

QUIET_S, LOADED_S = 1.5, 2.5
#: Seconds after a crowd has gone, until the last of its requests has been cancelled or answered.
_REST_S = 1.0


def beside(probe: Probe, load: Crowd, loaded_s: float = LOADED_S) -> Measure:
    """Measure a probe without load, then beside this crowd."""
    with warm(probe):
        quiet = paced(probe, QUIET_S)
        with load:
            loaded = paced(probe, loaded_s)
    return compared(quiet, loaded, PATIENCE_S, f"the crowd had {load.words}")


def beside_either(probe: Probe, reading: Crowd, load: Crowd) -> Measure:
    """Measure a probe beside a crowd that reads, in place of quiet, then beside a crowd that asks the same and does not
    read.

    A crowd that reads keeps the model busy for seconds. So a request may take longer than those seconds, and a request
    that is lost beside that crowd does not count: the row is about the crowd that does not read.
    """
    with warm(probe):
        with reading:
            quiet = paced(probe, LOADED_S, patience_s=LONG_PATIENCE_S)
        paced(probe, _REST_S)
        with load:
            loaded = paced(probe, LOADED_S, patience_s=LONG_PATIENCE_S)
    note = f"reading, the crowd had {reading.words}; not reading, {load.words}"
    measure = compared(quiet, loaded, LONG_PATIENCE_S, note)
    num_refused, num_failed = lost(loaded)
    return replace(measure, num_refused=num_refused, num_failed=num_failed)
