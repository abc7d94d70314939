"""An ensemble's configuration as a dataflow: checks of the ensemble alone, and together with its steps' models.

Generators of sentences, as in `checks`, in Triton's words where it has any. A step maps a model's inputs and outputs,
the keys, to tensors of the ensemble, the values. Pure; the supervisor runs the second check whenever one of the models
has been replaced.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.datatypes import format_shape
from shoal.model_config.messages import Config
from shoal.model_config.response_cache import response_cache

#: A step's `model_version` that means the latest version that is ready.
LATEST = -1
#: The most steps (ours): the graph is walked for each request.
MAX_STEPS = 256


def is_ensemble(config: Config) -> bool:
    """Whether a configuration is an ensemble's."""
    return "ensemble_scheduling" in config


def steps(config: Config) -> list[Config]:
    """The steps of an ensemble; an empty list for any other model."""
    scheduling: Config = config.get("ensemble_scheduling", {})
    return list(scheduling.get("step", ()))


def max_inflight_requests(config: Config) -> int:
    """The most requests at one time to each step of an ensemble; 0: no limit."""
    return int(config.get("ensemble_scheduling", {}).get("max_inflight_requests", 0))


def faults(config: Config) -> Iterator[str]:
    """Faults of an ensemble's configuration that do not depend on the models."""
    if not is_ensemble(config):
        return
    name = config["name"]
    if config["instance_group"]:
        yield f"instance group should not be specified for ensemble '{name}'"
    if "optimization" in config:
        yield f"optimization should not be specified for ensemble '{name}'"
    if config["model_warmup"]:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    yield from _steps(name, steps(config))
    yield from _dataflow(config)


def _steps(name: str, listed: Sequence[Config]) -> Iterator[str]:
    if not listed:
        yield f"must specify 'step' for ensemble '{name}'"
    if len(listed) > MAX_STEPS:
        yield f"ensemble '{name}' has {len(listed)} steps, at most {MAX_STEPS} are allowed"
    written: set[str] = set()
    for number, step in enumerate(listed):
        for field in ("model_name", "input_map", "output_map"):
            if not step[field]:
                yield f"must specify '{field}' in step {number} of ensemble '{name}'"
        if set(step["model_name"]) & {"/", "\0"}:
            yield f"step {number} of ensemble '{name}' has the model_name '{step['model_name']}', which is no name"
        for tensor in step["output_map"].values():
            if tensor in written:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {number}"
                )
            written.add(tensor)


def _dataflow(config: Config) -> Iterator[str]:
    name, listed = config["name"], steps(config)
    known = {tensor for step in listed for each in ("input_map", "output_map") for tensor in step[each].values()}
    given = {tensor["name"] for tensor in config["input"]}
    for tensor in config["input"]:  # the quotes are Triton's
        if tensor["name"] not in known:
            yield f"ensemble input '{tensor['name']}' for ensemble {name}' is not used"
    for step in listed:
        for tensor in set(step["output_map"].values()) & given:
            yield f"ensemble tensor '{tensor}' is an input of ensemble '{name}' and in an output map, too"
    ready = reachable(listed, given)
    wanted = {tensor["name"] for tensor in config["output"]}
    for tensor in config["output"]:
        output = tensor["name"]
        if output not in known:
            yield f"ensemble output '{output}' for ensemble {name}' is not used"
        elif output not in ready or output in given:
            # A tensor for which the step that writes the output waits in vain; "" where no step writes it.
            inputs = next((step["input_map"].values() for step in listed if output in step["output_map"].values()), ())
            lacking = next((tensor for tensor in inputs if tensor not in ready), "")
            because = f": at least one of its depending tensors, '{lacking}', is not connected" if lacking else ""
            yield f"output '{output}' for ensemble '{name}' is not written{because}"
    read = {tensor for step in listed for tensor in step["input_map"].values()}
    for tensor in sorted(known - wanted):
        if tensor not in ready or tensor not in read:
            yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"


def reachable(listed: Sequence[Config], given: set[str]) -> set[str]:
    """The tensors that can be computed from those that are `given`; in a cycle there are some that cannot."""
    ready, waiting = set(given), list(listed)
    while runnable := [step for step in waiting if ready.issuperset(step["input_map"].values())]:
        waiting = [step for step in waiting if step not in runnable]
        for step in runnable:
            ready.update(step["output_map"].values())
    return ready


# --- together with the steps' models ---


class _Tensor(NamedTuple):
    """An ensemble tensor as one model, or the ensemble itself, has it."""

    model: str
    data_type: str
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]  # with the batch dimension


