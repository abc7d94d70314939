"""The package from which handlers for older TorchServe import the function that sends a part of a response."""
