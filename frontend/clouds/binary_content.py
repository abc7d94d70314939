"""Binary tensors for clients that cannot send headers of their own: the Content-Type says how long the JSON is.

    Content-Type: application/vnd.sagemaker-triton.binary+json;json-header-size=146

stands for the header Inference-Header-Content-Length: 146 of Triton's API: in requests, and with SageMaker in
responses, too. Pure; front-end processes.
"""

from collections.abc import Mapping

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import Handler
from shoal.frontend.response import Response
from shoal.frontend.v2.infer import HEADER


def asked_by_content_type(handler: Handler, content_type: str) -> Handler:
    """A handler of Triton's API for requests whose Content-Type gives the length of the JSON; `content_type` is the
    Content-Type up to that number."""
    return lambda call: handler(call._replace(headers=_incoming(call.headers, content_type)))


def answered_by_content_type(handler: Handler, content_type: str) -> Handler:
    """A handler of Triton's API whose requests and responses give the length of the JSON in their Content-Type, and in
    no other header."""
    asked = asked_by_content_type(handler, content_type)
    return lambda call: _outgoing(asked(call), content_type)


def _incoming(headers: Mapping[str, str], content_type: str) -> dict[str, str]:
    """The headers of a request, with the JSON's length moved from the Content-Type to Triton's header. Raises
    InvalidArgumentError, with Triton's sentence, if the Content-Type has other text in front of `content_type`."""
    translated = {name: value for name, value in headers.items() if name != HEADER.lower()}
    sent = headers.get("content-type", "")
    before, is_binary, length = sent.partition(content_type)
    if before and is_binary:
        raise InvalidArgumentError(f"expect MIME type for binary data starts with '{content_type}', got: {sent}")
    if is_binary:
        translated[HEADER.lower()] = length
    return translated


def _outgoing(response: Response, content_type: str) -> Response:
    headers = dict(response.headers)
    length = headers.pop(HEADER, None)
    if length is None:
        return response
    return response._replace(headers=(*{**headers, "Content-Type": content_type + length}.items(),))
