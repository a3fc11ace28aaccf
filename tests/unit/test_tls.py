"""Which certificates of an API server are accepted, whatever Python's own defaults are."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from devcluster.pki import Authority
from elasticjob.api import tls
from elasticjob_operator.app import _Connection

_default = ssl.create_default_context


@pytest.fixture(autouse=True)
def newest_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's defaults from 3.13 on."""

    def strict(*args: object, **settings: str | None) -> ssl.SSLContext:
        made = _default(*args, **settings)  # type: ignore[arg-type]
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    monkeypatch.setattr(tls, "_said", set())


@contextmanager
def serving(certificate: Path, key: Path) -> Iterator[int]:
    """A server that shakes hands; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(accepted, server_side=True).close()
            except OSError:
                accepted.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def shake(context: ssl.SSLContext, port: int, host: str = "127.0.0.1") -> None:
    with socket.create_connection(("127.0.0.1", port)) as plain:
        context.wrap_socket(plain, server_hostname=host).close()


def test_what_kubectl_accepts_is_accepted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path, bare=True)
    ca = str(authority.ca_file)
    with serving(*authority.issue_server("server", ["127.0.0.1"])) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(ssl.create_default_context(cafile=ca), port)
        for _ in range(2):
            shake(tls.client_context(ca), port)

        async def in_a_loop(context: ssl.SSLContext) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.close()

        asyncio.run(in_a_loop(tls.client_context(ca)))
        kopfs = _Connection(server=f"https://127.0.0.1:{port}", ca_path=ca)
        asyncio.run(in_a_loop(kopfs.as_ssl_context()))
    (said,) = [record.getMessage() for record in caplog.records if record.name == tls.__name__]
    assert said.endswith(
        "the CA certificate has no key usage, the CA certificate has no subject key identifier, "
        "the server certificate has no authority key identifier"
    )


def test_nothing_is_said_of_good_certificates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    with serving(*authority.issue_server("server", ["127.0.0.1"])) as port:
        shake(tls.client_context(str(authority.ca_file)), port)
    assert [record for record in caplog.records if record.name == tls.__name__] == []


@pytest.mark.parametrize("bare", [False, True])
def test_what_is_not_the_cluster_s_is_refused(tmp_path: Path, bare: bool) -> None:
    authority, stranger = Authority(tmp_path / "own", bare), Authority(tmp_path / "other", bare)
    certificate = authority.issue_server("server", ["127.0.0.1"])
    with serving(*certificate) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(tls.client_context(str(stranger.ca_file)), port)
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            shake(tls.client_context(str(authority.ca_file)), port, "127.0.0.2")
        shake(tls.client_context(str(stranger.ca_file), verify=False), port)


# shows: the cluster's certificate authority is replaced (`ca.crt`)
def test_an_authority_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    """The second attempt finds it, in handlers (sockets), in the operator and in kopf (asyncio)."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    mounted = tmp_path / "ca.crt"

    async def in_a_loop(context: ssl.SSLContext, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.close()

    mounted.write_bytes(first.ca_file.read_bytes())
    sync, loops = tls.client_context(str(mounted)), tls.client_context(str(mounted))
    kopfs = _Connection(server="https://127.0.0.1", ca_path=str(mounted)).as_ssl_context()
    with serving(*second.issue_server("server", ["127.0.0.1"])) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(sync, port)
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(sync, port)
        mounted.write_bytes(first.ca_file.read_bytes() + second.ca_file.read_bytes())
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(sync, port)
        shake(sync, port)
        for context in (loops, kopfs):
            with pytest.raises(ssl.SSLCertVerificationError):
                asyncio.run(in_a_loop(context, port))
            asyncio.run(in_a_loop(context, port))
    with serving(*Authority(tmp_path / "third").issue_server("server", ["127.0.0.1"])) as port:
        for _ in range(2):
            with pytest.raises(ssl.SSLCertVerificationError):
                shake(sync, port)


def test_an_intermediate_authority_is_trusted_without_its_root(tmp_path: Path) -> None:
    """As in Go, whatever is in the file is."""
    authority = Authority(tmp_path)
    server = authority.issue_server("server", ["127.0.0.1"])
    own = x509.load_pem_x509_certificate(authority.ca_file.read_bytes())
    root_key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")]))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_before_utc + datetime.timedelta(days=2))
    )
    for extension in own.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    intermediate = tmp_path / "intermediate.crt"
    signed = builder.sign(root_key, hashes.SHA256())
    intermediate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    with serving(*server) as port:
        shake(tls.client_context(str(intermediate)), port)
