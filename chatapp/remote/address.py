"""The address of a served model, as one text: `https://host:8000/v1#MODEL`, or `server:NAME#MODEL` for a profile.

It stands wherever the path of a model file could: in the settings, on the command line, in a conversation's memory.
It never holds a key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from chatapp.sanitize import clean_line
from runtime.quick_dataclass import dataclass

HERE = "local"
"""This machine, where a server's name could stand."""
_PROFILE = "server:"
_ENDPOINTS = ("/chat/completions", "/models", "/completions")


class AddressError(Exception):
    """No address of a server; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Address:
    """`server`: a base URL, or `server:NAME`; `model` "" leaves the choice to the profile, or to the server."""

    server: str
    model: str = ""

    @property
    def profile(self) -> str:
        """The name of the profile; "" if the address is a URL."""
        return self.server.removeprefix(_PROFILE) if self.server.startswith(_PROFILE) else ""

    def __str__(self) -> str:
        return f"{self.server}#{self.model}" if self.model else self.server


def is_address(text: str) -> bool:
    """Whether it names a server rather than a file."""
    return text.startswith((_PROFILE, "http://", "https://"))


def parse(text: str) -> Address:
    """An address as it is kept. Raises AddressError."""
    server, _, model = text.partition("#")
    if server.startswith(_PROFILE):
        return Address(server, model.strip())
    return Address(base_url(server), model.strip())


def read(text: str, profiles: Container[str], model: str = "") -> Address:
    """An address as a user writes it: the name of a profile, or a URL, whose scheme may be left out.

    Raises AddressError.
    """
    server, _, own = text.strip().partition("#")
    model = model or own.strip()
    if server.removeprefix(_PROFILE) in profiles:
        return Address(_PROFILE + server.removeprefix(_PROFILE), model)
    if "://" not in server:
        if server.startswith(_PROFILE) or not re.fullmatch(r"localhost|[^/\s]*[.:][^\s]*|[^/\s]+/[^\s]*", server):
            name = server.removeprefix(_PROFILE)
            raise AddressError(
                f"There is no server {clean_line(name, 60)!r} in the settings, and it is no address such as host:8000."
            )
        server = f"http://{server}"
    return Address(base_url(server), model)


def base_url(text: str) -> str:
    """The URL that `/chat/completions` follows; without a path of its own it ends in `/v1`. Raises AddressError."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise AddressError(f"That is no address of a server: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError("The address of a server looks like http://host:8000/v1 or https://host/v1.")
    if parts.username is not None or parts.password is not None or parts.query:
        raise AddressError(
            "An address may not hold a key, for it is shown and kept: put the server into the settings, "
            "with key_env = the name of the environment variable that holds the key."
        )
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path or '/v1'}"


def is_loopback(url: str) -> bool:
    """Whether the URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def root(url: str) -> str:
    """The part of a base URL before its `/v1`, under which servers have endpoints of their own."""
    return re.sub(r"/v\d+$", "", url)


def host(url: str) -> str:
    """The host and port, as shown."""
    parts: SplitResult = urlsplit(url)
    return parts.netloc


def short(model: str) -> str:
    """The name of a model without the maker's, or the folders, before it."""
    return model.rstrip("/").rpartition("/")[2] or model


def label(path: str) -> str:
    """What a model is called before it is known better: by its file's name, or its address."""
    if not is_address(path):
        return Path(path).stem
    server, _, model = path.partition("#")
    where = server.removeprefix(_PROFILE) if server.startswith(_PROFILE) else host(server)
    return f"{short(model)} @ {where}" if model else where
