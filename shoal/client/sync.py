"""`shoal.Client`: requests to a server on this host through shared memory, or to any server over HTTP or gRPC.

    from shoal import Client

    with Client() as client:
        outputs = client.infer("simple", {"INPUT0": a, "INPUT1": b})

Threads may share a client, and call it at the same time. A forked copy of the process gets its own connection with its
first call.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from shoal.client.call import MAX_RELOADS, ClientCall
from shoal.client.connection import (
    MAX_RECONNECTS,
    QUESTION_S,
    STANDSTILL_REMEDY,
    Connection,
    NotSubmittedError,
    question_limit_s,
)
from shoal.client.request_arguments import RequestArguments, checked_shape, checked_text, takes, version_text
from shoal.client.result import Result
from shoal.client.session import Session
from shoal.client.socket_path import client_paths, other_paths
from shoal.control import GONE
from shoal.errors import ConnectionLostError, InvalidArgumentError, TimedOutError, UnavailableError
from shoal.messages.message import MessageError
from shoal.passwords import shown_url
from shoal.reasons import ModelGoneError
from shoal.server_url import split_url

#: The most characters of a model's name or version in a question (ours).
_MAX_TEXT = 4096


class Client:
    """A client of the server that listens at `place`: the path of its socket, which `--client-socket` names.

    With None the socket is $SHOAL_CLIENT_SOCKET, or that of this user's server with HTTP port 8000. A URL,
    `http://host:port`, `https://host:port` or `grpc://host:port`, makes the same calls over the network, with
    tritonclient; $SSL_CERT_FILE names the certificates that may sign an https server's. The client connects with its
    first call, and again with the first call after the server was restarted. A call waits for its connection, and for
    the answer to a question about models or server, as long as its timeout, and for 30 s at most.

    Each call raises a class of shoal.errors: ConnectionLostError, an UnavailableError, if there is no server, or the
    server ends while a request is open; TimedOutError; NotFoundError for an unknown model; InvalidArgumentError for a
    request that does not fit the model; UnavailableError if a queue or shared memory is full.
    """

    #: The classes for URLs by their scheme: subclasses of RemoteClient, which register themselves (kinds.py).
    _remote: ClassVar[dict[str, type["Client"]]] = {}

    def __new__(cls, place: str | os.PathLike[str] | None = None) -> "Client":
        """A client of the kind that `place` needs. Raises InvalidArgumentError for a URL that names no server, and for
        host:port."""
        if cls is not Client or not isinstance(place, str):
            return object.__new__(cls)
        if "://" in place:
            return object.__new__(cls._remote[_scheme_of(place)])
        if ":" in place and "/" not in place and not os.path.exists(place):
            shown = shown_url(place)
            raise InvalidArgumentError(f"'{shown}' is no socket: a server's URL is http://{shown}, or grpc://{shown}")
        return object.__new__(cls)

    def __init__(self, place: str | os.PathLike[str] | None = None) -> None:
        self._place = path_of(place)
        #: Timeout in seconds of calls without one of their own, set by Shoal's commands; None: QUESTION_S or, over the
        #: network, tritonclient's default.
        self.timeout_s: float | None = None
        # Changed under the lock. A forked copy of the process replaces the lock, which may stay locked for ever there.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._session: Session | None = None
        self._is_closed = False

    # --- inference ---

    @takes(RequestArguments)
    def infer(self, asked: RequestArguments) -> Result:
        """Send a request to a model that answers once; returns its outputs by name, those in `outputs` or all.

        `inputs` are arrays by name, with the datatypes and shapes in `model_metadata` (see
        shoal.client.request_arguments). The arrays are read before `infer` returns, and stay the caller's; arrays from
        `empty` are not copied. Outputs are the caller's own arrays or, with copy=False, read-only views of the server's
        memory (see Result). `timeout` is in seconds; the default is the server's --request-timeout-secs. Raises
        TimedOutError when that time is over, and the errors of every call (see Client).
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
                call.connection.catch_up(question_limit_s(asked.timeout))

    @takes(RequestArguments)
    def stream(self, asked: RequestArguments) -> Iterator[Result]:
        """Send a request to a model that may answer any number of times (decoupled); yields the answers as they come.

        Arguments and errors are those of `infer`; `timeout` limits the wait for each answer. The request is cancelled
        if the iterator is closed, or dropped, before its end.
        """
        call, sleeper = self._submit(asked, is_stream=True)
        answers = _answers(call, sleeper)
        # Cancels the request if the iterator is dropped before its first answer is requested.
        weakref.finalize(answers, call.connection.cancel_later, call.waiter).atexit = False
        return answers

    def _submit(self, asked: RequestArguments, *, is_stream: bool = False) -> tuple[ClientCall, threading.Lock]:
        sleeper = threading.Lock()
        sleeper.acquire()

        def notify() -> None:
            if sleeper.locked():
                sleeper.release()

        num_tries = 0
        while True:
            try:
                return self._connected(asked.timeout).submit(asked, notify, is_stream=is_stream), sleeper
            except NotSubmittedError:  # the server was replaced just now
                num_tries += 1
                if num_tries > MAX_RECONNECTS:
                    raise

    def empty(self, model: str, name: str, shape: Sequence[int], *, version: str | int = "") -> NDArray[Any]:
        """An uninitialised array for an input of a model, in memory that requests name: `infer` sends the array
        uncopied.

        `shape` has the batch dimension. Fill the array in place, and send it, a slice or a view of it in any number of
        requests, but do not write to it while one of them is open. The memory is freed when no array over it is left.
        After a restart of the server it is an ordinary array, which is copied. Raises UnavailableError if there is no
        memory.
        """
        return self._connected().empty(model, name, checked_shape(shape), version)

    # --- the server ---

    def is_live(self) -> bool:
        """Whether the server answers. Raises no error."""
        try:
            self._connected().connection.catch_up(question_limit_s(self.timeout_s))
        except UnavailableError:
            return False
        return True

    def is_ready(self, model: str = "", *, version: str | int = "") -> bool:
        """Whether all models can answer, or one of them. Raises NotFoundError for an unknown model."""
        if checked_text("model", model):
            return bool(self._ask("is_ready", model, version))
        try:
            return bool(self._ask("ready"))
        except UnavailableError:
            return False

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server, as GET /v2 has them."""
        metadata: dict[str, Any] = self._ask("server_metadata")
        return metadata

    def model_metadata(self, model: str, *, version: str | int = "") -> dict[str, Any]:
        """Versions, platform, inputs and outputs (name, datatype, shape) of a model, as GET /v2/models/M has them."""
        metadata: dict[str, Any] = self._ask("model_metadata", model, version)
        return metadata

    def model_config(self, model: str, *, version: str | int = "") -> dict[str, Any]:
        """The completed configuration of a model, as GET /v2/models/M/config has it."""
        version = version_text(version)
        connection = self._connected().connection
        connection.catch_up(question_limit_s(self.timeout_s))
        return connection.models.lookup(checked_text("model", model), version or None).config

    def statistics(self, model: str = "", *, version: str | int = "") -> list[dict[str, Any]]:
        """Statistics of a model, or of all: what GET /v2/models/M/stats lists under `model_stats`."""
        rows: list[dict[str, Any]] = self._ask("statistics", model, version)["model_stats"]
        return rows

    def _ask(self, verb: str, model: str = "", version: str | int = "") -> Any:
        asked = question_about(model, version)
        return self._connected().connection.ask(verb, asked, question_limit_s(self.timeout_s))

    # --- the connection ---

    def _connected(self, timeout_s: float | None = None) -> Session:
        """The session; connects if there is none. Raises ConnectionLostError, TimedOutError, or the error with which
        the server refuses."""
        session = self._session
        if session is not None and not (session.connection.is_lost or session.connection.is_exiting):
            return session
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        limit_s = question_limit_s(self.timeout_s if timeout_s is None else timeout_s)
        end_s = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):  # another thread is connecting
            raise late_to_join("the server", limit_s)
        try:
            session = self._session
            if session is None or session.connection.is_lost or session.connection.is_exiting:
                if self._is_closed:
                    raise ConnectionLostError("the client is closed")
                connection = connect(self._place, max(0.0, end_s - time.monotonic()))
                connection.start()
                self._session = session = Session(connection)
        finally:
            self._lock.release()
        return session

    def close(self) -> None:
        """Close the connection; open requests end with ConnectionLostError. Arrays stay readable."""
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


def _scheme_of(url: str) -> str:
    """The scheme of a server's URL. Raises InvalidArgumentError for any other URL."""
    try:
        return split_url(url, ("http", "https", "grpc"), url).scheme
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def path_of(place: str | os.PathLike[str] | None) -> str | None:
    """The place of a server as text. Raises InvalidArgumentError for what is no text and no path."""
    try:
        path = None if place is None else os.fspath(place)
        if path is not None and "\0" not in path:
            os.fsencode(path)
            return path
    except (TypeError, UnicodeEncodeError):  # also bytes, in which no text can be
        path = ""
    if path is None:
        return None
    raise InvalidArgumentError(f"a server's place is the path of its socket, or a URL, not {place!r:.200}")


