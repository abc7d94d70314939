"""TorchServe's built-in handlers, which archives name, and from which users derive their own."""
