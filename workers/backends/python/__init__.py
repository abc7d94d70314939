"""The Python backend: models that are a model.py with a class TritonPythonModel."""
