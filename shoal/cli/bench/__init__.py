"""The verb `bench`: the load of a model, closed or open, over HTTP, gRPC or shared memory, and its figures.

`loads.py` decides when a request is sent, the transports send it, `measurement.py` decides what is measured and when it
is stable. `tune` measures by the same parts.
"""
