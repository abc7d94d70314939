"""Functions of TorchServe that handlers import, beside the classes of handlers."""
