"""Metadata of the server and of a model, for HTTP, gRPC and guests."""

from typing import Any

from shoal.model_config.signature import TensorSpec
from shoal.star.known_server import KnownServer

#: The server's extensions, in Triton's order. Clients and perf_analyzer choose by this list which requests they send.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
#: Extensions of a server that allows clients' shared memory; the second only if the server uses a GPU.
REGION_EXTENSIONS = ("system_shared_memory", "cuda_shared_memory")


def describe_server(server: KnownServer) -> dict[str, Any]:
    """The members of the server's metadata, by their names in either protocol."""
    missing = set(REGION_EXTENSIONS[server.num_region_kinds :])
    extensions = [name for name in EXTENSIONS if name not in missing]
    return {"name": server.server_id, "version": server.version, "extensions": extensions}


def describe_model(server: KnownServer, name: str, version: str | None) -> dict[str, Any]:
    """The members of a model's metadata. `versions` has every READY version, or only the one in the request."""
    if not version:
        server.require_ready()  # Triton lists versions only while the server is not stopping
    entry = server.models.lookup(name, version)
    versions = [entry] if version else server.models.ready_entries(name)
    batched = entry.signature.max_batch_size > 0
    return {
        "name": entry.name,
        "versions": [str(each.version) for each in versions],
        "platform": entry.config.get("platform") or entry.config.get("backend", ""),
        "inputs": [_tensor(spec, batched) for spec in entry.signature.inputs.values()],
        "outputs": [_tensor(spec, batched) for spec in entry.signature.outputs.values()],
    }


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    # The shape for clients: `dims`, never `reshape`.
    shape = [-1, *spec.dims] if batched else list(spec.dims)
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}
