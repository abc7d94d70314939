"""Backends by their names."""

import builtins
import subprocess
import sys
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.workers import backends
from shoal.workers.backends.identity import IdentityBackend


def test_a_backend_by_name() -> None:
    assert isinstance(backends.create("identity"), IdentityBackend)


def test_an_unknown_backend_has_tritons_sentence() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        backends.create("pythom")
    assert str(caught.value) == (
        "unable to find backend library for backend 'pythom', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize(
    ("backend", "package", "distribution"),
    [
        ("onnxruntime", "onnxruntime", "shoal[onnx]"),
        ("openvino", "openvino", "shoal[openvino]"),
        ("tensorflow", "tensorflow", "shoal[tensorflow]"),
    ],
)
def test_a_framework_that_is_not_installed_is_named(
    backend: str, package: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"shoal.workers.backends.{backend}", raising=False)
    real = builtins.__import__

    def without_package(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == package:
            raise ImportError(f"No module named '{package}'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_package)
    with pytest.raises(UnsupportedError) as caught:
        backends.create(backend)
    assert str(caught.value) == (
        f"backend '{backend}' cannot be imported: No module named '{package}'. "
        f"Install it with: pip install '{distribution}'"
    )


def test_a_worker_imports_no_framework_that_it_does_not_run() -> None:
    imports = "import sys, shoal.workers.worker"
    code = f"{imports}; print({{'onnxruntime', 'openvino', 'google.protobuf'}}.intersection(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
