"""Log lines about requests that failed by a fault of a model or of its instance. Runs in the batcher.

Of each model, only the first failures of a minute are logged (finished_requests.py). So that a line can be matched with
other logs and traces, it names the client's id of the request, the id of its trace (OpenTelemetry's) if it is traced,
and the batch by instance, pid and number, as the worker's own lines about the batch do.
"""

import logging

from shoal.batcher.peers import RunningBatch, ScheduledModel
from shoal.errors import InternalError
from shoal.finished_request import FinishedRequest
from shoal.reasons import DeathDetail, Reason, end_fields

_log = logging.getLogger(__name__)

#: Reasons of refusals whose detail names the instance that has died.
_DEATHS = frozenset({Reason.INSTANCE_DIED, Reason.OUT_OF_MEMORY, Reason.EXECUTION_LIMIT})


def log_failure(model: ScheduledModel, failed: FinishedRequest, running: RunningBatch | None) -> None:
    """Log a request that has failed, unless the client or the server's load is the reason."""
    name = model.signature.name
    error = failed.error(name, model.version, model.groups)
    if not isinstance(error, InternalError):
        return
    instance = (
        failed.detail if failed.reason in _DEATHS else 0 if failed.execution is None else failed.execution.instance
    )
    fields: dict[str, str | int] = {
        "model": name,
        "version": str(model.version),
        "stage": "queue" if running is None and not instance else "execute",
    }
    if failed.id:
        fields["request_id"] = failed.id
    if failed.trace_id:
        fields["trace_id"] = failed.trace_id
    if instance:
        detail = DeathDetail.unpack(instance)
        fields |= {"instance": detail.instance_name(model.groups), "worker_pid": detail.pid}
        if failed.reason == Reason.INSTANCE_DIED:
            fields |= end_fields(detail.code)
    if running is not None:
        fields["batch"] = running.number
    names = ("stage", "request_id", "trace_id", "instance", "worker_pid", "batch")
    said = ", ".join([f"{name} {fields[name]}" for name in names if name in fields])
    _log.error("a request to model '%s' version %d failed (%s): %s", name, model.version, said, error, extra=fields)
