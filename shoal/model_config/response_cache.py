"""`response_cache`: whether a model's answers may be cached, and which models may not ask for that. Pure."""

from collections.abc import Iterator

from shoal.model_config.messages import Config


def enables_response_cache(config: Config) -> bool:
    """Whether a model's configuration enables the response cache."""
    return bool(config.get("response_cache", {}).get("enable", False))


def response_cache(config: Config) -> Iterator[str]:
    """Triton's refusals of a response cache for models whose answers depend on several requests, or that answer one
    request several times."""
    refused = f"Response Cache does not currently support model {config['name']}"
    if enables_response_cache(config):
        if "sequence_batching" in config:
            yield f"{refused} with sequence batching scheduler. Please disable the response cache."
        if config.get("model_transaction_policy", {}).get("decoupled"):
            yield f"{refused} with 'decoupled' transaction policy. Please disable the response cache."
