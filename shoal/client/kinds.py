"""`shoal.Client` for paths and URLs: importing this module imports the classes for URLs, which register themselves with
Client."""

from shoal.client import remote_grpc, remote_http
from shoal.client.sync import Client

__all__ = ["Client", "remote_grpc", "remote_http"]
