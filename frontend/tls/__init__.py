"""TLS on lanes of either protocol: handshakes, and sockets that encrypt."""
