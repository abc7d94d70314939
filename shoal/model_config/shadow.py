"""A shadow in a model's configuration: parameters, since Triton has none (shoal/shadow.py). Pure."""

from collections.abc import Iterator

from shoal.errors import InvalidArgumentError
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.shadow import ShadowRule, rule_of, unsuitable

NAMES = ("shadow_of", "shadow_version", "shadow_share", "shadow_compare")


def shadow_rule(config: Config) -> ShadowRule | None:
    """The rule in a configuration that has been checked; None if there is none."""
    if not config.get("parameters"):
        return None
    texts = {name: text for name in NAMES if (text := parameter(config, name)) is not None}
    return rule_of(str(config.get("name", "")), texts) if texts else None


def faults(config: Config) -> Iterator[str]:
    """Check the parameters, and that requests to the model can be mirrored."""
    try:
        rule = shadow_rule(config)
    except InvalidArgumentError as error:
        yield str(error)
        return
    if rule is not None and (why := unsuitable(config)):
        yield f"requests to model '{config['name']}' cannot be mirrored: {why}"
