"""The Python backend: models that are a model.py with a class TritonPythonModel."""

from shoal.workers.backends.python.backend import PythonBackend

__all__ = ["PythonBackend"]
