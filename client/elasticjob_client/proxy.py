"""The proxy of a kubeconfig. Its URL may have a password in it, so no error has a part of it."""

from __future__ import annotations

from urllib.parse import urlsplit

from lightkube.core.exceptions import ConfigError

_SCHEMES = ("http", "https", "socks5", "socks5h")


def checked(url: str, where: str) -> str:
    """The same URL. Raises ConfigError if it leads to no proxy."""
    if not _is_proxy(url):
        raise ConfigError(
            f"{where}: proxy-url is no URL of a proxy: expected http://HOST:PORT, or the same with https or "
            "socks5; in a user name or password, '/', '#', '?' and '@' are written %2F, %23, %3F and %40"
        )
    return url


def _is_proxy(url: str) -> bool:
    import httpx2

    try:
        found = urlsplit(url)
        known = found.scheme in _SCHEMES and bool(found.hostname) and found.port != 0
        httpx2.Proxy(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return known and url.isprintable() and "@" not in f"{found.path}{found.query}{found.fragment}"
