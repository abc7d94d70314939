"""The second of two steps to a configuration: completes and checks the result of `prepare_config`.

Where `needs_autocomplete` says so, a worker has read the model file before. Runs in the supervisor. A configuration
that fails has no effect on any other model. Pure.
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
    """The result of `prepare_config`, complete and checked; `model_io` is None where no field was left open.

    `gpus` are the server's GPUs: they decide KIND_AUTO and the default counts. Raises InvalidArgumentError.
    """
    if model_io is not None:
        config = complete(config, model_io, default_max_batch_size)
    config = place(normalise(config), gpus)
    check(config)
    return in_order(config)
