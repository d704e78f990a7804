"""The servers of the settings file: one table `[servers.NAME]` each. Their keys are elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from chatapp.remote.address import HERE, AddressError, base_url
from chatapp.sanitize import clean_line
from runtime.quick_dataclass import dataclass

TABLE = "servers"
TIMEOUT = 300.0
"""Seconds of silence after which a reply is given up."""

_SECRET = re.compile(r"key|token|secret|password|authorization|cookie", re.IGNORECASE)
_KEY_NAMES = ("key", "api_key", "token", "password", "secret", "bearer")
_HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_ELSEWHERE = "Keys do not belong in this file: name the environment variable that holds it, with"


class ProfileError(Exception):
    """A server of the settings cannot be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`key_env`: the environment variable with the key; `keyring`: it is in the system's, under `qwenchat` and `name`.

    A header's value that begins with `$` is taken from the environment variable of that name.
    """

    name: str
    url: str
    model: str = ""
    key_env: str = ""
    keyring: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT  # seconds


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is sent with each request; `secrets` are the texts that must never be shown."""

    headers: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    source: str = ""  # of the key, in words

    def redact(self, text: str) -> str:
        """The text with each secret replaced by `***`, also where it stands as Python writes it in its messages."""
        for secret in self.secrets:
            text = text.replace(secret, "***").replace(repr(secret)[1:-1], "***")
        return text

    def __repr__(self) -> str:
        return f"Credentials(source={self.source!r})"


def load(tables: object) -> tuple[dict[str, Profile], list[str]]:
    """The profiles by name, and a sentence for each table that cannot be used."""
    profiles: dict[str, Profile] = {}
    warnings = []
    if not isinstance(tables, dict):
        return {}, [f"{TABLE} takes tables such as [{TABLE}.NAME]; it is ignored."]
    for name, table in tables.items():
        try:
            profiles[name] = _profile(name, table)
        except (ProfileError, AddressError) as error:
            warnings.append(f"{TABLE}.{name}: {error} This server is ignored.")
    return profiles, warnings


def _profile(name: str, table: object) -> Profile:
    if name == HERE:
        raise ProfileError(f"/server {HERE} comes back to this machine: a server needs another name.")
    if not isinstance(table, dict):
        raise ProfileError(f"It takes a table, [{TABLE}.{name}].")
    for key in table:
        if key in _KEY_NAMES:
            raise ProfileError(f'{_ELSEWHERE} key_env = "NAME".')
    kinds: dict[str, tuple[type, ...]] = {
        "url": (str,),
        "model": (str,),
        "key_env": (str,),
        "keyring": (bool,),
        "headers": (dict,),
        "timeout": (int, float),
    }
    for key, value in table.items():
        if key not in kinds:
            raise ProfileError(f"{key} is not known; there are {', '.join(kinds)}.")
        if not isinstance(value, kinds[key]) or (isinstance(value, bool) and bool not in kinds[key]):
            raise ProfileError(f"{key} takes {_TAKES[key]}.")
    if "url" not in table:
        raise ProfileError('It needs a url = "http://host:8000/v1".')
    headers = table.get("headers", {})
    for header, value in headers.items():
        if not isinstance(value, str):
            raise ProfileError(f"The header {header} takes a text.")
        if not _HEADER.fullmatch(header) or not _can_be_sent(value):
            raise ProfileError(f"The header {clean_line(header, 40)} cannot be sent: it takes plain letters and signs.")
        if _SECRET.search(header) and not value.startswith("$"):
            raise ProfileError(f'{_ELSEWHERE} key_env, or for a header with "$NAME".')
    timeout = float(table.get("timeout", TIMEOUT))
    if not 0 < timeout < float("inf"):
        raise ProfileError("timeout takes seconds, more than 0.")
    return Profile(
        name,
        base_url(table["url"]),
        table.get("model", ""),
        table.get("key_env", ""),
        table.get("keyring", False),
        {header: value.strip() for header, value in headers.items()},
        timeout,
    )


_TAKES = {
    "url": "an address",
    "model": "the name of a model",
    "key_env": "the name of an environment variable",
    "keyring": "true or false",
    "headers": "a table of texts",
    "timeout": "seconds",
}


def credentials(profile: Profile, environment: Mapping[str, str]) -> Credentials:
    """What the profile's server is sent. Raises ProfileError for a key that is not where it should be."""
    headers: dict[str, str] = {}
    secrets = []
    for name, value in profile.headers.items():
        if value.startswith("$"):
            value = _variable(profile, value[1:], environment)
            secrets.append(value)
        headers[name] = value
    key, source = "", ""
    if profile.key_env:
        key, source = _variable(profile, profile.key_env, environment), f"the variable {profile.key_env}"
    elif profile.keyring:
        key, source = _from_keyring(profile), "the keyring"
    if key:
        headers["Authorization"] = f"Bearer {key}"
        secrets.append(key)
    return Credentials(headers, tuple(sorted(secrets, key=len, reverse=True)), source)


def _variable(profile: Profile, name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise ProfileError(f"The server {profile.name} wants a key: set the environment variable {name}.")
    if not _can_be_sent(value):
        raise ProfileError(f"What the environment variable {name} holds cannot be sent as a key.")
    return value


def _from_keyring(profile: Profile) -> str:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ProfileError("Keys in the keyring need a package: pip install 'qwenchat[keyring]'.") from None
    try:
        key: str | None = keyring.get_password("qwenchat", profile.name)
    except keyring.errors.KeyringError as error:
        raise ProfileError(f"The keyring cannot be read ({type(error).__name__}).") from error
    key = (key or "").strip()
    if not key:
        raise ProfileError(f"The keyring has no key for it: keyring set qwenchat {profile.name}")
    if not _can_be_sent(key):
        raise ProfileError(f"What the keyring holds for {profile.name} cannot be sent as a key.")
    return key


def _can_be_sent(value: str) -> bool:
    """Whether a header takes it."""
    return value.isascii() and value.isprintable()
