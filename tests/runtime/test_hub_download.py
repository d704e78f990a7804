"""Downloads, against a hub on loopback that goes wrong in every way that was reported of the real one."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from hub_fixtures import FILE, QUICK, REPO, SECONDS, Place, content, place
from hub_server import Faults
from huggingface_hub import constants, scan_cache_dir, try_to_load_from_cache

from runtime.hub import cache, downloads, remote, transfer
from runtime.hub.ranges import Ranges, Record
from runtime.hub.sentences import HubError, explain

__all__ = ["place"]

FOLDER = "models--maker--Qwen3.5-4B-GGUF"


def names(hub_commit: str, sha: str, file: str = FILE) -> set[str]:
    """What the cache holds when one file is there and nothing else ever was."""
    return {f"{FOLDER}/blobs/{sha}", f"{FOLDER}/snapshots/{hub_commit}/{file}", f"{FOLDER}/refs/main"}


def test_a_file_arrives_where_huggingface_hub_looks_for_it(place: Place) -> None:
    sha = place.hub.put(REPO, FILE, content())
    download = place.fetch()
    assert (download.state, download.done, download.total) == ("done", 300_000, 300_000)
    assert Path(download.path).read_bytes() == content()
    assert place.files() == names(place.hub.commit(REPO), sha)
    assert try_to_load_from_cache(REPO, FILE) == download.path
    [repo] = scan_cache_dir(place.cache).repos
    assert (repo.repo_id, repo.size_on_disk) == (REPO, 300_000)
    ranges = {asked for method, path, asked in place.hub.requests if path.startswith("/lfs/")}
    assert len(ranges) > 1  # several connections


def test_ranges_always_cover_what_is_left() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        ranges, seen = Ranges(1000, smallest=chance.randrange(1, 200)), bytearray(1000)
        taken = []
        while ranges.left:
            if chance.random() < 0.3 and (new := ranges.take()):
                taken.append(new)
            elif taken:
                range_ = chance.choice(taken)
                step = min(chance.randrange(1, 60), range_.left)
                for at in range(range_.at, range_.at + step):
                    seen[at] += 1
                range_.at += step
                if not range_.left or chance.random() < 0.1:
                    range_.taken = False
                    taken.remove(range_)
            assert ranges.done == sum(seen)
        assert seen == b"\x01" * 1000


@pytest.mark.parametrize("left", [[(0, 11)], [(-1, 3)], [(4, 6), (5, 8)]], ids=["beyond", "before", "twice"])
def test_a_record_that_makes_no_sense_is_none(tmp_path: Path, left: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="ranges"):
        Ranges(10, left)
    (tmp_path / "record").write_text("{}")
    assert Record.read(tmp_path / "record") is None


@pytest.mark.slow
def test_killed_at_any_step_it_goes_on_to_the_right_file(place: Place) -> None:
    """Case 37: at least fifty kills, and nothing is left over at the end of each download."""
    chance = random.Random(0)
    environment = {
        **os.environ,
        "HF_ENDPOINT": place.hub.url,
        "HF_HUB_CACHE": str(place.cache),
        "NO_PROXY": "127.0.0.1",
    }
    victim = [sys.executable, str(Path(__file__).with_name("hub_victim.py")), REPO, FILE]
    kills = round_ = 0
    with subprocess.Popen(
        victim, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin and process.stdout
        while kills < 50:
            round_ += 1
            data = content(chance.randrange(1, 400_000), seed=round_)
            sha = place.hub.put(REPO, FILE, data)
            answer = ""
            while answer != "done":
                process.stdin.write(f"{int(chance.paretovariate(0.7)) + 2}\n")
                answer = process.stdout.readline().strip()
                assert answer in ("killed", "done")
                kills += answer == "killed"
            commit = place.hub.commit(REPO)
            assert (place.cache / FOLDER / "snapshots" / commit / FILE).read_bytes() == data
            others = {name for name in place.files() if commit not in name and sha not in name}
            assert all(f"{FOLDER}/snapshots/" in name or "/blobs/" in name or "/refs/" in name for name in others)
            assert not [name for name in place.files() if "qwenchat" in name]
        process.stdin.close()
    assert round_ > 3


def test_what_changed_while_it_was_away_starts_over_and_says_so(place: Place) -> None:
    place.hub.faults.quota = 120_000
    assert place.fetch().state == "failed"
    [left] = downloads.unfinished()
    assert (left.key, left.state, left.total) == (f"{REPO}/{FILE}", "waiting", 300_000)
    assert 0 < left.done < 300_000
    place.hub.faults.quota = None
    sha = place.hub.put(REPO, FILE, content(seed=2))
    assert place.fetch().state == "done"
    assert "The file has changed on the hub since its download began: it starts over." in {
        d.message for d in place.told
    }
    assert place.files() == names(place.hub.commit(REPO), sha)


def test_only_what_is_missing_is_asked_for_again(place: Place) -> None:
    place.hub.faults.quota = 150_000
    assert place.fetch().state == "failed"
    done = downloads.unfinished()[0].done
    place.hub.faults.quota = None
    place.hub.requests.clear()
    assert place.fetch().state == "done"
    asked = 0
    for _, path, span in place.hub.requests:
        if path.startswith("/lfs/"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            asked += int(last) + 1 - int(first)
    # a range that is split is asked for to its old end
    assert done > 30_000 and asked <= 2 * (300_000 - done)


def test_a_flipped_byte_is_refused_and_the_file_gone(place: Place) -> None:
    """Case 38."""
    place.hub.faults.flip = 123_456
    download = place.fetch()
    assert download.state == "failed"
    assert "damaged" in download.message and "deleted" in download.message
    assert not place.files()
    place.hub.faults.flip = None
    assert place.fetch().state == "done"


def test_no_host_but_the_endpoint_is_contacted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 39: neither on the way of a download nor when the endpoint sends elsewhere."""
    asked = set()
    resolve = socket.getaddrinfo

    def watched(host: object, port: object, *rest: object, **more: object) -> object:
        asked.add((str(host), port))
        return resolve(host, port, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    remote.search("qwen")
    assert place.fetch().state == "done"
    assert asked <= {("127.0.0.1", place.hub.port)}
    assert place.hub.hosts == {f"127.0.0.1:{place.hub.port}"}
    place.hub.put(REPO, FILE, content(seed=3))
    place.hub.faults.elsewhere = f"localhost:{place.hub.port}"
    download = place.fetch()
    assert download.state == "failed" and "sends to localhost; no other host is contacted" in download.message
    assert ("localhost", place.hub.port) not in asked
    monkeypatch.setenv(remote.HOSTS_VARIABLE, "localhost")
    assert place.fetch().state == "done"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "GatedRepo", "is gated: accept its terms at"),
        (403, "GatedRepo", "is gated: accept its terms at"),
        (403, "", "your token may lack the right"),
        (404, "EntryNotFound", "was renamed or removed"),
        (410, "", "unexpected status 410"),
    ],
)
def test_a_refusal_is_said_at_once(place: Place, status: int, code: str, words: str) -> None:
    """Case 40."""
    place.hub.faults.status, place.hub.faults.error = status, code
    download = place.fetch()
    assert download.state == "failed" and words in download.message
    assert len([path for _, path, _ in place.hub.requests if "/resolve/" in path]) <= QUICK.connections


