"""TorchServe's gRPC: its messages, its inference and management APIs, the open inference protocol under its name."""