def mismatches(config: Config, models: Sequence[Config]) -> Iterator[str]:
    """Contradictions between an ensemble and the configurations of its steps' models, in the order of the steps."""
    name = config["name"]
    seen: dict[str, _Tensor] = {}
    for tensor in (*config["input"], *config["output"]):
        dims = tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"]  # as in the steps' models
        seen[tensor["name"]] = _tensor(config, {**tensor, "dims": dims})
    for step, model in zip(steps(config), models, strict=True):
        most, allowed = config["max_batch_size"], model["max_batch_size"]
        if 0 < allowed < most:
            yield (
                f"ensemble {name} allows maximum batch size {most}, but it contains model {model['name']} which only "
                f"allows maximum batch size to be {allowed}"
            )
        yield from _unmapped(name, step, model)
        yield from _disagreements(name, step, model, seen)
    yield from _origins(config, models)
    if decoupled_steps(models):
        yield from response_cache({**config, "model_transaction_policy": {"decoupled": True}})


def decoupled_steps(models: Sequence[Config]) -> list[int]:
    """The numbers of the steps whose models are decoupled."""
    return [
        number
        for number, model in enumerate(models)
        if model.get("model_transaction_policy", {}).get("decoupled", False)
    ]


def _origins(config: Config, models: Sequence[Config]) -> Iterator[str]:
    """A refusal of steps that depend on the answers of several decoupled steps: which of those belong together is
    unknown."""
    name, decoupled, waiting = config["name"], set(decoupled_steps(models)), dict(enumerate(steps(config)))
    origins: dict[str, int | None] = dict.fromkeys([tensor["name"] for tensor in config["input"]])
    while runnable := [each for each, step in waiting.items() if origins.keys() >= set(step["input_map"].values())]:
        for number in runnable:
            step = waiting.pop(number)
            found = {origins[tensor] for tensor in step["input_map"].values()} - {None}
            if len(found) > 1:
                yield (
                    f"in ensemble {name}, step of model '{step['model_name']}' receives inputs originated from "
                    "different decoupled models"
                )
            mine = number if number in decoupled else next(iter(found), None)
            origins.update(dict.fromkeys(step["output_map"].values(), mine))
    if len({origins.get(tensor["name"]) for tensor in config["output"]}) > 1:  # Shoal's own check
        yield (
            f"in ensemble {name}, outputs depend on different decoupled models, or some on none; every response has "
            "all of them"
        )


def _unmapped(name: str, step: Config, model: Config) -> Iterator[str]:
    """Keys of a step's maps that its model does not have, and inputs of the model that no key names."""
    inputs = {tensor["name"]: tensor for tensor in model["input"]}
    outputs = {tensor["name"] for tensor in model["output"]}
    for key, tensor in step["input_map"].items():
        if key not in inputs:
            yield (
                f"in ensemble {name}, ensemble tensor {tensor} is mapping to non-existing input {key} in model "
                f"{model['name']}"
            )
    for key, given in inputs.items():
        if key not in step["input_map"] and not given["optional"]:
            yield f"in ensemble {name}, input {key} in model {model['name']} is not mapped to any ensemble tensors"
    for key, tensor in step["output_map"].items():
        if key not in outputs:
            yield (
                f"in ensemble {name}, ensemble tensor {tensor} is mapped from non-existing output {key} in model "
                f"{model['name']}"
            )


def _disagreements(name: str, step: Config, model: Config, seen: dict[str, _Tensor]) -> Iterator[str]:
    for field, listed in (("input_map", model["input"]), ("output_map", model["output"])):
        tensors = {tensor["name"]: tensor for tensor in listed}
        for key, ensemble_tensor in step[field].items():
            if key not in tensors:
                continue
            mine = _tensor(model, tensors[key])
            other = seen.setdefault(ensemble_tensor, mine)
            yield from _inconsistent(f"in ensemble {name}, ensemble tensor {ensemble_tensor}: ", mine, other)


def _tensor(config: Config, tensor: Config) -> _Tensor:
    dims = tuple(tensor["dims"])
    batch = (-1,) if config["max_batch_size"] > 0 else ()
    return _Tensor(config["name"], tensor["data_type"], dims, (*batch, *dims))


def _inconsistent(prefix: str, one: _Tensor, other: _Tensor) -> Iterator[str]:
    if one.data_type != other.data_type:
        yield (
            f"{prefix}inconsistent data type: {one.data_type} is inferred from model {one.model} while "
            f"{other.data_type} is inferred from model {other.model}"
        )
    # A tensor of a model that batches may fit one of a model that does not: with its batch dimension, or without.
    if not (fits(one.dims, other.dims) or fits(one.full_dims, other.full_dims)):
        yield (
            f"{prefix}inconsistent shape: {format_shape(one.full_dims)} is inferred from model {one.model} while "
            f"{format_shape(other.full_dims)} is inferred from model {other.model}"
        )


def fits(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes may be equal; -1 stands for any size."""
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
