"""ModelConfig, which auto_complete_config completes, and look-ups in a model's configuration."""

from typing import Any

#: A model configuration, or a message inside one, in its JSON form.
Config = dict[str, Any]

_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """A model's configuration, as `auto_complete_config` gets it. The methods never overwrite what is configured.

    Methods raise ValueError with Triton's sentences.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def as_dict(self) -> Config:
        """The configuration as it is now."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch; 0 = no batch dimension. Raises ValueError if the configured one is larger."""
        if self._config["max_batch_size"] > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {self._config['max_batch_size']}, but in auto-complete-config "
                f"function for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable the dynamic batcher, with default settings unless configured. Raises ValueError for models with
        another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, input: Config) -> None:  # noqa: A002 - Triton's name
        """Add an input: name, data_type, dims and, if it may be left out, optional. Raises ValueError for other or
        missing properties, or a conflict with the configured input."""
        self._add("input", input, _INPUT_PROPERTIES)

    def add_output(self, output: Config) -> None:
        """Add an output: name, data_type and dims. Raises ValueError for other or missing properties, or a conflict
        with the configured output."""
        self._add("output", output, _OUTPUT_PROPERTIES)

    def set_model_transaction_policy(self, transaction_policy_dict: Config) -> None:
        """Set whether the model is decoupled: {"decoupled": True}. Raises ValueError for a conflict."""
        if transaction_policy_dict.keys() - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._config.get("model_transaction_policy", {})
        decoupled = transaction_policy_dict.get("decoupled", policy.get("decoupled", False))
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        self._config["model_transaction_policy"] = {"decoupled": decoupled}

    @property
    def _name(self) -> str:
        return str(self._config["name"])

    def _add(self, role: str, given: Config, properties: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        which = f"{role} '{given['name']}'" if "name" in given else role
        if given.keys() - set(properties):
            known = " and ".join((", ".join(map(repr, properties[:-1])), repr(properties[-1])))
            raise ValueError(f"{which} {where} contains property other than {known}.")
        for required in ("name", "data_type", "dims"):
            if required not in given:
                raise ValueError(f"{which} {where} is missing '{required}' property.")
        for configured in self._config[role]:
            if configured["name"] == given["name"]:
                self._compare(role, configured, given)
                configured.update(given)
                return
        self._config[role].append(given)

    def _compare(self, role: str, configured: Config, given: Config) -> None:
        if configured["data_type"] not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {configured['data_type']} for "
                f"{role} '{given['name']}', model provides {given['data_type']}"
            )
        theirs_optional = bool(configured.get("optional"))
        differences = {
            "dims": (list(configured["dims"] or given["dims"]), list(given["dims"])),
            "optional": (theirs_optional, bool(given.get("optional", theirs_optional))),
        }
        for what, (theirs, ours) in differences.items():
            if theirs != ours:
                raise ValueError(
                    f"model '{self._name}', tensor '{given['name']}': the model expects {what} {ours} but the model "
                    f"configuration specifies {what} {theirs}"
                )


def get_input_config_by_name(model_config: Config, name: str) -> Config | None:
    """The input of that name in a configuration; None if there is none."""
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Config, name: str) -> Config | None:
    """The output of that name in a configuration; None if there is none."""
    return _by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Config) -> bool:
    """Whether a configuration is that of a decoupled model."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _by_name(config: Config, role: str, name: str) -> Config | None:
    return next((tensor for tensor in config.get(role, ()) if tensor["name"] == name), None)
