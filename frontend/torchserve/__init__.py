"""TorchServe's protocol: of its management API, the part that scripts use to scale models."""
