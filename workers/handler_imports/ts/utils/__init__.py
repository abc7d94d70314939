"""TorchServe's functions that handlers import beside the handlers' classes."""
