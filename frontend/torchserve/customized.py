"""A handler's own description of its model, for GET /models/M?customized=true. Runs on the road."""

from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from shoal.frontend.call import HandlerCall
from shoal.frontend.prepared import SEQUENCE_END, SEQUENCE_START
from shoal.frontend.response import Headers
from shoal.frontend.torchserve.errors import refused
from shoal.frontend.torchserve.predictions import (
    Asked,
    answered,
    description,
    element_of,
    in_sequence,
    new_id,
    prepare,
)
from shoal.star.models import ModelEntry


class CustomizedMetadata(NamedTuple):
    """The metadata that a handler has returned, {} where that is no JSON object, and the headers that it has set."""

    metadata: dict[str, Any]
    headers: Headers


def customized_metadata(call: HandlerCall, entry: ModelEntry | None) -> CustomizedMetadata:
    """Ask the handler of a version. Raises ShoalError: it fails, or there is no worker (`entry` None)."""
    if entry is None:
        missing = "has no worker to serve describe request. Please use scale workers API to add workers."
        raise refused(503, "ServiceUnavailableException", f'Model "{call.name}" {missing}')
    assert call.transport is not None, "a description is made on the road"
    request_id, headers = new_id(), dict[str, str]()
    sequence_id = in_sequence(entry, headers)
    described = description(Asked(), "", headers, request_id, describe=True)
    prepared = prepare(entry, request_id, described, element_of([]), sequence_id)
    if sequence_id:
        prepared = replace(prepared, flags=SEQUENCE_START | SEQUENCE_END)  # of which nothing stays
    reply = call.transport.infer(prepared)
    try:
        answer = answered(reply.response, reply.block)
        body = bytes(answer.body)
    finally:
        reply.release()
    try:
        told: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = {}
    return CustomizedMetadata(told if isinstance(told, dict) else {}, answer.headers)
