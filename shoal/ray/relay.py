"""A reverse proxy as an ASGI application: each HTTP request goes unchanged to a server on this host, and its response
back.

Runs in the replicas of Ray Serve, for the requests that Serve's proxies bring. Bodies, compressed ones too, are not
looked into; responses are passed on piece by piece, so that streams work. Where Serve uses HAProxy, requests reach the
server's own listener instead (listener.py).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import aiohttp
import orjson
import yarl

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Hop-by-hop header fields, which a proxy does not pass on (RFC 9110, section 7.6.1), and `host`, which aiohttp writes.
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}
)
#: Header fields that aiohttp would add to a request.
_AIOHTTP_FIELDS = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})
_CONNECT_TIMEOUT_S = 2.0
#: Seconds without a byte from the server. The server limits a request's time itself; this is for a server that hangs.
_SILENCE_TIMEOUT_S = 600.0
_MAX_CONNECTIONS = 1024


class Relay:
    """The proxy. `port`, the server's on 127.0.0.1, must be set before the first request. For use in one event loop."""

    def __init__(self) -> None:
        self.port = 0
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope: a request, or the application's lifespan. The client gets 503 if the server refuses
        the connection or dies before its response begins; if it dies later, the response is cut short."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"the server speaks HTTP, not {scope['type']}")
        try:
            response = await self._request(scope, receive)
        except aiohttp.ClientConnectorError as error:
            await _refuse(send, f"the server of this replica accepts no connections: {error}")
            return
        except (aiohttp.ClientError, TimeoutError) as error:
            await _refuse(send, f"the server of this replica has ended while it had the request: {error!r}")
            return
        async with response:
            headers = list(_end_to_end(response.raw_headers))
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            async for piece in response.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _request(self, scope: Scope, receive: Receive) -> aiohttp.ClientResponse:
        """Send a request to the server; returns when the response's head has come. Raises aiohttp's errors."""
        headers = list(_end_to_end(scope["headers"]))
        first = await receive()
        body: bytes | AsyncIterator[bytes] | None = first.get("body", b"")
        if first.get("more_body", False):
            body = _pieces(first, receive)
        elif not body and (scope["method"] in ("GET", "HEAD") or any(name == b"content-length" for name, _ in headers)):
            body = None  # for an empty body aiohttp would add a Content-Length
        return await self._open_session().request(
            scope["method"],
            _url(scope, self.port),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            data=body,
            skip_auto_headers=_AIOHTTP_FIELDS,
            allow_redirects=False,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 20,
            )
        return self._session

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                await self.close()
                return

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _pieces(first: Message, receive: Receive) -> AsyncIterator[bytes]:
    """The pieces of a request's body, as they come. Raises ConnectionError if the client leaves before the last."""
    message = first
    while True:
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client has gone")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
        message = await receive()


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    return ((name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP)


def _url(scope: Scope, port: int) -> yarl.URL:
    """The URL on the server: the client's path without the route prefix of the Serve application."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.removeprefix(scope.get("root_path", "").encode()) or b"/"
    query: bytes = scope.get("query_string", b"")
    target = path + (b"?" + query if query else b"")
    return yarl.URL(f"http://127.0.0.1:{port}{target.decode('latin-1')}", encoded=True)


async def _refuse(send: Send, sentence: str) -> None:
    body = orjson.dumps({"error": sentence})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
