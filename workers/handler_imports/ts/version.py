"""The version of TorchServe whose handlers this package serves."""

__version__ = "0.12.0"
