"""An API server of a few answers, over HTTP: what the commands meet in tests without a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

NAMESPACE = "/api/v1/namespaces/research"
JOBS = "/apis/elasticjob.dev/v1alpha1/namespaces/research/elasticjobs"
PODS = "/api/v1/namespaces/research/pods"
EVENTS = "/api/v1/namespaces/research/events"


class Server:
    """``answers``: by path, an object, a text, or a pair of code and Status. ``watches``: what each watch is
    told before its connection ends. ``held``: requests with such a text get their answer, and no end of it.
    ``late``: such are not answered before ``go`` is set.
    ``asked``: all requests."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, Any] = {}
        self.no_times = False
        self.watches: list[Any] = []
        self.held: tuple[str, ...] = ()
        self.late: tuple[str, ...] = ()
        self.over, self.go = threading.Event(), threading.Event()
        self.asked: list[tuple[str, str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                path = urlsplit(self.path).path
                outer.asked.append((self.command, self.path, json.loads(body) if body else None))
                found = outer.answers.get(f"{self.command} {path}", outer.answers.get(path, (404, None)))
                if any(text in f"{self.command} {self.path}" for text in outer.late):
                    outer.go.wait()
                if "watch=true" in self.path:
                    found = outer.watches.pop(0)
                if outer.no_times and "timestamps=true" in self.path:
                    found = (400, refusal(400, "BadRequest", "no timestamps")[1])
                code, said = found if isinstance(found, tuple) else (200, found)
                text = said if isinstance(said, str) else json.dumps(said) if said else "404 page not found"
                self.send_response(code)
                self.send_header("Content-Type", "application/json" if said else "text/plain")
                self.end_headers()
                self.wfile.write(text.encode())
                if any(text in self.path for text in outer.held):
                    self.wfile.flush()
                    outer.over.wait()

            do_GET = do_PATCH = do_DELETE = do_POST = do_PUT = answer

            def log_message(self, *_: Any) -> None:
                """Nothing on the console."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(kubeconfig(self.url)))

    def put(self, job: dict[str, Any]) -> None:
        """A job that it has."""
        self.answers[f"{JOBS}/{job['metadata']['name']}"] = job
        self.answers[JOBS] = {"kind": "List", "metadata": {"resourceVersion": "1000"}, "items": [job]}


def kubeconfig(url: str, name: str = "test", **user: Any) -> dict[str, Any]:
    """One with a single context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": user or {"token": "secret"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "research"}}],
    }


def refusal(code: int, reason: str, message: str, name: str = "") -> tuple[int, dict[str, Any]]:
    """A Status, as the API server refuses."""
    details = {"name": name, "kind": "elasticjobs"} if name else {}
    return code, {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.go.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()
