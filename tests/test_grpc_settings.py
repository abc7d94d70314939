"""What front ends are told of gRPC is a part of the server's options, and travels as msgpack."""

from dataclasses import asdict, replace

import msgpack

from shoal.grpc_settings import GrpcSettings
from shoal.options import ServerOptions


def test_the_defaults_are_those_of_the_options() -> None:
    assert GrpcSettings.of(ServerOptions()) == GrpcSettings()


def test_it_is_what_the_options_say_after_a_journey() -> None:
    options = replace(
        ServerOptions(), grpc_keepalive_time=5, grpc_restricted_protocol={"trace": ("triton-grpc-protocol-k", "v")}
    )
    received = GrpcSettings(**msgpack.unpackb(msgpack.packb(asdict(GrpcSettings.of(options)))))
    assert (received.keepalive_time, received.restricted_protocol) == (5, {"trace": ["triton-grpc-protocol-k", "v"]})
