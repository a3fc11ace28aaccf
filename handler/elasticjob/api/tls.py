"""TLS to the API server by the rules of Go programs: what the kubelet and kubectl accept is accepted here.

Since 3.13 Python verifies strictly by RFC 5280 (``VERIFY_X509_STRICT``) and rejects clusters whose
certificates lack a key usage or a key identifier. Go requires neither, so such clusters otherwise work well.
Go also trusts every certificate in the CA file, even an intermediate one; Python does so only since 3.13
(``VERIFY_X509_PARTIAL_CHAIN``). Everything else is verified as usual: signatures, times, names.

What a strict client would reject is logged once per process, because other programs in the pod may reject it.

A CA may be replaced while a job trains. So when a certificate is rejected, the CA file is read again for the
next attempt. What was trusted before stays trusted.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator

logger = logging.getLogger(__name__)

# An extension's identifier as it is encoded (OBJECT IDENTIFIER 2.5.29.x), wherever it stands.
_OF_THE_AUTHORITY = {b"\x06\x03\x55\x1d\x0f": "key usage", b"\x06\x03\x55\x1d\x0e": "subject key identifier"}
_OF_THE_SERVER = {b"\x06\x03\x55\x1d\x23": "authority key identifier"}
_CA_FILE = "elasticjob_ca_file"
_said: set[str] = set()


def client_context(ca_file: str | None, verify: bool = True) -> ssl.SSLContext:
    """A context for requests to a server whose authority is in ``ca_file`` (None: the system's)."""
    made = ssl.create_default_context(cafile=ca_file)
    relax(made, ca_file)
    if not verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def relax(context: ssl.SSLContext, ca_file: str | None) -> None:
    """Let a client's context, created from ``ca_file``, accept what Go accepts, and log what a strict client
    would reject."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.sslsocket_class = _Socket
    context.sslobject_class = _Object
    setattr(context, _CA_FILE, ca_file)


class _Socket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        with _reading_again(self.context):
            super().do_handshake(block)
        _tell(self)


class _Object(ssl.SSLObject):
    """What asyncio has in place of a socket."""

    def do_handshake(self) -> None:
        with _reading_again(self.context):
            super().do_handshake()
        _tell(self)


@contextlib.contextmanager
def _reading_again(context: ssl.SSLContext) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError:
        ca_file = getattr(context, _CA_FILE, None)
        if ca_file is not None:
            with contextlib.suppress(OSError):  # ssl.SSLError is one
                context.load_verify_locations(ca_file)
        raise


def _tell(connection: ssl.SSLSocket | ssl.SSLObject) -> None:
    """After a handshake: log once what a strict client would have missed."""
    try:
        text = ", ".join(_lacks(connection))
    except (ValueError, OSError):  # a certificate that Python can't decode; it was verified anyway
        return
    if text and text not in _said:
        _said.add(text)
        logger.info(
            "accepting the API server's certificate as kubectl does, although strict verification (Python "
            "3.13 and later) rejects it: %s",
            text,
        )


def _lacks(connection: ssl.SSLSocket | ssl.SSLObject) -> Iterator[str]:
    server, decoded = connection.getpeercert(binary_form=True), connection.getpeercert()
    if not server or not decoded:  # not verified
        return
    context = connection.context
    for authority, encoded in zip(
        context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True
    ):
        if authority["subject"] == decoded["issuer"]:
            for identifier, what in _OF_THE_AUTHORITY.items():
                if identifier not in encoded:
                    yield f"the CA certificate has no {what}"
    for identifier, what in _OF_THE_SERVER.items():
        if identifier not in server:
            yield f"the server certificate has no {what}"
