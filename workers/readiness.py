"""What a model says of itself when the supervisor asks whether it is ready. Runs in a worker, between two batches."""

import logging

from shoal import log
from shoal.control import Channel
from shoal.workers.backends.backend import Backend

_log = logging.getLogger(__name__)


class ReadyCheck:
    """That of one instance."""

    def __init__(self, backend: Backend, instance: str) -> None:
        self._backend = backend
        self._instance = instance
        #: Whether the supervisor waits for an answer. Set by the thread that hears it, cleared by `answer`.
        self.is_asked = False
        # Changed by answer: what has been logged, as probes come again and again.
        self._complaint = ""

    def answer(self, channel: Channel) -> None:
        """Ask the model, and tell the supervisor. A model that fails at it is not ready."""
        self.is_asked = False
        complaint = ""
        try:
            is_ready = self._backend.is_ready()
        except Exception as error:  # noqa: BLE001 - the rim: whatever a model raises means no
            is_ready, complaint = False, str(error)
        if not is_ready:
            # Triton's words, which it, too, logs with --log-verbose only.
            _log.log(log.verbose(1), "Model '%s' is not ready (user-defined check failed).", self._instance)
        if complaint and complaint != self._complaint:
            _log.error("is_ready of model instance '%s' failed: %s", self._instance, complaint)
        self._complaint = complaint
        channel.send({"op": "is_ready", "is_ready": is_ready})
