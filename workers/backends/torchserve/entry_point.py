"""The entry point of a handler: a function, or the `handle` of a class, found by TorchServe's rules.

    handler text     module                       entry point
    name.py:entry    a file of the archive        `entry`, else the class
    name, name.py    a file of the archive,       `handle`, else the class
                     else ts.torch_handler.name
    /dir/a.b         a dotted path, as SageMaker's

Of several classes that a module defines itself, the only one with both `handle` and `initialize` is taken; TorchServe
refuses such a module. If a module cannot be imported, the error of the first attempt is reported; TorchServe reports
the error of its second attempt.
"""

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from ts.context import Context
from ts.utils.util import list_classes_from_module

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.python.model import describe

_log = logging.getLogger(__name__)

BUILT_IN = "ts.torch_handler"
ENVELOPES = f"{BUILT_IN}.request_envelope"
_NO_ENTRY = "Expected only one class in custom service code or a function entry point"

#: A function from a batch and the context to a list with one element per request, or to a coroutine that returns it.
Handle = Callable[[Any, Context], Any]


class EntryPoint(NamedTuple):
    """The two functions of a handler that the backend calls."""

    handle: Handle
    initialize: Callable[[Context], Any]


def find(handler: str, envelope: str = "") -> EntryPoint:
    """The entry point that a handler's text names, wrapped in the named request envelope, if any. Raises
    InvalidArgumentError if there is none, or if it cannot be imported; otherwise whatever a handler's module or
    constructor raises."""
    text, _, function = handler.partition(":")
    name = text.removesuffix(".py").rpartition("/")[2]
    module = _import(name, handler)
    found = _in_module(module, function or "handle", handler)
    if envelope:
        wrapped = _envelope(envelope)(found.handle)
        return EntryPoint(wrapped.handle, found.initialize)
    return found


def _import(name: str, handler: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        built_in = f"{BUILT_IN}.{name}"
        if _is_module(built_in) and isinstance(error, ModuleNotFoundError) and error.name == name:
            return importlib.import_module(built_in)
        raise InvalidArgumentError(
            f"handler '{handler}' cannot be imported: {describe(error, __file__)}{_hint(name, error)}"
        ) from error
    except ValueError as error:  # the name is empty
        raise InvalidArgumentError(f"handler '{handler}' names no module: {error}") from error


def _hint(name: str, error: ImportError) -> str:
    if error.name == name:
        files = sorted(each for each in os.listdir(sys.path[0] or ".") if each.endswith(".py"))
        return f"\nPython files of the archive: {', '.join(files) or 'none'}"
    if isinstance(error, ModuleNotFoundError):
        return f"\nInstall '{error.name}' beside the server, or list it in the archive's requirements file"
    return ""


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _in_module(module: ModuleType, function: str, handler: str) -> EntryPoint:
    if hasattr(module, function):
        entry = getattr(module, function)
        return EntryPoint(entry, lambda context: _call_once(entry, context, handler))
    classes = list_classes_from_module(module)
    if len(classes) > 1:
        classes = [each for each in classes if hasattr(each, "handle") and hasattr(each, "initialize")]
    if len(classes) != 1:
        raise InvalidArgumentError(
            f"{_NO_ENTRY} {[each.__name__ for each in list_classes_from_module(module)]}: the handler '{handler}' "
            f"needs a function '{function}', or one class with the methods 'handle' and 'initialize'"
        )
    instance = classes[0]()
    handle = getattr(instance, "handle", None)  # as the constructor leaves it; later changes have no effect
    if handle is None:
        raise InvalidArgumentError(f"class '{classes[0].__name__}' of handler '{handler}' has no method 'handle'")
    return EntryPoint(handle, getattr(instance, "initialize", _initialize_nothing))


def _initialize_nothing(_context: Context) -> None:
    """The `initialize` of a class that has none; TorchServe does not load such a class."""


def _call_once(entry: Handle, context: Context, handler: str) -> None:
    """Call a handler's function once without data, as TorchServe does while it loads a model: many functions initialise
    themselves in that call.

    A function that fails only because it does not expect None is served all the same; TorchServe does not load it.
    """
    try:
        entry(None, context)
    except (AttributeError, TypeError) as error:
        if "NoneType" not in str(error):
            raise
        _log.warning("handler '%s' was called without data, to initialise itself, and failed: %s", handler, error)


def _envelope(name: str) -> Any:
    """The class of an envelope: one of TorchServe's by its name, or the one class of a module in the archive."""
    module_name = f"{ENVELOPES}.{name}"
    if not name.isidentifier():
        raise InvalidArgumentError(f"'{name}' is no name of a request envelope")
    module = importlib.import_module(module_name if _is_module(module_name) else _own_envelope(name))
    classes: Mapping[str, type] = {each.__name__: each for each in list_classes_from_module(module)}
    if len(classes) != 1:
        raise InvalidArgumentError(
            f"the request envelope '{name}' must be a module with one class, it has {', '.join(classes) or 'none'}"
        )
    return next(iter(classes.values()))


def _own_envelope(name: str) -> str:
    if not _is_module(name):
        known = ", ".join(ENVELOPE_NAMES)
        raise InvalidArgumentError(f"there is no request envelope '{name}': there are {known}, and modules of archives")
    return name


ENVELOPE_NAMES = ("body", "json", "kserve", "kservev2")
