"""`triptych list` before a master that follows a script."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from triptych.launch.list_workers import main

WORKER = {"role": "decode", "url": "http://127.0.0.1:1", "events": []}


class Master(BaseHTTPRequestHandler):
    """Takes workers from clients that have the key, finds all of them well, and shows their URLs
    as a master does: without the slash at the end."""

    listed: list[dict[str, Any]]

    def do_POST(self) -> None:
        if self.headers["x-api-key"] != "secret":
            return self._answer(401, {"error": "no"})
        self.listed.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        return self._answer(200, {"status": "added"})

    def do_GET(self) -> None:
        well = {"healthy": True, "error": ""}
        shown = [{**one, "url": one["url"].rstrip("/"), **well} for one in self.listed]
        self._answer(200, {"instances": shown})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def master() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    listed: list[dict[str, Any]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Listing", (Master,), {"listed": listed}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", listed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def arguments(url: str, file: Path, key: str = "secret") -> list[str]:
    flags = ["--master-url", url, "--workers", str(file), "--interval", "0"]
    return [*flags, "--admin-api-key", key]


def test_the_workers_of_the_file_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps([WORKER]))
    with master() as (url, listed):
        assert main(arguments(url, file)) == 0
        assert listed == [WORKER]
        assert main(arguments(url, file, "other")) == 1
    assert "refuses a worker" in capsys.readouterr().err


def test_a_url_may_end_with_a_slash(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps([{**WORKER, "url": "http://127.0.0.1:1/"}]))
    with master() as (url, _):
        assert main(arguments(url, file)) == 0


@pytest.mark.parametrize("text", ["", "{}", "[1]", None])
def test_a_file_that_cannot_be_used_is_an_error_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "workers.json"
    if text is not None:
        file.write_text(text)
    assert main(arguments("http://127.0.0.1:1", file)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_master_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert main(arguments("", tmp_path)) == 2
