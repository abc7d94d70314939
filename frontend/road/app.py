"""The Flask application of the road: passes WSGI requests to the endpoints (endpoints.py), and converts the endpoints'
responses to Flask's. The only file that uses Flask; the road imports this module with its first request (road.py).

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
    """The WSGI application that answers with these endpoints."""
    app = Flask("shoal", static_folder=None, template_folder=None)

    @app.before_request
    def answer() -> WsgiResponse:
        return _to_wsgi(endpoints.respond(request.environ))

    return app


def _to_wsgi(response: Response) -> WsgiResponse:
    status = response.status if response.phrase is None else f"{response.status} {response.phrase}"
    if response.stream is not None:
        reply = WsgiResponse(response.stream, status, list(response.headers))
    else:
        headers = [*response.headers, ("Content-Length", str(sum(map(len, response.chunks))))]
        reply = WsgiResponse(list(map(bytes, response.chunks)), status, headers)
    if response.close is not None:
        reply.call_on_close(response.close)
    return reply