@pytest.mark.parametrize("status", [429, 503])
def test_trouble_of_the_server_is_waited_for(place: Place, status: int) -> None:
    place.hub.faults.status = status
    download = place.fetch()
    assert download.state == "failed" and f"trouble ({status}), after 4 tries" in download.message
    assert any("trying again (1 of 3)" in told.message for told in place.told)


def test_connections_that_break_at_once_have_used_up_one_try(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is away for a while ends no download, however many connections it had."""
    job = place.job(tuning=replace(QUICK, connections=4))
    session, breaks = remote.session, [0]

    def count() -> None:
        breaks[0] += 1

    together = threading.Barrier(4, count)

    def broken() -> object:
        if breaks[0] < QUICK.tries - 1:
            together.wait(SECONDS)
            raise httpx2.ConnectError("No route to host")
        return session()

    monkeypatch.setattr(remote, "session", broken)
    job.start()
    job.join(SECONDS)
    assert (job.download.state, job.download.message, breaks) == ("done", "", [QUICK.tries - 1])


def test_a_gated_repository_opens_with_the_right_token(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.hub.gated.add(REPO)
    assert f"{place.hub.url}/{REPO}" in place.fetch().message
    monkeypatch.setenv("HF_TOKEN", place.hub.token)
    assert place.fetch().state == "done"


@pytest.mark.parametrize(
    ("repo", "file", "words"),
    [("maker/none", FILE, "There is no repository"), (REPO, "other.gguf", "has no file other.gguf")],
)
def test_what_is_not_there(place: Place, repo: str, file: str, words: str) -> None:
    with pytest.raises(Exception) as caught:
        downloads.find_item(repo, file)
    assert words in str(explain(caught.value, repo, file))


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_no_network(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(Exception) as caught:
        remote.listing(REPO)
    assert str(explain(caught.value)) == "127.0.0.1 cannot be reached: check the network and try again."


def test_a_proxy_that_does_not_work(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    with pytest.raises(Exception) as caught:
        remote.listing(REPO)
    assert str(explain(caught.value)).startswith("The proxy 127.0.0.1 cannot be used")


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("socks5h://u:s3cret@h:1", "SOCKS needs a package: pip install 'httpx2[socks]'."),
        ("ftp://u:s3cret@h:1", "its address begins with http:// or https://."),
        ("http://u:s3cret@h:abc", "its address begins with http:// or https://."),
    ],
)
def test_a_proxy_that_is_none(place: Place, proxy: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(Exception) as caught:
        remote.listing(REPO)
    assert str(explain(caught.value)) == f"The proxy that the environment names cannot be used: {words}"


def test_offline_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Exception) as caught:
        remote.listing(REPO)
    assert "HF_HUB_OFFLINE is set" in str(explain(caught.value))
    assert not place.hub.requests


Usage = namedtuple("Usage", "total used free")


def test_a_disk_without_room_is_known_before(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda path: Usage(10**9, 0, transfer.RESERVE + 299_999))
    download = place.fetch()
    assert download.state == "failed" and "Make room" in download.message
    assert not place.files() and not [path for _, path, _ in place.hub.requests if path.startswith("/lfs/")]
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "is full. Make room"), (errno.EFBIG, "does not take files this large"), (errno.EROFS, "HF_HOME")],
)
def test_a_disk_that_refuses_keeps_what_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    real, written = os.pwrite, [0]

    def write(fd: int, data: bytes, offset: int) -> int:
        if written[0] > 100_000:
            raise OSError(number, os.strerror(number))
        written[0] += len(data)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    download = place.fetch()
    assert download.state == "failed" and words in download.message
    assert downloads.unfinished()[0].done >= 100_000
    monkeypatch.setattr(os, "pwrite", real)
    assert place.fetch().state == "done"


def test_a_disk_that_fills_on_the_way_stops_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [10**12]
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda path: Usage(10**12, 0, room[0]))
    place.hub.faults.stall = 30_000
    job = place.job()
    job.start()
    while not job.download.done and job.is_alive():
        pass
    room[0] = 1000
    job.join(SECONDS)
    assert job.download.state == "failed" and "nearly full" in job.download.message
    assert downloads.unfinished()[0].done > 0


@pytest.mark.parametrize("fault", ["stall", "cut"])
def test_an_answer_that_breaks_off_is_taken_up_again(place: Place, fault: str) -> None:
    place.hub.faults.once = True
    setattr(place.hub.faults, fault, 40_000)
    download = place.fetch()
    assert download.state == "done" and Path(download.path).read_bytes() == content()


def test_a_server_that_never_answers_is_given_up(place: Place) -> None:
    place.hub.faults.stall = 0
    download = place.fetch()
    assert download.state == "failed" and "does not answer, after 4 tries" in download.message


@pytest.mark.parametrize("claim", [299_999, 300_001, 3], ids=["less", "more", "tiny"])
def test_a_wrong_length_is_refused(place: Place, claim: int) -> None:
    place.hub.faults.claim = claim
    download = place.fetch()
    assert download.state == "failed" and "is not the one that" in download.message


def test_more_than_was_asked_for_is_left(place: Place) -> None:
    place.hub.faults.surplus = 5000
    download = place.fetch()
    assert download.state == "done" and Path(download.path).read_bytes() == content()


def test_a_server_without_ranges(place: Place) -> None:
    place.hub.faults.quota = 100_000
    assert place.fetch().state == "failed"
    place.hub.faults = Faults(cut=200_000, no_ranges=True)
    place.hub.faults.once = True
    place.told.clear()
    download = place.fetch()
    assert download.state == "done" and Path(download.path).read_bytes() == content()
    assert "The server cannot go on in the middle of a file: it starts over." in {told.message for told in place.told}


def test_a_web_page_is_not_taken_for_a_model(place: Place) -> None:
    place.hub.faults.page = True
    download = place.fetch()
    assert download.state == "failed" and "Log in there" in download.message


def test_two_at_once(place: Place) -> None:
    other = "Qwen3.5-4B-Q8_0.gguf"
    place.hub.put(REPO, other, content(500_000, seed=5))
    place.hub.put("other/repo", FILE, content(200_000, seed=6))
    jobs = [place.job(), place.job(REPO, other), place.job("other/repo")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(SECONDS)
    assert [job.download.state for job in jobs] == ["done"] * 3
    expected = [content(), content(500_000, seed=5), content(200_000, seed=6)]
    assert [Path(job.download.path).read_bytes() for job in jobs] == expected


def test_the_same_twice_at_once_is_one_download(place: Place) -> None:
    place.hub.faults.stall = 50_000
    first = place.job(tuning=transfer.Tuning(connections=1, silence=30))
    first.start()
    while not first.download.done:
        pass
    assert "is downloading this already" in place.fetch().message
    first.pause()
    place.hub.faults.stall = None


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_takes_files_too(place: Place, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert Path(place.fetch().path).read_bytes() == content()


def test_pause_keeps_and_discard_deletes(place: Place) -> None:
    place.hub.faults.rate = 200_000
    job = place.job()
    job.start()
    while not job.download.done:
        pass
    job.pause()
    job.join(SECONDS)
    assert job.download.state == "paused"
    [left] = downloads.unfinished()
    assert (left.state, left.key) == ("paused", job.download.key)
    again = place.job()
    again.start()
    while again.download.done <= left.done:
        pass
    assert downloads.unfinished()[0].state == "running"  # wanted again, and this process has its lock
    again.discard()
    again.join(SECONDS)
    assert not downloads.unfinished() and not place.files()


def test_a_model_in_parts_comes_whole_with_its_sidecar(place: Place) -> None:
    parts = {f"big/Q8_0/Big-Q8_0-0000{i}-of-00002.gguf": content(90_000, seed=i) for i in (1, 2)}
    for file, data in {**parts, "big/Q8_0/mtp-Big.gguf": b"side", "mmproj-F16.gguf": b"eyes"}.items():
        place.hub.put(REPO, file, data)
    items = {item.file: item for item in remote.listing(REPO).items}
    assert set(items) == {FILE, "big/Q8_0/Big-Q8_0-00001-of-00002.gguf"}
    big = items["big/Q8_0/Big-Q8_0-00001-of-00002.gguf"]
    assert (big.name.quant, big.size, len(big.parts)) == ("Q8_0", 180_004, 2)
    download = place.fetch(file=big.file)
    assert (download.state, download.total) == ("done", 180_004)
    folder = Path(download.path).parent
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        **{Path(file).name: data for file, data in parts.items()},
        "mtp-Big.gguf": b"side",
    }


def test_a_model_that_lacks_a_part_is_not_begun(place: Place) -> None:
    place.hub.put(REPO, "Big-Q8_0-00002-of-00002.gguf", b"half")
    with pytest.raises(HubError, match="lacks parts"):
        downloads.find_item(REPO, "Big-Q8_0-00002-of-00002.gguf")


def test_an_update_keeps_the_old_file_and_removal_frees_what_nobody_shows(place: Place) -> None:
    old = Path(place.fetch().path)
    place.hub.put(REPO, FILE, content(seed=9))
    new = Path(place.fetch().path)
    assert old.read_bytes() == content() and new.read_bytes() == content(seed=9)
    assert [found.path for found in cache.files(REPO)] == [new, old]
    assert cache.remove(old) == 300_000
    assert [found.path for found in cache.files(REPO)] == [new]
    assert cache.remove(new) == 300_000
    assert not place.files() and not (place.cache / FOLDER).exists()


def test_bytes_that_another_snapshot_shows_stay(place: Place) -> None:
    first = Path(place.fetch().path)
    place.hub.put(REPO, "README.md", b"a new commit")
    second = Path(place.fetch().path)
    assert first != second
    assert cache.remove(first) == 0
    assert second.read_bytes() == content()


def no_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.EPERM) -> None:
    def refuse(path: Path, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "symlink_to", refuse)


def test_a_file_system_without_links_holds_the_bytes_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch)
    place.hub.put(REPO, "mtp-Qwen3.5-4B.gguf", b"side")
    commit = f"{FOLDER}/snapshots/{place.hub.commit(REPO)}"
    path = Path(place.fetch().path)
    assert path.read_bytes() == content()
    assert place.files() == {f"{commit}/{FILE}", f"{commit}/mtp-Qwen3.5-4B.gguf", f"{FOLDER}/refs/main"}
    place.hub.requests.clear()
    assert place.fetch().state == "done" and path.read_bytes() == content()
    assert not [asked for _, asked, _ in place.hub.requests if "/resolve/" in asked]
    path.write_bytes(b"cut off")
    assert place.fetch().state == "done" and path.read_bytes() == content()
    assert cache.remove(path) == 300_000
    assert place.files() == {f"{commit}/mtp-Qwen3.5-4B.gguf", f"{FOLDER}/refs/main"}


def test_a_disk_too_full_for_a_link_takes_no_bytes_from_another_snapshot(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(place.fetch().path)
    place.hub.put(REPO, "README.md", b"a new commit")
    with monkeypatch.context() as full:
        no_links(full, errno.ENOSPC)
        download = place.fetch()
    assert download.state == "failed" and "is full. Make room" in download.message
    assert first.read_bytes() == content() and [found.path for found in cache.files(REPO)] == [first]
    second = Path(place.fetch().path)
    assert second != first and second.read_bytes() == first.read_bytes() == content()
