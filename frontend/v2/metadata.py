"""Metadata of the server and of a model, and a model's configuration. Pure handlers, run in front-end processes."""

from typing import Any

from shoal.frontend.response import Response, json_response
from shoal.frontend.state import ServerState
from shoal.model_config.signature import TensorSpec

#: What this server can do, in Triton's order. Clients and perf_analyzer decide by this list what they may ask for.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",  # where it is allowed
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata(state: ServerState) -> Response:
    """Name, protocol version and extensions."""
    return json_response(200, describe_server(state))


def model_metadata(state: ServerState, name: str, version: str | None) -> Response:
    """A model's tensors."""
    return json_response(200, describe_model(state, name, version))


def model_config(state: ServerState, name: str, version: str | None) -> Response:
    """The configuration after normalisation and auto-complete; 64-bit integers are JSON numbers, as in Triton."""
    return json_response(200, state.models.lookup(name, version).config)


def describe_server(state: ServerState) -> dict[str, Any]:
    """The members of the server's metadata, by their names in either protocol."""
    extensions = [name for name in EXTENSIONS if name != "system_shared_memory" or state.regions.are_allowed]
    return {"name": state.server_id, "version": state.version, "extensions": extensions}


def describe_model(state: ServerState, name: str, version: str | None) -> dict[str, Any]:
    """The members of a model's. `versions` has every READY version, or only the one that was asked for."""
    if not version:
        state.require_ready()  # Triton lists versions only for a server that is not stopping
    entry = state.models.lookup(name, version)
    versions = [entry] if version else state.models.ready_entries(name)
    batched = entry.signature.max_batch_size > 0
    return {
        "name": entry.name,
        "versions": [str(each.version) for each in versions],
        "platform": entry.config.get("platform") or entry.config.get("backend", ""),
        "inputs": [_tensor(spec, batched) for spec in entry.signature.inputs.values()],
        "outputs": [_tensor(spec, batched) for spec in entry.signature.outputs.values()],
    }


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    # As clients see the tensor: `dims`, never `reshape`.
    shape = [-1, *spec.dims] if batched else list(spec.dims)
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}
