"""How a client gets to a server and says who it is; errors blame the right thing, and show no token."""

from __future__ import annotations

import ssl
import subprocess
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticjob_client import AsyncJobs, Jobs, NoAccess, NoServer, Unreadable
from tests.unit.client.server import Server, kubeconfig

LOGIN = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
TOKEN = '{"status": {"token": " from-a-program\\n"}}'


NO_PROXY = "other: cluster 'test': proxy-url is no URL of a proxy: expected http://HOST:PORT"
PROXIES = [
    "nonsense",
    "jane:SECRET@proxy:3128",
    "ftp://jane:SECRET@proxy:3128",
    "http://jane:SECR/ET@proxy:3128",
    "http://jane:SECR#ET@proxy:3128",
    "http://jane:12/SECRET@proxy:3128",
    "http://jane:12#SECRET@proxy:3128",
    "http://jane:SECRET@:3128",
    "http://jane:SECRET@proxy:port",
    "http://jane:SECRET@proxy:3128\n",
    "http://",
]


def written(folder: Path, found: Any) -> str:
    file = folder / "other"
    file.write_text(found if isinstance(found, str) else yaml.safe_dump(found))
    return str(file)


def changed(url: str, kind: str, **fields: Any) -> dict[str, Any]:
    found = kubeconfig(url)
    found[f"{kind}s"][0][kind].update(fields)
    return found


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("user", {"exec": "foo"}, "other: user 'test': exec is not a mapping"),
        ("user", {"exec": LOGIN}, "other: user 'test': exec has no command: expected the login program"),
        ("user", {"token": 5}, r"other: user 'test': Expected `str.*at `\$.token`"),
        (
            "user",
            {"token": "SECRET\nSECRET"},
            "token of the kubeconfig has characters that a header cannot hold",
        ),
        ("user", {"token": "SECRÉT"}, "token of the kubeconfig has characters that a header cannot hold"),
        ("user", {"client-key-data": "SECRET"}, "other: user 'test': client-key-data is not base64"),
        ("user", {"as": "admin"}, "other: user 'test': as is not supported"),
        (
            "context",
            {"namespace": "My_Team"},
            "other: context 'test': 'My_Team' cannot be the name of a namespace: expected 1 to 63",
        ),
        ("context", {"namespace": 123}, r"other: context 'test': Expected `str.*at `\$.namespace`"),
        ("cluster", {"server": 5}, r"other: cluster 'test': Expected `str.*at `\$.server`"),
        ("cluster", {"proxy-url": 5}, "other: cluster 'test': proxy-url is not text"),
        *(("cluster", {"proxy-url": url}, NO_PROXY) for url in PROXIES),
        ("cluster", {"certificate-authority-data": "SECRET"}, "certificate-authority-data is not base64"),
    ],
)
async def test_a_wrong_field_is_named(
    server: Server, tmp_path: Path, kind: str, fields: dict[str, Any], said: str
) -> None:
    file = written(tmp_path, changed(server.url, kind, **fields))
    with pytest.raises(NoAccess, match=said) as refused:
        Jobs(kubeconfig=file)
    assert "SECR" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(NoAccess, match=said):
        AsyncJobs(kubeconfig=file)


@pytest.mark.parametrize("url", ["http://jane:p%2Fw%23@proxy:3128", "https://proxy", "http://[::1]:3128/"])
def test_a_proxy_with_a_password_is_taken(server: Server, tmp_path: Path, url: str) -> None:
    Jobs(kubeconfig=written(tmp_path, changed(server.url, "cluster", **{"proxy-url": url}))).close()


