"""gRPC: the inference service over our own HTTP/2 (the lane) and over grpcio's server (the road)."""
