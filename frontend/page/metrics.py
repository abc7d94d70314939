"""GET /ui/metrics: the text of /metrics, which has a port of its own that a page may not ask."""

import time

from shoal.frontend.call import HandlerCall
from shoal.frontend.metrics.exposition import ExternalFigures, exposition
from shoal.frontend.metrics.listener import CONTENT, read_gauges
from shoal.frontend.page.files import SAFE
from shoal.frontend.response import Response


def metrics(call: HandlerCall) -> Response:
    """All families but for the figures of CPU and GPU, which are measured between two scrapes."""
    external = ExternalFigures(read_gauges(call.ask), {}, ())
    text = exposition(call.state, external, time.monotonic_ns())
    return Response(200, (*CONTENT, ("Cache-Control", "no-store"), *SAFE), (text.encode("utf-8", "backslashreplace"),))
