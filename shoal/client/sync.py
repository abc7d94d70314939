"""`shoal.Client`: ask a server on this host through its shared memory, or any server over HTTP or gRPC.

    from shoal import Client

    with Client() as client:
        outputs = client.infer("simple", {"INPUT0": a, "INPUT1": b})

Threads may share one; they ask at once. A copy of the process that a fork makes has a connection of its own with its
first call.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from shoal.client.asked import Asked, takes
from shoal.client.call import MAX_RELOADS, Call
from shoal.client.connection import Connection
from shoal.client.result import Result
from shoal.client.session import Session
from shoal.client.socket_path import client_paths
from shoal.control import GONE
from shoal.errors import ConnectionLostError, InvalidArgumentError, UnavailableError
from shoal.messages.message import MessageError
from shoal.reasons import ModelGoneError


class Client:
    """A client of the server that listens at `place`: the path of its socket, which `--client-socket` names.

    None looks for it: $SHOAL_CLIENT_SOCKET, or the socket of a server of this user with HTTP port 8000. A URL,
    `http://host:port` or `grpc://host:port`, makes the same calls over the network, with tritonclient. Nothing is
    connected before the first call; after the server was restarted, the next call connects anew.

    Each call raises a class of shoal.errors. ConnectionLostError, an UnavailableError, where the server is not there,
    or goes while a request is open; NotFoundError for an unknown model; InvalidArgumentError for a request that does
    not fit it; UnavailableError where a queue or its memory is full.
    """

    #: The classes for URLs by their scheme: the subclasses of RemoteClient, which enter themselves (kinds.py).
    _remote: ClassVar[dict[str, type["Client"]]] = {}

    def __new__(cls, place: str | os.PathLike[str] | None = None) -> "Client":
        """A client of the kind that `place` needs. Raises InvalidArgumentError for a URL that names no server."""
        if cls is Client and isinstance(place, str) and "://" in place:
            scheme, _, address = place.partition("://")
            if scheme not in cls._remote or not address:
                raise InvalidArgumentError(f"a server's URL is http://host:port or grpc://host:port, not '{place}'")
            return object.__new__(cls._remote[scheme])
        return object.__new__(cls)

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        self._place = None if place is None else os.fspath(place)
        # Changed under the lock; replaced in a copy of the process, where it may have been taken for ever.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._session: Session | None = None
        self._is_closed = False

    # --- inference ---

    @takes(Asked)
    def infer(self, asked: Asked) -> Result:
        """Ask a model once; returns its outputs by name, those in `outputs` or all.

        Inputs are as shoal.client.asked has them; they are read before this returns, and are the caller's; those from
        `empty` are not copied. Outputs are the caller's own arrays, or read-only views of the server's memory with
        copy=False (see Result). Timeouts are in seconds; without one, the server's --request-timeout-secs.
        """
        num_reloads = 0
        while True:
            call, sleeper = self._submit(asked)
            try:
                with call:
                    _await(call, sleeper)
                    return call.result()
            except ModelGoneError:
                num_reloads += 1
                if num_reloads > MAX_RELOADS:
                    raise
                call.connection.catch_up()

    @takes(Asked)
    def stream(self, asked: Asked) -> Iterator[Result]:
        """Ask a model that may answer any number of times, as decoupled models do; yields the answers as they come.

        Arguments as for `infer`; `timeout` is for each answer. The request is cancelled where the iterator is closed,
        or dropped, before its end.
        """
        call, sleeper = self._submit(asked, is_stream=True)
        answers = _answers(call, sleeper)
        # One that is dropped before its first answer was asked for ends without a word.
        weakref.finalize(answers, call.connection.let_go_of, call.waiter).atexit = False
        return answers

    def _submit(self, asked: Asked, *, is_stream: bool = False) -> tuple[Call, threading.Lock]:
        sleeper = threading.Lock()
        sleeper.acquire()

        def notify() -> None:
            if sleeper.locked():
                sleeper.release()

        return self._connected().submit(asked, notify, is_stream=is_stream), sleeper

    def empty(self, model: str, name: str, shape: Sequence[int], *, version: str = "") -> NDArray[Any]:
        """An uninitialised array for an input of a model, in memory that requests name: `infer` sends it uncopied.

        `shape` has the batch dimension. Fill it in place, use it, a part or a view of it for as many requests as you
        like, but do not write to it while one of them is open. The memory goes back when no array over it is left.
        After the server was restarted it is an ordinary array. Raises UnavailableError where there is no memory.
        """
        return self._connected().empty(model, name, tuple(shape), version)

    # --- the server ---

    def is_live(self) -> bool:
        """Whether the server is there."""
        try:
            self._connected()
        except UnavailableError:
            return False
        return True

    def is_ready(self, model: str = "", *, version: str = "") -> bool:
        """Whether the server can answer for all its models, or for one of them."""
        if not model:
            return self.is_live() and bool(self._ask("ready"))
        return bool(self._ask("is_ready", model, version))

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions, as GET /v2 says."""
        metadata: dict[str, Any] = self._ask("server_metadata")
        return metadata

    def model_metadata(self, model: str, *, version: str = "") -> dict[str, Any]:
        """Versions, platform, inputs and outputs with their datatypes and shapes, as GET /v2/models/M says."""
        metadata: dict[str, Any] = self._ask("model_metadata", model, version)
        return metadata

    def model_config(self, model: str, *, version: str = "") -> dict[str, Any]:
        """The finished configuration, as GET /v2/models/M/config says."""
        connection = self._connected().connection
        connection.catch_up()
        return connection.models.lookup(model, version or None).config

    def statistics(self, model: str = "", *, version: str = "") -> list[dict[str, Any]]:
        """Of a model, or of all, what GET /v2/models/M/stats lists under `model_stats`."""
        rows: list[dict[str, Any]] = self._ask("statistics", model, version)["model_stats"]
        return rows

    def _ask(self, verb: str, model: str = "", version: str = "") -> Any:
        try:
            return self._connected().connection.shared.ask(verb, {"model": model, "version": version})
        except OSError as error:
            raise ConnectionLostError(f"the server is gone: {error}") from error

    # --- the connection ---

    def _connected(self) -> Session:
        """The session there is, or a fresh one. Raises ConnectionLostError, or why the server takes no more."""
        session = self._session
        if session is not None and not (session.connection.is_lost or session.connection.is_exiting):
            return session
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            session = self._session
            if session is None or session.connection.is_lost or session.connection.is_exiting:
                if self._is_closed:
                    raise ConnectionLostError("the client is closed")
                connection = connect(self._place)
                connection.start()
                self._session = session = Session(connection)
        return session

    def close(self) -> None:
        """Hang up; requests that are open end with ConnectionLostError. Arrays stay readable."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.connection.close()


def connect(place: str | None) -> Connection:
    """A connection to the server at `place`, or to the first that is found. Raises ShoalError."""
    paths = client_paths(os.environ) if place is None else [place]
    reasons = []
    for path in paths:
        try:
            return Connection.to(path)
        except (*GONE, OSError) as error:
            reasons.append(f"{path}: {error.strerror or error}" if isinstance(error, OSError) else f"{path}: {error}")
        except MessageError as error:
            reasons.append(f"{path}: the server there is of another version ({error})")
    raise ConnectionLostError(
        f"no server is found at {', '.join(reasons) or 'any place of this user'}. Start one, as this user, or give the "
        "path that its log names"
    )


def _answers(call: Call, sleeper: threading.Lock) -> Iterator[Result]:
    with call:
        while not call.is_done:
            _await(call, sleeper)
            if (result := call.next_result()) is not None:
                yield result


def _await(call: Call, sleeper: threading.Lock) -> None:
    if not call.connection.wait(call.waiter, sleeper, time.monotonic() + call.limit_s):
        raise call.late()
