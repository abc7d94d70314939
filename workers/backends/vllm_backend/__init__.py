"""The backend `vllm`, a model.py for all models that name it; `vllm` itself is the name of vLLM's own package."""
