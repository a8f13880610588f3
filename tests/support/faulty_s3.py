"""An S3 server (moto's) on this machine that fails when told to."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("moto", reason="needs moto, of the dev extra")

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ERRORS = {
    403: ("403 Forbidden", b"AccessDenied"),  # clients do not try again
    503: ("503 Slow Down", b"SlowDown"),  # they do
}


class FaultyS3:
    """Fails requests whose method and path match an order, so many times."""

    def __init__(self) -> None:
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._orders: list[tuple[str, str, int, list[int]]] = []
        self._lock = threading.Lock()
        self.refused = 0

    def fail(self, method: str, path: str, *, times: int, status: int = 503) -> None:
        """The next `times` requests of this method whose path contains `path`."""
        self._orders.append((method, path, status, [times]))

    def heal(self) -> None:
        self._orders.clear()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        with self._lock:
            for method, path, status, left in self._orders:
                target = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
                if left[0] and environ["REQUEST_METHOD"] == method and path in target:
                    left[0] -= 1
                    self.refused += 1
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                    line, code = ERRORS[status]
                    start_response(line, [("Content-Type", "application/xml")])
                    return [b"<Error><Code>", code, b"</Code><Message>told to</Message></Error>"]
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer


@contextmanager
def serve(app: FaultyS3) -> Iterator[int]:
    """The server's port, for as long as the block lasts."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
