"""TorchServe's old place of the function that streams."""
