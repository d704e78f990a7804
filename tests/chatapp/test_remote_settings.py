"""Addresses and servers of the settings; no key gets into a file, an address or a message."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from chatapp.remote import address, family, profiles
from chatapp.remote.address import Address, AddressError
from chatapp.remote.profiles import Profile, ProfileError
from runtime import presets


class TestAddress:
    @pytest.mark.parametrize(
        ("written", "url"),
        [
            ("http://gpu:8000", "http://gpu:8000/v1"),
            ("http://gpu:8000/", "http://gpu:8000/v1"),
            ("gpu:8000", "http://gpu:8000/v1"),
            ("localhost", "http://localhost/v1"),
            ("10.0.0.7:30000/v1", "http://10.0.0.7:30000/v1"),
            ("https://host.example/api/v1/chat/completions", "https://host.example/api/v1"),
            ("https://host.example/v1/models", "https://host.example/v1"),
            ("http://[::1]:8080", "http://[::1]:8080/v1"),
        ],
    )
    def test_is_what_the_endpoints_follow(self, written: str, url: str) -> None:
        assert address.read(written, ()).server == url
        assert address.parse(url) == Address(url)

    def test_holds_the_model(self) -> None:
        found = address.read("gpu:8000#Qwen/Qwen3.5-27B", ())
        assert found == Address("http://gpu:8000/v1", "Qwen/Qwen3.5-27B")
        assert address.parse(str(found)) == found
        assert address.label(str(found)) == "Qwen3.5-27B @ gpu:8000"

    def test_may_be_a_name_of_the_settings(self) -> None:
        assert address.read("cluster", {"cluster"}) == Address("server:cluster")
        assert address.read("server:cluster#m", {"cluster"}).profile == "cluster"
        with pytest.raises(AddressError, match="no server 'other'"):
            address.read("other", {"cluster"})

    @pytest.mark.parametrize("written", ["https://user:secret@host/v1", "https://host/v1?key=secret"])
    def test_with_a_key_in_it_is_refused_without_repeating_it(self, written: str) -> None:
        with pytest.raises(AddressError) as error:
            address.read(written, ())
        assert "secret" not in str(error.value)
        assert "key_env" in str(error.value)

    @pytest.mark.parametrize("written", ["http://", "ftp://host:1", "http://host:port", "http://host:99999"])
    def test_that_is_none_is_a_sentence(self, written: str) -> None:
        with pytest.raises(AddressError):
            address.read(written, ())

    @pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:1/v1"])
    def test_of_this_machine_is_known(self, url: str) -> None:
        assert address.is_loopback(url)
        assert not address.is_loopback("http://10.0.0.1/v1")


class TestProfiles:
    def test_are_read_with_their_defaults(self) -> None:
        tables = {
            "cluster": {"url": "gpu", "model": "m"},
            "a": {
                "url": "http://gpu:8000",
                "model": "m",
                "key_env": "KEY",
                "headers": {"X-Team": "nlp"},
                "timeout": 60,
            },
        }
        found, warnings = profiles.load(tables)
        assert found["a"] == Profile("a", "http://gpu:8000/v1", "m", "KEY", headers={"X-Team": "nlp"}, timeout=60.0)
        assert len(warnings) == 1
        assert "servers.cluster" in warnings[0]

    def test_none_has_the_name_of_this_machine(self) -> None:
        found, warnings = profiles.load({"local": {"url": "http://localhost:8000/v1"}})
        assert (found, len(warnings)) == ({}, 1)
        assert "a server needs another name. This server is ignored." in warnings[0]

    @pytest.mark.parametrize(
        "table",
        [
            {"url": "http://gpu", "key": "s3cret"},
            {"url": "http://gpu", "api_key": "s3cret"},
            {"url": "http://gpu", "headers": {"Authorization": "Bearer s3cret"}},
            {"url": "http://gpu", "headers": {"X-Api-Key": "s3cret"}},
            {"url": "http://gpu", "headers": {"X-Team": "Zoë"}},
            {"url": "http://gpu", "headers": {"X-Team": "two\nlines"}},
            {"url": "http://gpu", "headers": {"X Team": "nlp"}},
            {"url": "http://gpu", "headers": {"": "nlp"}},
            {"url": "http://u:s3cret@gpu"},
            {"url": "http://gpu", "timeout": -1},
            {"url": "http://gpu", "timeout": True},
            {"url": "http://gpu", "nonsense": 1},
            {"model": "m"},
            {"url": 3},
            "http://gpu",
        ],
    )
    def test_that_cannot_be_used_are_told_and_keys_in_the_file_are_refused(self, table: object) -> None:
        found, warnings = profiles.load({"x": table})
        assert not found
        assert warnings
        assert "s3cret" not in warnings[0]

    def test_keys_come_from_the_environment(self) -> None:
        profile = Profile("a", "http://gpu/v1", key_env="KEY", headers={"X-Token": "$TOKEN", "X-Team": "nlp"})
        found = profiles.credentials(profile, {"KEY": "k-1", "TOKEN": "t-2"})
        assert found.headers == {"Authorization": "Bearer k-1", "X-Token": "t-2", "X-Team": "nlp"}
        assert found.redact("k-1 and t-2 and nlp") == "*** and *** and nlp"
        assert "k-1" not in repr(found)
        assert profiles.Credentials(secrets=("a\\b",)).redact(repr("key a\\b")) == "'key ***'"
        with pytest.raises(ProfileError, match="KEY"):
            profiles.credentials(profile, {"TOKEN": "t-2"})

    @pytest.mark.parametrize("value", ["two\nlines", "ключ"])
    def test_a_key_that_no_header_takes_is_a_sentence(self, value: str) -> None:
        with pytest.raises(ProfileError) as error:
            profiles.credentials(Profile("a", "http://gpu/v1", key_env="KEY"), {"KEY": value})
        assert value not in str(error.value)

    def test_or_from_the_keyring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept: dict[tuple[str, str], str] = {("qwenchat", "a"): "k-1"}
        keyring: Any = ModuleType("keyring")
        keyring.errors = ModuleType("keyring.errors")
        keyring.errors.KeyringError = type("KeyringError", (Exception,), {})
        keyring.get_password = lambda service, name: kept.get((service, name))
        monkeypatch.setitem(sys.modules, "keyring", keyring)
        monkeypatch.setitem(sys.modules, "keyring.errors", keyring.errors)
        found = profiles.credentials(Profile("a", "http://gpu/v1", keyring=True), {})
        assert found.headers == {"Authorization": "Bearer k-1"}
        with pytest.raises(ProfileError, match="keyring set qwenchat b"):
            profiles.credentials(Profile("b", "http://gpu/v1", keyring=True), {})
        kept["qwenchat", "a"] = "k-1\r"  # of a file with the line ends of Windows
        assert profiles.credentials(Profile("a", "http://gpu/v1", keyring=True), {}) == found
        kept["qwenchat", "a"] = "k\r1’"
        with pytest.raises(ProfileError, match=r"^What the keyring holds for a cannot be sent as a key\.$"):
            profiles.credentials(Profile("a", "http://gpu/v1", keyring=True), {})
        kept["qwenchat", "a"] = "\r\n"
        with pytest.raises(ProfileError, match="keyring set qwenchat a"):
            profiles.credentials(Profile("a", "http://gpu/v1", keyring=True), {})
        monkeypatch.setitem(sys.modules, "keyring", None)
        with pytest.raises(ProfileError, match="pip install"):
            profiles.credentials(Profile("a", "http://gpu/v1", keyring=True), {})


@pytest.mark.parametrize(
    "model",
    [
        *(
            f"Qwen/Qwen3.5-{size}"
            for size in ("0.8B", "2B", "4B", "9B", "27B", "35B-A3B", "122B-A10B", "397B-A17B-FP8")
        ),
        *(f"Qwen/Qwen3.6-{size}" for size in ("27B", "35B-A3B")),
        "qwen3.8-27b",
    ],
)
def test_a_served_model_is_asked_with_the_values_that_it_has_here(model: str) -> None:
    metadata = {"general.name": address.short(model)}
    rows, found = presets.presets(metadata), family.presets(model)
    for mode in ("thinking", "thinking-coding", "non-thinking"):
        for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty"):
            assert getattr(found[mode], name) == getattr(rows[mode], name), (mode, name)
    assert family.thinks_by_default(model) == presets.thinking_by_default(metadata)


def test_of_another_family_nothing_is_assumed() -> None:
    assert family.presets("meta/Llama-4") == {}
    assert family.thinks_by_default("meta/Llama-4") is None
