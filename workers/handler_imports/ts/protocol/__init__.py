"""TorchServe's old package of the function that sends a part of a response."""
