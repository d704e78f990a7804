"""The name of a model's weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.fingerprint import fingerprint


class TestFingerprint:
    def test_is_the_same_for_the_same_bytes_and_traits(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(bytes(1000))
        one, other = (fingerprint([tmp_path / name], "cpu", "auto") for name in ("a", "b"))
        assert one == other
        assert one != fingerprint([tmp_path / "a"], "cpu", "q8")
        assert one != fingerprint([tmp_path / "a", tmp_path / "b"], "cpu", "auto")

    @pytest.mark.parametrize("size", [999, 1001])
    def test_tells_sizes_apart(self, tmp_path: Path, size: int) -> None:
        (tmp_path / "a").write_bytes(bytes(1000))
        (tmp_path / "b").write_bytes(bytes(size))
        assert fingerprint([tmp_path / "a"]) != fingerprint([tmp_path / "b"])

    def test_tells_other_weights_apart_and_is_fast_on_a_large_file(self, tmp_path: Path) -> None:
        """A sparse file of 20 GB: whoever reads all of it will be noticed."""
        path = tmp_path / "large"
        with path.open("wb") as file:
            file.truncate(20_000_000_000)
        before = fingerprint([path])
        with path.open("r+b") as file:
            file.seek(12_000_000_000)
            file.write(b"\1" * (20_000_000_000 // 256 + 4096))  # as much as lies between two samples
        assert fingerprint([path]) != before
