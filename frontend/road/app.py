"""The Flask application of the road: gives a WSGI request to its endpoint (endpoints.py), and makes the response one of
WSGI. The only file that uses Flask; a road imports it with its first request (road.py).

One function handles every path and method, so Flask routes nothing, answers no HEAD or OPTIONS itself and never sends
HTML.
"""

from flask import Flask, request
from flask import Response as FlaskResponse

from shoal.frontend.response import Response
from shoal.frontend.road.endpoints import Endpoints


class WsgiResponse(FlaskResponse):
    """Flask's response, without Flask's default content type: health responses have none."""

    default_mimetype = None


def create_app(endpoints: Endpoints) -> Flask:
    """The application, for any WSGI server."""
    app = Flask("shoal", static_folder=None, template_folder=None)

    @app.before_request
    def answer() -> WsgiResponse:
        return _to_wsgi(endpoints.respond(request.environ))

    return app


def _to_wsgi(response: Response) -> WsgiResponse:
    status = response.status if response.phrase is None else f"{response.status} {response.phrase}"
    if response.stream is not None:
        return _closing(WsgiResponse(response.stream, status, list(response.headers)), response)
    headers = [*response.headers, ("Content-Length", str(sum(map(len, response.chunks))))]
    return _closing(WsgiResponse(list(map(bytes, response.chunks)), status, headers), response)


def _closing(reply: WsgiResponse, response: Response) -> WsgiResponse:
    if response.close is not None:
        reply.call_on_close(response.close)
    return reply
