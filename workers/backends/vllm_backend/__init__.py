"""The backend `vllm`, a model.py that serves all models of this backend. The package is not called `vllm`, which is the
name of vLLM's own package."""
