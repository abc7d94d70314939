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


def test_a_framework_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shoal.workers.backends.onnxruntime", raising=False)
    real = builtins.__import__

    def without_onnxruntime(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError("No module named 'onnxruntime'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_onnxruntime)
    with pytest.raises(UnsupportedError) as caught:
        backends.create("onnxruntime")
    assert str(caught.value) == (
        "backend 'onnxruntime' cannot be imported: No module named 'onnxruntime'. "
        "Install it with: pip install 'shoal[onnx]'"
    )


def test_a_worker_imports_no_framework_that_it_does_not_run() -> None:
    code = "import sys, shoal.workers.worker; print('onnxruntime' in sys.modules, 'google.protobuf' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"
