"""The command `torchserve`: reads TorchServe's flags and files, and runs Shoal's server."""
