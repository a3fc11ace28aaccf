"""Keys and certificates of one cluster.

EC P-256 throughout: made in milliseconds, and a handshake costs the API server a tenth of an RSA one, which
matters where hundreds of agents share two cores. Valid for a year: a cluster lives for minutes or days.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=365)
# A clock that was set back by less does not break a running cluster.
_BACKDATE = datetime.timedelta(hours=1)


class Authority:
    """A certificate authority; its certificate is at `ca_file`, everything that it issues beside it.

    A `bare` one leaves out what Go does not ask for and RFC 5280 does: key usages and key identifiers.
    """

    def __init__(self, folder: Path, bare: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bare = bare
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("devcluster-ca")
        builder = _builder(self._name, self._name, self._key.public_key())
        if bare:
            # With a path length OpenSSL asks for the key usage, strict or not.
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        else:
            key_identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
            builder = (
                builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_key_usage(authority=True), critical=True)
                .add_extension(key_identifier, critical=False)
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue_server(self, name: str, hosts: Iterable[str]) -> tuple[Path, Path]:
        """Make a serving certificate for `hosts` (names or IP addresses); its file and its key's file."""
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def issue_client(self, name: str, group: str) -> tuple[Path, Path]:
        """Make a certificate with which a client is the user `name` of `group`; its file and its key's."""
        attributes = {NameOID.COMMON_NAME: name, NameOID.ORGANIZATION_NAME: group}
        subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes.items()])
        return self._issue(name, subject, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(
        self, name: str, subject: x509.Name, usage: x509.ObjectIdentifier, *extensions: x509.ExtensionType
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        if not self._bare:
            builder = builder.add_extension(_key_usage(authority=False), critical=True).add_extension(
                issuer_key, critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        certificate_file = self._folder / f"{name}.crt"
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return certificate_file, _write_key(self._folder / f"{name}.key", key)


def signing_key(folder: Path) -> Path:
    """A key for service account tokens (the API server derives the public half itself)."""
    return _write_key(folder / "service-account.key", ec.generate_private_key(ec.SECP256R1()))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    # Python 3.13 verifies strictly (VERIFY_X509_STRICT): an authority without keyCertSign is refused.
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
