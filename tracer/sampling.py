"""Sampling: which requests are traced. Pure; each front end has one sampler for each trace setting.

Each front end counts only its own requests: a rate of 1 is exact; other rates hold for each front end alone, and so for
all together on average.
"""

import itertools
import re

from shoal.tracer.settings import OPENTELEMETRY, TENSORS, TraceSetting

#: A W3C trace context, version 00 or later: an all-zero trace or span id is invalid (W3C Trace Context, 3.2.2).
_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)


class Sampler:
    """Counts the requests to which one setting applies, and selects every `rate`-th to trace."""

    def __init__(self, setting: TraceSetting) -> None:
        self.revision = setting.revision
        self.heeds_context = setting.mode == OPENTELEMETRY
        self.has_tensors = bool(setting.level & TENSORS) and not self.heeds_context  # spans have no place for tensors
        self._rate = setting.rate if setting.count else 0
        # Changed by hits, in any thread: taking the next number is atomic.
        self._numbers = itertools.count(1)

    def hits(self) -> bool:
        """Whether this request is sampled; called once for each request."""
        return self._rate > 0 and next(self._numbers) % self._rate == 0


def is_context(traceparent: str) -> bool:
    """Whether a `traceparent` header names a span: such a request is traced whatever the rate."""
    return _CONTEXT.fullmatch(traceparent) is not None
