"""`shoal.Client` with all its kinds: the classes for URLs register themselves with Client when they are imported."""

from shoal.client import remote_grpc, remote_http
from shoal.client.sync import Client

__all__ = ["Client", "remote_grpc", "remote_http"]
