"""Two ways of asking over HTTP, lane and road, each on a connection of its own."""

import http.client

from tests.end_to_end.http_cases.case import Case
from tests.end_to_end.server import DEADLINE_S, Server


class Way:
    """A connection whose requests all carry the same extra header, or none."""

    def __init__(self, server: Server, **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
        self._headers = headers

    def ask(self, case: Case) -> http.client.HTTPResponse:
        """The answer, its body still to be read."""
        self.connection.putrequest(case.method, case.path, skip_accept_encoding=True)
        for name, value in {**case.headers, **self._headers}.items():
            self.connection.putheader(name, value)
        if case.body or case.method == "POST":
            self.connection.putheader("Content-Length", str(len(case.body)))
        self.connection.endheaders(case.body)
        return self.connection.getresponse()


def took_the_road(response: http.client.HTTPResponse) -> bool:
    """gunicorn signs what it answers."""
    return response.getheader("Server") == "gunicorn"
