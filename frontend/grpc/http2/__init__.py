"""HTTP/2's server side, as small as gRPC needs it: bytes in, events out; actions in, bytes out. Pure."""
