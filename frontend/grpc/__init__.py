"""gRPC, on lanes of its own: HTTP/2 in plain text or over TLS, the services, and calls that the road answers."""
