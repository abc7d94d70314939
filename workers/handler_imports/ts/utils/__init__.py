"""TorchServe's functions that handlers import besides the handlers' classes."""
