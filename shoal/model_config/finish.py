"""The second of two steps to a configuration: what `prepare_config` made, complete and checked.

Where `needs_autocomplete` says so, a worker has looked into the model file before. Runs in the supervisor. A
configuration that fails leaves nothing behind and touches no other model. Pure.
"""

from collections.abc import Sequence

from shoal.model_config.autocomplete import DEFAULT_MAX_BATCH_SIZE, ModelIO, complete
from shoal.model_config.checks import check
from shoal.model_config.messages import Config, in_order
from shoal.model_config.normalise import normalise, place


def finish_config(
    config: Config,
    model_io: ModelIO | None = None,
    *,
    gpus: Sequence[int] = (),
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> Config:
    """What `prepare_config` returned, complete and checked; `model_io` is None where nothing was to be completed.

    `gpus` are the server's: they decide KIND_AUTO and the default counts. Raises InvalidArgumentError.
    """
    if model_io is not None:
        config = complete(config, model_io, default_max_batch_size)
    config = place(normalise(config), gpus)
    check(config)
    return in_order(config)
