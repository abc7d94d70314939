"""What a model's scheduler can say of its decisions, as msgpack can carry it. Pure; asked for, never kept."""

from typing import Any

from shoal.batcher.scheduling import batch_account
from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.dynamic import DynamicBatchScheduler
from shoal.batcher.scheduling.goal import GoalBatchScheduler
from shoal.batcher.scheduling.scheduler import Scheduler


def explain(scheduler: Scheduler) -> dict[str, Any]:
    """How it makes batches, why the last ones had their size, and what it has learned."""
    if isinstance(scheduler, GoalBatchScheduler):
        goal = scheduler.goal
        return {
            "scheduler": "goal",
            "latency_target_ms": goal.target_ms,
            "arrivals_per_s": round(goal.arrivals_per_s, 1),
            "learned": [{"rows": rows, "ns": ns, "samples": samples} for rows, ns, samples in goal.curve.points()],
            **batch_account.told(scheduler.account),
        }
    if isinstance(scheduler, DynamicBatchScheduler):
        return {"scheduler": "dynamic", **batch_account.told(scheduler.account)}
    kind = "default" if isinstance(scheduler, DefaultScheduler) else "other"
    return {"scheduler": kind, "reasons": [], "last_batches": []}
