"""A real S3 on loopback: moto's server in a process of its own, and a proxy before it that stops in the middle."""

import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3

#: Generous: the machine may be busy, and what takes longer than this hangs.
DEADLINE_S = 60.0
KEYS = {"key_id": "shoal", "secret_key": "of fish", "region": "us-east-1"}
# It ends with its standard input, and so with the process of the tests.
_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server, and what tests do to its buckets."""

    host: str

    @functools.cache  # noqa: B019 - to make one takes 0.2 s, and there are few servers
    def client(self, service: str = "s3") -> Any:
        return boto3.client(
            service,
            endpoint_url=f"http://{self.host}",
            region_name=KEYS["region"],
            aws_access_key_id=KEYS["key_id"],
            aws_secret_access_key=KEYS["secret_key"],
        )

    def upload(self, bucket: str, objects: dict[str, bytes]) -> None:
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for key, body in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=body)

    def remove(self, bucket: str, key: str) -> None:
        self.client().delete_object(Bucket=bucket, Key=key)

    def check_credentials_after(self, num_requests: float) -> None:
        """moto takes any key; after so many further requests it wants one that its IAM has made."""
        url, headers = f"http://{self.host}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urlopen(Request(url, str(num_requests).encode(), headers), timeout=DEADLINE_S):
            pass


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start it, wait until it says its port, and end it."""
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], DEADLINE_S)[0], "moto's server does not start"
            yield S3Server(f"127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()
            process.kill()


def credential_file(directory: Path, **keys: str) -> dict[str, str]:
    """An environment whose credential file has these keys for every bucket."""
    file = directory / "credentials.json"
    file.write_text(json.dumps({"s3": {"": {**KEYS, **keys}}}))
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}


@dataclass
class HaltingProxy:
    """Passes everything on to `host`. Where so many bytes have come back over a connection, nothing moves there any
    more, until `go_on` is set."""

    host: str
    halt_after_nbytes: int
    halted: threading.Event = field(default_factory=threading.Event)
    halts: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # one for each connection
    go_on: threading.Event = field(default_factory=threading.Event)
    _sockets: list[socket.socket] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its own host and port."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        threads = [threading.Thread(target=self._accept, args=(listener,), daemon=True)]
        threads[0].start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            self.go_on.set()
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            threads[0].join(DEADLINE_S)
            for each in self._sockets:
                each.close()

    def _accept(self, listener: socket.socket) -> None:
        pumps = []
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                name, _, port = self.host.partition(":")
                server = socket.create_connection((name, int(port)))
                self._sockets += [client, server]
                for source, sink, is_back in ((client, server, False), (server, client, True)):
                    pumps.append(threading.Thread(target=self._pump, args=(source, sink, is_back), daemon=True))
                    pumps[-1].start()
        for pump in pumps:
            pump.join(DEADLINE_S)

    def _pump(self, source: socket.socket, sink: socket.socket, is_back: bool) -> None:
        nbytes = 0
        with suppress(OSError):
            while piece := source.recv(16384):
                nbytes += len(piece) * is_back
                if nbytes > self.halt_after_nbytes and not self.go_on.is_set():
                    self.halted.set()
                    self.halts.release()
                    self.go_on.wait()
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


def environment(tmp_path: Path) -> dict[str, str]:
    return {**credential_file(tmp_path), "TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "cache")}
