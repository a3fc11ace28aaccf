"""The frame of a small TLS server that a cluster runs beside its components, as a process of its own."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from aiohttp import web


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def serve(module: str, application: web.Application, *, backlog: int = 128) -> None:
    """Serve it on a loopback port as the command line says, with ``/healthz`` beside its own routes."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    arguments = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.certificate, arguments.key)
    application.add_routes([web.get("/healthz", _healthz)])
    web.run_app(
        application,
        host="127.0.0.1",
        port=arguments.port,
        ssl_context=context,
        print=None,
        access_log=None,
        backlog=backlog,
    )
