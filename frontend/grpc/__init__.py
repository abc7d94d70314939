"""gRPC: the inference service on a lane of its own, over HTTP/2 and TLS."""
