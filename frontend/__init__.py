"""The front ends: processes that turn HTTP into requests in shared memory, and results back into HTTP."""
