"""TorchServe's HTTP protocol: its inference, management and metrics APIs, for models of either kind of repository."""
