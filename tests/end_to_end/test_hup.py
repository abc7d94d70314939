"""SIGHUP on a real server: keys, log settings and repositories are read again, and no request fails."""

import http.client
import json
import signal
from pathlib import Path

from shoal.api_keys import entry_of, new_key
from tests.end_to_end.server import DEADLINE_S, SAMPLES, serving_to_the_end, wait_until


def test_what_is_read_again(tmp_path: Path) -> None:
    models, keys = tmp_path / "models", tmp_path / "keys.json"
    models.mkdir()
    (models / "simple").symlink_to(SAMPLES / "simple")
    text = new_key()
    keys.write_text(json.dumps({"all": entry_of(text, ["infer", "admin"], ["*"])}))
    flags = ["--model-control-mode=poll", "--repository-poll-secs=0", f"--api-keys={keys}"]
    with serving_to_the_end(models, *flags) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)

        def ask(method: str, path: str, body: object = None) -> tuple[int, bytes]:
            encoded = None if body is None else json.dumps(body)
            connection.request(method, path, encoded, {"X-API-Key": text})
            response = connection.getresponse()
            return response.status, response.read()

        def hang_up() -> None:
            start = len(server.log)
            server.process.send_signal(signal.SIGHUP)
            assert server.read_log(b"SIGHUP: read again: log settings", start=start)
            server.read_log(b"docs/operations.md", start=start)

        assert ask("POST", "/v2/logging", {"log_verbose_level": 3})[0] == 200
        (models / "simple_identity").symlink_to(SAMPLES / "simple_identity")
        assert ask("GET", "/v2/models/simple_identity/ready")[0] == 404
        hang_up()
        assert b"log settings (those of the command line), API keys, repositories;" in server.log
        assert server.read_log(b"successfully loaded 'simple_identity'")
        wait_until(lambda: ask("GET", "/v2/models/simple_identity/ready")[0] == 200)
        wait_until(lambda: json.loads(ask("GET", "/v2/logging")[1])["log_verbose_level"] == 0)
        # A broken file leaves the keys in force.
        keys.write_text("{")
        hang_up()
        assert b"The keys that were read before stay in force" in server.log
        assert ask("GET", "/v2")[0] == 200
        keys.write_text("{}")
        hang_up()
        wait_until(lambda: ask("GET", "/v2")[0] == 401)
        connection.close()
