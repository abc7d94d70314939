"""A fake of vLLM's package, as far as the backend `vllm` uses it: an engine that says the prompt's words backwards.

Names, arguments and attributes are those of vLLM's own sources (0.9 to 0.19). The real one has never run here.
"""
