"""sequence_batching: its checks, and the tensors that it adds to a model's.

A client sends neither the control tensors nor the states; a worker adds them to the client's tensors, so a backend sees
them as ordinary inputs and outputs (`with_sequence_tensors`). Pure.
"""

from collections.abc import Iterator
from typing import NamedTuple

from shoal.model_config import messages
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter, whole_number_faults

#: Triton's default of max_sequence_idle_microseconds.
IDLE_MICROSECONDS = 1_000_000
#: The most candidates (ours): each is a slot of each instance.
MAX_CANDIDATE_SEQUENCES = 65536

CORRELATION_KIND = "CONTROL_SEQUENCE_CORRID"
#: The fields with the two values of a boolean control, and the datatype of each.
VALUES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}
CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")

#: Parameters of a TorchServe archive's model, by TorchServe's names of their settings: sequenceBatching, jobQueueSize,
#: and maxNumSequence, maxSequenceJobQueueSize, sequenceTimeoutMSec.
SEQUENCE_PARAMETER, QUEUE_PARAMETER = "ts_sequence", "ts_job_queue_size"
_OWN_LIMITS = ("ts_max_num_sequence", "ts_max_sequence_queue_size", "ts_sequence_timeout_ms")
_MAX_INT32 = 2**31 - 1


class Control(NamedTuple):
    """A control tensor; `values` are its values for false and true; () for a correlation id."""

    name: str
    kind: str
    data_type: str
    values: tuple[float, ...]


def batching(config: Config) -> Config | None:
    """The configuration's `sequence_batching`; None without one."""
    found: Config | None = config.get("sequence_batching")
    return found


def completed(given: Config, max_batch_size: int) -> Config:
    """`sequence_batching` with Triton's defaults."""
    given = {**given, "max_sequence_idle_microseconds": given["max_sequence_idle_microseconds"] or IDLE_MICROSECONDS}
    if "oldest" in given and not given["oldest"]["preferred_batch_size"] and max_batch_size > 0:
        given["oldest"] = {**given["oldest"], "preferred_batch_size": [max_batch_size]}
    return given


def num_slots(config: Config) -> int:
    """The number of sequences that an instance can have at once; 0 for a model without `sequence_batching`."""
    given = batching(config)
    if given is None:
        return 0
    candidates = int(given["oldest"]["max_candidate_sequences"]) if "oldest" in given else 0
    return candidates or max(1, int(config.get("max_batch_size", 0)))


def controls(config: Config) -> list[Control]:
    """The control tensors of a configuration that has been checked."""
    found = []
    for control_input in (batching(config) or {}).get("control_input", ()):
        for control in control_input["control"]:
            field = next((field for field in VALUES if control[field]), "")
            data_type: str = VALUES.get(field) or control["data_type"]
            found.append(Control(control_input["name"], control["kind"], data_type, tuple(control.get(field, ()))))
    return found


class OwnLimits(NamedTuple):
    """The bounds of sequences that TorchServe has and Triton has not; 0: none."""

    max_open: int  # sequences at once, over all instances
    max_waiting: int  # requests of one sequence that wait
    max_lifetime_ms: int  # from a sequence's beginning


def own_limits(config: Config) -> OwnLimits:
    """The bounds of sequences that a TorchServe archive has set; none for other models."""
    return OwnLimits(*[int(parameter(config, name) or 0) if begins_unasked(config) else 0 for name in _OWN_LIMITS])


def begins_unasked(config: Config) -> bool:
    """Whether the first request of a sequence begins it even without the flag START, which few TorchServe clients
    send."""
    return parameter(config, SEQUENCE_PARAMETER) == "true"


def max_waiting_requests(config: Config) -> int:
    """The most requests that wait, as a TorchServe archive sets it; 0: the server's bound holds."""
    return int(parameter(config, QUEUE_PARAMETER) or 0)


def states(config: Config) -> list[Config]:
    """The implicit states of a sequence model; none for other models."""
    found: list[Config] = (batching(config) or {}).get("state", [])
    return found


def with_sequence_tensors(config: Config) -> Config:
    """The configuration as a backend sees it: control tensors and states among its inputs, states among its outputs."""
    if batching(config) is None:
        return config
    inputs = [messages.model_input(each.name, each.data_type, (1,)) for each in controls(config)]
    inputs += [messages.model_input(each["input_name"], each["data_type"], each["dims"]) for each in states(config)]
    known = {output["name"] for output in config["output"]}  # a state may also be an output for the client
    outputs = [
        messages.model_output(each["output_name"], each["data_type"], each["dims"])
        for each in states(config)
        if each["output_name"] not in known
    ]
    return {**config, "input": config["input"] + inputs, "output": config["output"] + outputs}


