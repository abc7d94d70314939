"""Whether a version of a model is ready: by the table, and by the model itself where it has a word in it.

Front-end processes, and workers whose models call others.
"""

from shoal.star.models import ModelEntry
from shoal.star.questions import Ask


def is_ready(entry: ModelEntry, ask: Ask) -> bool:
    """Whether an instance is alive and, for a model with an is_ready of its own, all of them say yes.

    Asks, and waits some seconds for models that are at work, in the second case only. Raises ShoalError.
    """
    return entry.ready and (not entry.has_ready_check or bool(ask("is_ready", {"model": entry.model_id})))
