"""TorchServe's HTTP protocol: its inference, management and metrics APIs, for models of TorchServe's stores and of
Triton's repositories."""
