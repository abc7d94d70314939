"""`shoal.Client` with all its kinds: those for URLs, once imported, enter themselves among the ones it chooses from."""

from shoal.client import remote_grpc, remote_http
from shoal.client.sync import Client

__all__ = ["Client", "remote_grpc", "remote_http"]