# -- rules of `checks` ------------------------------------------------------------------------------------------------


def faults(config: Config) -> Iterator[str]:
    """Check the sequence_batching of a configuration that may not be finished yet."""
    given, name = batching(config), config["name"]
    if given is None:
        return
    for own in (*_OWN_LIMITS, QUEUE_PARAMETER):
        yield from whole_number_faults(config, own, 0, _MAX_INT32, "a whole number")
    yield from _controls(given, name)
    if not 0.0 <= given.get("direct", {}).get("minimum_slot_utilization", 0.0) <= 1.0:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
    num_candidates = given.get("oldest", {}).get("max_candidate_sequences", 0)
    if num_candidates > MAX_CANDIDATE_SEQUENCES:
        yield f"max_candidate_sequences is {num_candidates} for {name}, must be at most {MAX_CANDIDATE_SEQUENCES}"
    for state in given["state"]:
        yield from _state(state, config)


def _controls(given: Config, model: str) -> Iterator[str]:
    tensors: set[str] = set()
    kinds: set[str] = set()
    for control_input in given["control_input"]:
        tensor = control_input["name"]
        if not tensor:
            yield f"sequence batching control tensor must have a name for {model}"
        if tensor in tensors or len(control_input["control"]) > 1:
            yield f"sequence batching control tensor '{tensor}' is specified for multiple control kinds for {model}"
        tensors.add(tensor)
        for control in control_input["control"]:
            kind = control["kind"]
            if kind in kinds:
                yield f"sequence batching specifies multiple {kind} tensors for {model}"
            kinds.add(kind)
            yield from _correlation(control, model) if kind == CORRELATION_KIND else _boolean(control, kind, model)


def _boolean(control: Config, kind: str, model: str) -> Iterator[str]:
    fields = [field for field in VALUES if control[field]]
    for field in fields:
        if len(control[field]) != 2:
            yield f"sequence batching control '{field}' must have exactly 2 entries for {kind} for {model}"
    which = "'int32_false_true', 'fp32_false_true'"
    if not fields:
        yield f"sequence batching must specify either {which} or 'bool_false_true' for {kind} for {model}"
    if len(fields) > 1:
        yield f"sequence batching specifies more than one from {which} and 'bool_false_true' for {kind} for {model}"


def _correlation(control: Config, model: str) -> Iterator[str]:
    if control["data_type"] not in CORRELATION_TYPES:
        yield (
            f"unexpected data type for control {CORRELATION_KIND} for {model}. Allowed data types are "
            f"{', '.join(CORRELATION_TYPES[:-1])} and {CORRELATION_TYPES[-1]}"
        )
    if any(control[field] for field in VALUES):
        yield (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{CORRELATION_KIND} for {model}"
        )


def _state(state: Config, config: Config) -> Iterator[str]:
    """Check a state: the sentences on its initial value are Triton's, the others catch what would fail in a backend."""
    model, name, dims, initial = config["name"], state["input_name"], state["dims"], state["initial_state"]
    if not name or not state["output_name"] or not dims or state["data_type"] == "TYPE_INVALID":
        yield f"a state of model '{model}' must have 'input_name', 'output_name', 'data_type' and 'dims'"
    if config.get("model_transaction_policy", {}).get("decoupled"):
        yield f"model '{model}' is decoupled and so answers when it likes: it must keep the state '{name}' itself"
    if -1 in dims and config["max_batch_size"] > 1 and config["backend"] != "python":
        yield f"the state '{name}' of model '{model}' has a variable dimension, so max_batch_size must be at most 1"
    if len(initial) > 1:
        yield (
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(initial)}' elements."
        )
    for each in initial:
        yield from _initial(each, state)


def _initial(initial: Config, state: Config) -> Iterator[str]:
    name, dims = state["input_name"], state["dims"]
    if not initial["name"]:
        yield f"Field 'name' must be set when using initial_state for state input '{name}'."
    if initial["data_type"] != state["data_type"]:
        yield f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
    if len(initial["dims"]) != len(dims):
        yield (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial['dims'])} != {len(dims)}"
        )
    for got, wanted in zip(initial["dims"], dims, strict=False):
        if got < 0:
            yield f"'initial_state' field for state input name '{name}' contains variable dimensions."
        if wanted not in (-1, got):
            yield (
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {got} != {wanted}"
            )
    if not initial.keys() & {"zero_data", "data_file"}:
        yield f"initial_state setting expects state'{name}' to have state_data set"
