"""The proxy of a kubeconfig or the environment. Its URL may have a password: no error has a part of that."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lightkube.core.exceptions import ConfigError

EXTENSION = "elasticjob_proxy"
"""A request's extension: the ``place`` of its proxy."""
_SCHEMES = ("http", "https", "socks5", "socks5h")


def checked(url: str, where: str) -> str:
    """Return the URL. Raises ConfigError if it is not that of a proxy."""
    if not _is_proxy(url):
        raise ConfigError(
            f"{where}: proxy-url is no URL of a proxy: expected http://HOST:PORT, or the same with https or "
            "socks5; in a user name or password, '/', '#', '?' and '@' are written %2F, %23, %3F and %40"
        )
    return url


def place(url: str | None, server: str) -> str:
    """Host and port of the proxy on the way to a server, and nothing else of its URL; "" if there is none."""
    try:
        if url is None:
            to = urlsplit(server)
            known = getproxies()
            url = known.get(to.scheme) or known.get("all") or ""
            if not url or proxy_bypass(to.hostname or ""):
                return ""
            url = url if "://" in url else f"http://{url}"
        found = urlsplit(url)
        host = f"[{found.hostname}]" if ":" in (found.hostname or "") else found.hostname or ""
        return f"{host}:{found.port}" if found.port else host
    except ValueError:
        return ""


def _is_proxy(url: str) -> bool:
    import httpx2

    try:
        found = urlsplit(url)
        known = found.scheme in _SCHEMES and bool(found.hostname) and found.port != 0
        httpx2.Proxy(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return known and url.isprintable() and "@" not in f"{found.path}{found.query}{found.fragment}"
