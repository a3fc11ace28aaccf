"""An API server that refuses everything: 429 with Retry-After, or 5xx, in the place of the real one.

The real server is killed, and its port and certificate are taken over by a few lines of HTTP, so that every
client meets the refusals where it looks for its server, and meets them again whenever it opens a watch.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from devcluster.cluster import Cluster

RETRY_AFTER_SECONDS = 1


class Refusals:
    """What is answered, and what has been. Made by `refusing`."""

    def __init__(self, status: int) -> None:
        self.status = status
        """The answer to every request from now on."""
        self.given: Counter[tuple[str, int]] = Counter()
        """How many requests of each user agent (up to its first `/` or space) got each status."""


@contextlib.contextmanager
def refusing(cluster: Cluster, status: int) -> Iterator[Refusals]:
    """Inside of the block every request to the first API server is answered with `status`.

    Afterwards the server is back and ready, and scheduler and controller manager are restarted: their own
    pauses of up to a minute are not what is tested.
    """
    refusals = Refusals(status)
    server = cluster.component("apiserver")
    server.kill()
    try:
        listener = _Listener(("127.0.0.1", int(urlsplit(cluster.server).port or 0)), _handler(refusals))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pki = cluster.state_dir / "pki"
        context.load_cert_chain(pki / "control-plane.crt", pki / "control-plane.key")
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=listener.serve_forever, name="refusals", daemon=True)
        thread.start()
        try:
            yield refusals
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()
    finally:
        server.start()
        for name in ("scheduler", "controller-manager"):
            cluster.component(name).restart()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes in the middle of an answer is none of our business."""


def _handler(refusals: Refusals) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status = refusals.status
            agent = self.headers.get("user-agent", "").replace("/", " ").split()
            refusals.given[agent[0] if agent else "", status] += 1
            body = json.dumps(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": "refused",
                    "code": status,
                }
            ).encode()
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", str(RETRY_AFTER_SECONDS))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            # Kept alive, the connection would outlive the refusals.
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = refuse

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Handler
