"""`jaxrl report RUN --serve`: the report over HTTP, which loads itself anew during the runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_SEEN = ("config.json", "metrics.jsonl", "summary.json")
_FOLDERS = ("evals", "rollouts")
_HERE = ("localhost", "127.0.0.1", "::1")


def version(runs: Sequence[Path]) -> str:
    """A text that changes whenever a run has written something that the report shows."""
    stats = []
    for run in runs:
        files = [run / name for name in _SEEN]
        for folder in _FOLDERS:
            files += sorted((run / folder).glob("*.jsonl"))
        for file in files:
            if file.exists():
                stat = file.stat()
                stats.append((str(file), stat.st_size, stat.st_mtime_ns))
    return hashlib.blake2b(repr(stats).encode(), digest_size=8).hexdigest()


def server(
    runs: Sequence[Path], page: Callable[[str], str], host: str, port: int
) -> ThreadingHTTPServer:
    """A server of the report, not yet started: `/` is the page, `/version` what `version` says.

    Args:
      runs: run directories.
      page: the HTML of the runs as they are, given their version.
      host: address to listen on. On this machine's own, requests by another name are refused, so
        that no page of the web can read the runs through the browser.
      port: 0 takes a free one.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            if host in _HERE and name not in _HERE:
                self.send_error(HTTPStatus.FORBIDDEN, "open the address that jaxrl has printed")
            elif self.path == "/version":
                self._send(version(runs), "text/plain")
            elif self.path == "/":
                try:
                    self._send(page(version(runs)), "text/html")
                except (FileNotFoundError, ValueError) as error:  # a run that was moved away
                    self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, text: str, kind: str) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: it is asked every two seconds."""

    return ThreadingHTTPServer((host, port), Handler)
