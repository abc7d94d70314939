"""Responses to a lane's infer requests: put together from a kept earlier response, or rendered in full.

Responses to requests of one template most often differ in their tensors and ids only. A response that is rendered in
full is kept with its request's template, under the header that the worker packed; the next response with the same
header takes all but tensors and id from it. Pure; one thread, the lane's.
"""

from typing import Final

from shoal.errors import ShoalError
from shoal.frontend.http import json_template
from shoal.frontend.http.connection import Chunks
from shoal.frontend.http.json_template import JsonTemplate
from shoal.frontend.http.templates import (
    RegionTemplate,
    RequestTemplate,
    ResponseHead,
    Submitted,
    VariedRequest,
    keep_region_response,
    prepared_of,
)
from shoal.frontend.recorded_headers import as_answered
from shoal.frontend.response import JSON_HEAD, Response, error_response, response_head
from shoal.frontend.v2.infer import render
from shoal.request import InferResponse
from shoal.shm.port import Reply
from shoal.star.refusal import answered, other_version

#: A response whose head and tensors have at most this many bytes is sent as one chunk: a send of one chunk is cheaper
#: than a sendmsg of several, and the worker's block is released at once.
JOIN_BYTES: Final = 16 * 1024
#: The most responses that are kept with one template.
_MAX_RESPONSES = 256
#: The first bytes of a JSON response with an id; a response without one begins with the brace alone.
_ID_MEMBER: Final = b'{"id":"%b",'


def known_response(submitted: Submitted, reply: Reply) -> Chunks | None:
    """The whole response if everything in it but tensors and id is kept from an earlier response; else None, and
    `rendered_response` has to make the response.

    A single chunk is private memory; of several, all but the first are views of the worker's block, valid until the
    block is released.
    """
    header, block = reply.header, reply.block
    if header is None or block is None or reply.status or reply.reason:
        return None
    template, id_ = submitted, b""
    if type(submitted) is VariedRequest:
        template, id_ = submitted.template, submitted.id
    # A worker may send the same header with a smaller block.
    if type(template) is RequestTemplate:
        known = template.response_heads.get(header)
        if known is None or known.end > len(block):
            return None
        head = known.with_id(id_) if id_ else (known.head,)
        chunks: Chunks = [*head] if known.is_small else [b"".join(head)]
        for start, end in known.spans:
            chunks.append(block[start:end])
        return [b"".join(chunks)] if known.is_small else chunks
    if type(template) is JsonTemplate:
        json = template.responses.get(header)
        text = json_template.fill(json, block) if json is not None and json.end <= len(block) else None
        return None if text is None else [_json_response(text, id_)]
    if type(template) is RegionTemplate:
        in_regions = template.responses.get(header)
        if in_regions is None or in_regions.outputs.end > len(block):
            return None
        try:
            in_regions.outputs.write(block)
        except ShoalError:
            return None  # rendering in full raises this error again
        return [_json_response(in_regions.json, id_)]
    return None


def rendered_response(submitted: Submitted, reply: Reply) -> Response:
    """The response to a request, or to its error, rendered in full. The response is kept with the request's template,
    for `known_response`, if only tensors and id can differ in the next response."""
    prepared = prepared_of(submitted)
    try:
        answer = answered(prepared.entry, prepared.id, reply, prepared.correlation_id)
        rendered = render(as_answered(prepared, other_version(reply)), answer.response, answer.block)
    except ShoalError as error:
        return error_response(error)
    if reply.reason:
        return rendered  # another version has answered, and a kept response would name it
    if type(submitted) is VariedRequest:
        bare = render(submitted.template.prepared, answer.response, answer.block)
        _keep(submitted.template, answer.header, answer.response, bare)
    else:
        _keep(submitted, answer.header, answer.response, rendered)
    return rendered


def _keep(template: Submitted, packed: bytes, response: InferResponse, rendered: Response) -> None:
    """Keep a rendered response, without an id, if nothing but the tensors' bytes can differ in the next response.
    `packed` is the header of the worker's reply."""
    if type(template) is JsonTemplate:
        known = json_template.make_response(template.prepared, response, bytes(rendered.chunks[0]))
        if known is not None and len(rendered.chunks) == 1 and len(template.responses) < _MAX_RESPONSES:
            template.responses[packed] = known
    elif type(template) is RegionTemplate:
        if len(rendered.chunks) == 1:
            keep_region_response(template, packed, response, bytes(rendered.chunks[0]))
    elif (
        type(template) is RequestTemplate and len(rendered.chunks) > 1 and len(template.response_heads) < _MAX_RESPONSES
    ):
        wanted = {output.name: output for output in template.prepared.outputs}
        sent = [ref for ref in response.outputs if not wanted or ref.name in wanted]
        binary_by_default = template.prepared.binary_data_output
        # In a response with outputs as JSON, or with classifications, the data also changes bytes around the tensors:
        # none is kept.
        if all(wanted[ref.name].binary if wanted else binary_by_default for ref in sent) and not any(
            output.classification for output in template.prepared.outputs
        ):
            spans = tuple([(ref.offset, ref.offset + ref.nbytes) for ref in sent if ref.nbytes])
            json = bytes(rendered.chunks[0])
            head = response_head(rendered) + json
            is_small = sum([end - start for start, end in spans], len(head)) <= JOIN_BYTES
            end = max([end for _, end in spans], default=0)
            template.response_heads[packed] = ResponseHead(head, json, spans, end, is_small)


def _json_response(text: bytes, id_: bytes) -> bytes:
    """A whole response: a JSON object that is not empty, with this id in front, if there is one."""
    if id_:
        text = _ID_MEMBER % id_ + text[1:]
    return JSON_HEAD % len(text) + text