def test_a_proxy_of_the_environment_keeps_its_password(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://jane:SECR/ET@proxy:3128")
    with pytest.raises(NoAccess, match="as its server, and as HTTPS_PROXY") as refused:
        Jobs(kubeconfig=written(tmp_path, kubeconfig(server.url)))
    shown = "".join(traceback.format_exception(refused.value))
    assert "SECR" not in shown


def test_what_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    with pytest.raises(NoAccess, match="is a directory: expected a kubeconfig"):
        Jobs()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(NoAccess, match="bytes is not a kubeconfig: it is not text in UTF-8"):
        Jobs(kubeconfig=str(tmp_path / "bytes"))
    with pytest.raises(NoAccess, match="is not YAML, line 1") as refused:
        Jobs(kubeconfig=written(tmp_path, "token: SECRET: 5"))
    assert "SECRET" not in str(refused.value)


@contextmanager
def answering(context: ssl.SSLContext | None, seen: list[str]) -> Iterator[str]:
    """Answers every request with no headers and 400, over TLS with a context. Gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append(f"{self.path} {self.headers.get('Host')}")
            self.wfile.write(
                b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
            )

        do_GET = do_CONNECT = answer

        def log_message(self, *_: Any) -> None:
            """Nothing on the console."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield str(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """One that signs itself, for the name kubernetes."""
    key, cert = tmp_path / "key", tmp_path / "cert"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes"]
    files = ["-addext", "subjectAltName=DNS:kubernetes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_certificates_and_names(tmp_path: Path, certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    own = {"certificate-authority": str(cert)}
    with answering(context, []) as port:
        url = f"https://127.0.0.1:{port}"
        for fields, kind, said in [
            ({}, NoAccess, "is not signed by the CA of the kubeconfig"),
            (own, NoAccess, "certificate is for another name"),
            ({**own, "tls-server-name": "kubernetes"}, Unreadable, "is no Kubernetes API server"),
        ]:
            file = written(tmp_path, changed(url, "cluster", **fields))
            with Jobs(kubeconfig=file) as jobs, pytest.raises(kind, match=said):
                jobs.get("mnist")
            async with AsyncJobs(kubeconfig=file) as jobs_too:
                with pytest.raises(kind, match=said):
                    await jobs_too.get("mnist")


def test_http_and_https_are_mixed_up(tmp_path: Path) -> None:
    with answering(None, []) as port:
        for scheme, kind, said in [
            ("http", Unreadable, "is no Kubernetes API server, or it expects https"),
            ("https", NoAccess, "does not speak TLS"),
        ]:
            file = written(tmp_path, kubeconfig(f"{scheme}://127.0.0.1:{port}"))
            with Jobs(kubeconfig=file) as jobs, pytest.raises(kind, match=said):
                jobs.get("mnist")


def test_a_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    seen: list[str] = []
    with answering(None, seen) as port:
        proxy = {"proxy-url": f"http://127.0.0.1:{port}"}
        file = written(tmp_path, changed("https://10.0.0.1:6443", "cluster", **proxy))
        with Jobs(kubeconfig=file) as jobs, pytest.raises(NoServer, match="proxy does not lead to it: 400"):
            jobs.get("mnist")
    assert seen[0].startswith("10.0.0.1:6443 ")


def program(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "login"
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return {"exec": {**LOGIN, "command": str(file)}}


async def test_a_login_program_is_heard(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_client.login.QUIET_SECONDS", 0.2)
    text = f"echo open https://login >&2\nsleep 0.6\necho thanks >&2\nprintf '%s' '{TOKEN}'"
    file = written(tmp_path, kubeconfig(server.url, **program(tmp_path, text)))
    expected = [
        f"waiting for the kubeconfig's login program {tmp_path}/login",
        "open https://login",
        "thanks",
    ]
    said: list[str] = []
    with Jobs(kubeconfig=file, notice=said.append) as jobs:
        assert jobs.get("mnist").name == "mnist"
    assert said == expected
    said.clear()
    async with AsyncJobs(kubeconfig=file, notice=said.append) as jobs_too:
        assert (await jobs_too.get("mnist")).name == "mnist"
    assert said == expected


def test_a_login_program_that_has_ended_is_not_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a child of it still holds its stderr."""
    monkeypatch.setattr("elasticjob_client.login.QUIET_SECONDS", 0.5)
    monkeypatch.setattr("elasticjob_client.login._JOIN_SECONDS", 1.0)
    text = f"sleep 5 >/dev/null &\nprintf '%s' '{TOKEN}'"
    file = written(tmp_path, kubeconfig(server.url, **program(tmp_path, text)))
    said: list[str] = []
    with Jobs(kubeconfig=file, notice=said.append) as jobs:
        assert jobs.get("mnist").name == "mnist"
    assert said == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo wrong password >&2; exit 3", "login ended with code 3: wrong password"),
        ("echo '{}'", "login program gives no credential"),
        ("""echo '{"status": {"token": "SECRET\\\\nSECRET"}}'""", "has characters that a header cannot hold"),
    ],
)
def test_a_login_program_that_fails(server: Server, tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, kubeconfig(server.url, **program(tmp_path, text)))
    with Jobs(kubeconfig=file) as jobs, pytest.raises(NoAccess, match=said) as refused:
        jobs.get("mnist")
    assert "SECRET" not in str(refused.value)
