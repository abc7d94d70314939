"""TorchServe's gRPC: its messages, its inference and management APIs, and the open inference protocol under
TorchServe's service name."""
