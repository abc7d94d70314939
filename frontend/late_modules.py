"""Modules that gunicorn imports and that front ends need seldom or never: each is imported when an attribute of it is
used. Together they would take 2.4 MiB of memory. gunicorn is first imported within `imported_late`.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _NoTlsError(OSError):
    """Stands for ssl.SSLError in gunicorn's own TLS, which no front end uses (they have frontend/tls)."""


#: By module, the attributes that gunicorn takes from it while gunicorn is being imported.
UNUSED: Mapping[str, Mapping[str, Any]] = {
    "email.utils": {},
    "html": {},
    "importlib.metadata": {},
    "ssl": {"CERT_NONE": 0, "PROTOCOL_SSLv23": 2, "PROTOCOL_TLS": 2, "SSLError": _NoTlsError},
}


@contextmanager
def imported_late(modules: Mapping[str, Mapping[str, Any]] = UNUSED) -> Iterator[None]:
    """A context in which import statements of these modules bind stand-ins, unless a module has been imported already.

    A stand-in has the attributes that are given; at any other attribute it imports its module.
    """
    made = {name: _stand_in(name, given) for name, given in modules.items() if name not in sys.modules}
    for name, module in made.items():
        package, _, child = name.rpartition(".")
        if package:
            setattr(importlib.import_module(package), child, module)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in made.items():
            _remove(name, module)


def _stand_in(name: str, given: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)

    def find(attribute: str) -> Any:
        if attribute.startswith("__"):  # the import statement itself asks for __path__
            raise AttributeError(attribute)
        _remove(name, module)
        return getattr(importlib.import_module(name), attribute)

    vars(module).update(given, __getattr__=find)
    return module


def _remove(name: str, module: ModuleType) -> None:
    if sys.modules.get(name) is module:
        del sys.modules[name]
