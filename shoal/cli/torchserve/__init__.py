"""The command `torchserve`: TorchServe's flags and files, Shoal's server."""
