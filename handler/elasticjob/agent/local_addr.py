"""``--local-addr``: the address at which the other members reach this agent when its pod leads. And the one
that a pod finds by itself, where no operator reads it from the pod's status.

What no other pod could connect to is refused at the start, not found out by the round's other members.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import RecordError

logger = logging.getLogger(__name__)

EXPECTED = "expected an address of this pod, such as 10.0.0.5 or 2001:db8::1, or a host name"
GIVE_IT = (
    "set --local-addr to one at which the other pods reach this pod. In a pod take --local-addr=$(POD_IP), "
    "with POD_IP in the container's env by valueFrom.fieldRef status.podIP"
)
WITH_PORT = re.compile(r"([^:\[\]]+|\[[^\[\]]*\]):[0-9]*")
NUMBERS = re.compile(r"[0-9.]+")
NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class LocalAddrError(ValueError):
    """The address is no address of this pod, or none is known. The text names what was found and what was
    expected."""


def read_local_addr(text: str) -> str:
    """The address without brackets, or the name. Raises LocalAddrError; looks no name up."""
    found = f"--local-addr is {text[:80]!r}"
    if WITH_PORT.fullmatch(text):
        raise LocalAddrError(f"{found}, which has a port; {EXPECTED} (each round chooses its port)")
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        parse_endpoint(format_endpoint(host, 1))
    except RecordError:
        raise LocalAddrError(f"{found}; {EXPECTED}") from None
    address = _address(host)
    if address is None and (":" in host or NUMBERS.fullmatch(host)):
        raise LocalAddrError(f"{found}, which is not a valid IP address; {EXPECTED}")
    if address is not None and (address.is_unspecified or address.is_multicast):
        raise LocalAddrError(f"{found}, which no other pod can reach; {EXPECTED}")
    return host


def check_local_addr(
    host: str,
    resolve: Callable[[str], list[str]] | None = None,
    is_interface: Callable[[str], bool] | None = None,
) -> None:
    """Look a name up, as the others will. Raises LocalAddrError if they cannot reach this pod by it."""
    found = f"--local-addr is {host[:80]!r}"
    address = _address(host)
    if address is not None:
        if address.is_loopback:
            logger.warning("%s: only agents on this machine can reach this one", found)
        return
    if (is_interface or _is_interface)(host):
        raise LocalAddrError(f"{found}, which is the name of a network interface; {EXPECTED}")
    try:
        addresses = (resolve or _resolve)(host)
    except socket.gaierror as error:
        if error.errno in NO_SUCH_NAME:
            raise LocalAddrError(
                f"{found}, and this name cannot be resolved ({error.strerror}); {EXPECTED}"
            ) from None
        logger.warning("%s, and this name cannot be resolved at present: %s", found, error)
        return
    except UnicodeError:
        raise LocalAddrError(
            f"{found}, and this name cannot be resolved (a part between dots is empty, or has more than 63 "
            f"letters); {EXPECTED}"
        ) from None
    if addresses and all((one := _address(text)) is not None and one.is_loopback for text in addresses):
        raise LocalAddrError(
            f"{found}, which is {addresses[0]} here: the other pods would connect to themselves; {EXPECTED}"
        )


def find_own_address(server: str) -> str:
    """The address from which this pod reaches the API server at this URL, as the other pods reach it. Raises
    LocalAddrError."""
    try:
        url = urlsplit(server)
        port = url.port or (80 if url.scheme == "http" else 443)
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect(address)
            own = str(one.getsockname()[0])
    except (OSError, ValueError) as error:
        raise LocalAddrError(
            f"this pod's address is not known (no way to {server}: {error}): {GIVE_IT}"
        ) from None
    check_own_address(own, server, [str(address[0]) for *_, address in found])
    return own


def check_own_address(own: str, server: str, addresses: Collection[str]) -> None:
    """``own`` is what this pod has found, ``addresses`` are those of the API server. Raises LocalAddrError if
    the others cannot reach this pod there."""
    address = _address(own)
    if address is None or address.is_loopback or address.is_unspecified:
        why = "which no other pod can reach"
    elif own in addresses:
        why = "which is the API server's own, as with hostNetwork on nodes whose kube-proxy uses IPVS"
    else:
        return
    raise LocalAddrError(
        f"this pod reaches the API server ({server}) from {own or 'no address'}, {why}; {EXPECTED}: {GIVE_IT}"
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_interface(name: str) -> bool:
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def _resolve(name: str) -> list[str]:
    """Raises gaierror."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
