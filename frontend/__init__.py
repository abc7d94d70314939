"""The front ends: processes that turn clients' HTTP and gRPC into requests in shared memory, and results into
responses."""
