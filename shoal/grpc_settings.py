"""Settings of gRPC for front ends: the flags of gRPC, by their names without "grpc-". Made by the supervisor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.options import ServerOptions


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """The gRPC part of ServerOptions, which explains fields and defaults. Times are in milliseconds."""

    header_forward_pattern: str = ""
    restricted_protocol: Mapping[str, Sequence[str]] = field(default_factory=dict)
    infer_response_compression_level: str = "none"
    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connections: int = 0
    max_connection_age: int = 0
    max_connection_age_grace: int = 0

    @classmethod
    def of(cls, options: "ServerOptions") -> "GrpcSettings":
        """The gRPC part of a server's options."""
        return cls(**{each.name: getattr(options, f"grpc_{each.name}") for each in fields(cls)})
