"""The backend `vllm`, a model.py for all models that name it; its name here is another than that of vLLM's package."""