def question_about(model: str, version: str | int) -> dict[str, Any]:
    """The arguments of a question about a model. Raises InvalidArgumentError for what no model is named."""
    asked = {"model": checked_text("model", model), "version": version_text(version)}
    for name, text in asked.items():
        if len(text) > _MAX_TEXT:  # a larger message would end the connection (control.py)
            raise InvalidArgumentError(f"'{name}' has {len(text)} characters, must have at most {_MAX_TEXT}")
    return asked


def late_to_join(server: str, limit_s: float) -> TimedOutError:
    """The error for a server that has not let a client join in time."""
    return TimedOutError(f"{server} has not let this client join within {limit_s:.3g} s. {STANDSTILL_REMEDY}")


def connect(place: str | None, limit_s: float = QUESTION_S) -> Connection:
    """A connection to the server at `place` or, if that is None, to the first server found at `client_paths`. Raises
    ShoalError; TimedOutError if a server listens there, but has not let this process join within `limit_s` seconds."""
    paths = client_paths(os.environ) if place is None else [place]
    reasons = []
    for path in paths:
        try:
            return Connection.to(path, limit_s)
        except TimeoutError:
            raise late_to_join(f"the server at {path}", limit_s) from None
        except (*GONE, OSError) as error:
            reasons.append(f"{path}: {error.strerror or error}" if isinstance(error, OSError) else f"{path}: {error}")
        except MessageError as error:
            reasons.append(f"{path}: the server there is of another version ({error})")
    others = other_paths(os.environ) if place is None else []
    remedy = f"give the path of another one: {', '.join(others)}" if others else "give the path that its log names"
    raise ConnectionLostError(
        f"no server is found at {', '.join(reasons) or 'any place of this user'}. Start one, as this user, or {remedy}"
    )


def _answers(call: ClientCall, sleeper: threading.Lock) -> Iterator[Result]:
    with call:
        while not call.is_done:
            _await(call, sleeper)
            if (result := call.next_result()) is not None:
                yield result


def _await(call: ClientCall, sleeper: threading.Lock) -> None:
    if not call.connection.wait(call.waiter, sleeper, time.monotonic() + call.limit_s):
        raise call.late()
