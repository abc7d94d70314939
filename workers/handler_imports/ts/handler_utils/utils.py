"""The function by which a handler sends a part of a streamed response, and the import of a class by its name."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ts.context import Context


def import_class(module_name: str, class_name: str, module_prefix: str | None = None) -> Any:
    """A class by its module and name; the module may lie in the package `module_prefix`. Raises ImportError if there
    is none."""
    name = f"{module_prefix}.{module_name}" if module_prefix else module_name
    module = importlib.import_module(name)
    try:
        return getattr(module, class_name)
    except AttributeError:
        raise ImportError(f"module '{name}' has no class '{class_name}'") from None


def send_intermediate_predict_response(
    ret: Sequence[Any],
    req_id_map: Mapping[int, str] | None,
    message: str,
    code: int,
    context: Context | None = None,
) -> None:
    """Send one part of a streamed response to each request of the batch: `ret` has an element per request, in the forms
    that a handler may return. The last part is what the handler returns.

    Raises ValueError without a context, or if `ret` has another number of elements; RuntimeError outside of a server.
    """
    del req_id_map  # TorchServe's argument; the context has the requests' ids, too
    if context is None:
        raise ValueError("send_intermediate_predict_response needs the handler's context as its fifth argument")
    if context.send_intermediate is None:
        raise RuntimeError("there is no client to send a part of a response to: this context is not a server's")
    context.send_intermediate(ret, message, code)
