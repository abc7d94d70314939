"""All policies over schedules from seeds, as many of each as somebody asks for, on all cores; a table tells of them:

python -m tests.batcher.scheduling.policies 100000

With the names of some behind the number, only those. One that fails is told by its seed: `run_seeds` runs it again.
"""

import sys
from functools import partial

from tests.batcher import cache_schedules
from tests.batcher.scheduling import ensemble_graphs, punctual, rate_schedules, seeded, sequence_schedules
from tests.batcher.scheduling.many_seeds import Policy, run_policies

#: Of every scheduler.
_ALL = "no request lost, run twice, or waiting while it could run; bounds; deadlines that wake"

POLICIES = (
    Policy("dynamic", partial(seeded.run_any, "plain"), f"{_ALL}; order of arrival; batches as of the slow model"),
    Policy("queue policies", partial(seeded.run_any, "policies"), f"{_ALL}; order of service; expiry; slow model"),
    Policy("goal", partial(seeded.run_any, "goal"), f"{_ALL}; order of service; expiry; no wait beyond the target"),
    Policy("deadlines", punctual.run_any, "which leave, which are refused, none begun late; else as without deadlines"),
    Policy("sequences", sequence_schedules.run_any, f"{_ALL}; order and slots as of the slow model; reasons; ends"),
    Policy("ensembles", ensemble_graphs.run_any, "each step once, after its inputs; results let go once, not too soon"),
    Policy(
        "rate limiter", rate_schedules.run_any, "resources never exceeded; none lost, run twice, or held for nothing"
    ),
    Policy(
        "response cache", cache_schedules.run_any, "each request ends once; bytes; eviction order; who waits for whom"
    ),
)


if __name__ == "__main__":
    wanted = sys.argv[2:]
    run_policies([each for each in POLICIES if not wanted or each.name in wanted], int(sys.argv[1]))
