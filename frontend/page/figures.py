"""GET /ui/figures: the models and the batcher's counters as the page draws them, read only while a page is open; and
GET /ui/metrics: the text of /metrics for the page. /metrics is on another port, which the browser's same-origin policy
forbids to the page.

Counts are sums since a version was loaded: a page that asks twice draws the difference, so the server keeps no state of
any page. All pages together cost one reading of the counters in half a second.
"""

import time
from functools import partial
from typing import Any

import orjson

from shoal.frontend.call import HandlerCall
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.metrics.listener import CONTENT, read_gauges
from shoal.frontend.page.files import NOT_FOUND, SAFE
from shoal.frontend.response import JSON_CONTENT, Headers, Response, encodable
from shoal.frontend.reused import Reused
from shoal.frontend.state import ServerState
from shoal.star.models import NO_VERSION, ModelEntry
from shoal.version import __version__

#: Figures older than this are read again (ours: a page, which asks every second or two, does not notice it).
INTERVAL_MS = 500
_HEADERS: Headers = (*JSON_CONTENT, ("Cache-Control", "no-store"), *SAFE)


def figures(call: HandlerCall) -> Response:
    """The figures of all versions of all models, at most half a second old."""
    state = call.state
    if state.page_figures is None:
        state.page_figures = Reused(partial(_read, state), INTERVAL_MS)
    return Response(200, _HEADERS, (state.page_figures.get(time.monotonic_ns()),))


def access(call: HandlerCall) -> Response:
    """POST /ui/access: tells the page that this client may change the server. Other clients are refused before: the
    route needs the scope ADMIN."""
    if not call.state.has_page:
        return NOT_FOUND
    return Response(200, _HEADERS, (b'{"may_administer":true}',))


def _read(state: ServerState) -> bytes:
    return orjson.dumps(describe(state, time.monotonic_ns()), default=str)


def describe(state: ServerState, now_ns: int) -> dict[str, Any]:
    """The figures as the page receives them; `now_ns` is the monotonic time, units are in the names."""
    entries = sorted(state.models.entries(), key=lambda each: (each.name, each.namespace, each.version))
    return {
        "server": {
            "name": state.server_id,
            "version": __version__,
            "protocol": state.version,
            "grpc_port": state.grpc_port,
            "model_control_mode": state.model_control_mode,
        },
        "now_ns": now_ns,
        "models": [_model(state, entry) for entry in entries],
    }


def _model(state: ServerState, entry: ModelEntry) -> dict[str, Any]:
    row = state.read_counters(entry)
    return {
        "name": encodable(entry.name),
        "namespace": encodable(entry.namespace),
        "version": None if entry.version == NO_VERSION else str(entry.version),
        "id": entry.model_id,  # changes with a reload, after which counts begin at 0
        "state": entry.state,
        "reason": encodable(entry.reason),
        "instances": entry.num_instances,
        "instances_up": entry.num_instances_up,
        "platform": entry.config.get("platform") or entry.config.get("backend", ""),
        "max_batch_size": entry.signature.max_batch_size,
        "is_decoupled": entry.is_decoupled,
        "is_ensemble": "ensemble_scheduling" in entry.config,
        "has_sequences": entry.signature.sequences is not None,
        "is_cached": entry.is_cached,
        "load_seconds": entry.load_seconds,
        "cells": row.cells,
        "batches": [[each.batch_size, each.num_executions, each.compute_infer_ns] for each in row.batches],
        # By phase, a histogram: [bits, count of times with that many bits].
        "times": {
            phase: [[bits, count] for bits, count in enumerate(counts) if count]
            for phase, counts in row.histograms.items()
        },
    }


def metrics(call: HandlerCall) -> Response:
    """The text of /metrics without the figures of CPU and GPU, which are measured from one scrape to the next."""
    external = ExternalFigures(read_gauges(call.ask), {}, ())
    text = exposition(call.state, external, time.monotonic_ns())
    return Response(200, (*CONTENT, ("Cache-Control", "no-store"), *SAFE), (text.encode("utf-8", "backslashreplace"),))
