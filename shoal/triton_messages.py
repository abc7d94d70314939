"""Triton's protobuf messages, compiled: tritonclient's modules, loaded from their files.

`import tritonclient.grpc` would import grpcio, which takes 0.2 s and starts threads. Both ways of loading share
protobuf's one descriptor pool and the message classes in it, so either may come first. Importing protobuf takes 0.1 s
and 20 MiB: only processes that need a message import this module.
"""

import builtins
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import InternalError

_PACKAGE = "tritonclient.grpc"


@cache
def model_config() -> Any:
    """The module of model_config.proto: ModelConfig."""
    return _load("model_config_pb2", {})


@cache
def service() -> Any:
    """The module of grpc_service.proto: the requests and responses of GRPCInferenceService."""
    return _load("service_pb2", {"model_config_pb2": model_config()})


def _load(name: str, siblings: dict[str, ModuleType]) -> ModuleType:
    """Load tritonclient's generated module `name`, which imports `siblings` from its package.

    The module gets a private name, so that it is not taken for the package's own.
    """
    found = importlib.util.find_spec("tritonclient")
    folders = found.submodule_search_locations if found is not None else None
    if not folders:
        raise InternalError("tritonclient is not installed; its compiled messages are what Shoal reads Triton's by")
    spec = importlib.util.spec_from_file_location(f"_shoal_{name}", Path(folders[0], "grpc", f"{name}.py"))
    if spec is None or spec.loader is None:
        raise InternalError(f"tritonclient has no grpc/{name}.py; install tritonclient 2.60 or later")
    package = ModuleType(_PACKAGE)
    vars(package).update(siblings)

    def import_module(imported: str, *arguments: Any) -> ModuleType:
        return package if imported == _PACKAGE else builtins.__import__(imported, *arguments)

    module = importlib.util.module_from_spec(spec)
    # An __import__ of its own: no other module, in any thread, is affected.
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_module}
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise InternalError(f"tritonclient has no grpc/{name}.py; install tritonclient 2.60 or later") from error
    return module
