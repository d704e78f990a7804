"""Models found in other tools' folders, listed from a hub, judged, and taken away."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_fixtures import FILE, REPO, Place, place
from huggingface_hub import constants

from runtime.errors import UserError
from runtime.hub import cache, downloads, family, found, models, names, peek, remote, shell, transfer
from runtime.hub.protocol import Machine
from runtime.hub.sentences import HubError, explain
from runtime.models.config import ModelConfig
from runtime.models.loading import check_model

__all__ = ["place"]

GOLDENS = Path(__file__).parents[1] / "goldens"
DENSE, MOE = GOLDENS / "tiny-dense.gguf", GOLDENS / "tiny-moe.gguf"
HERE = Machine("a processor", 4, 16 * 10**9, 12 * 10**9, 10**12, "", (), 40e9)


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> models.Surroundings:
    """A machine that does not change, and need not be measured."""
    monkeypatch.setattr(models.Surroundings, "machine", lambda self, *, anew=False: HERE)
    return models.Surroundings()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without anything in it."""
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize(
    ("path", "quant", "kind", "number", "count"),
    [
        ("Qwen3.5-4B-Q4_K_M.gguf", "Q4_K_M", "model", 1, 1),
        ("Qwen3.5-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", "model", 1, 1),
        ("Qwen_Qwen3.5-9B-IQ4_XS.gguf", "IQ4_XS", "model", 1, 1),
        ("Qwen3.5-4B-Q4_0_4_4.gguf", "Q4_0_4_4", "model", 1, 1),
        ("Q8_0/Qwen3.5-122B-A10B-Q8_0-00002-of-00003.gguf", "Q8_0", "model", 2, 3),
        ("BF16/Qwen3.5-27B-00001-of-00002.gguf", "BF16", "model", 1, 2),
        ("qwen3.5-4b-q5_k_m.gguf", "Q5_K_M", "model", 1, 1),
        ("Qwen3.6-35B-A3B-MXFP4_MOE.gguf", "MXFP4_MOE", "model", 1, 1),
        ("mmproj-F16.gguf", "F16", "other", 1, 1),
        ("mtp-Qwen3.5-4B-Q8_0.gguf", "Q8_0", "sidecar", 1, 1),
        ("dflash-draft.gguf", "", "other", 1, 1),
        ("model.gguf", "", "model", 1, 1),
    ],
)
def test_names(path: str, quant: str, kind: str, number: int, count: int) -> None:
    name = names.parse(path)
    assert (name.quant, name.kind, name.number, name.count) == (quant, kind, number, count)


def test_types_of_other_engines_are_known_by_name() -> None:
    for quant in ("IQ4_K", "IQ4_KS", "IQ4_KSS", "IQ2_KL", "IQ3_KT", "Q4_K_R4", "IQ4_K_R4", "IQ4_XS_R8", "Q8_0_R8",
                  "Q4_K_S_R4", "BF16_R16", "Q6_0", "Q8_KV", "IQ1_BN", "NVFP4", "Q4_0_4_4"):  # fmt: skip
        assert names.parse(f"Qwen3.5-4B-{quant}.gguf").quant == quant
        assert not names.readable(quant) and "other engines" in names.about(quant)
    for quant in ("Q4_K_S", "Q4_K_M", "Q3_K_XL", "Q2_K", "Q2_K_S", "Q6_K", "UD-Q4_K_XL", "UD-IQ2_XXS", "IQ4_XS",
                  "IQ4_NL", "IQ3_M", "IQ1_S", "Q4_0", "Q5_1", "Q8_0", "TQ1_0", "MXFP4_MOE", "BF16", "F32"):  # fmt: skip
        assert names.parse(f"Qwen3.5-4B-{quant}.gguf").quant == quant
        assert names.readable(quant)
    assert names.readable("")


def test_every_usual_quantisation_is_explained() -> None:
    for quant in ("F32", "BF16", "F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_NL", "Q3_K_L", "IQ2_XXS", "Q2_K"):
        assert names.about(quant)
    assert names.about("UD-Q4_K_XL").startswith(names.about("Q4_K_XL"))
    assert names.about("") == ""


@pytest.mark.parametrize("path", [DENSE, MOE], ids=lambda path: path.stem)
def test_the_beginning_of_a_file_tells_its_shape(path: Path) -> None:
    from runtime.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        assert ModelConfig.from_metadata(peek.read(path)) == ModelConfig.from_metadata(file.metadata)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"<html>" * 9, b"GGUF" + b"\x01\0\0\0" + bytes(16)])
def test_what_does_not_begin_as_a_model(data: bytes) -> None:
    with pytest.raises(peek.NotGGUFError):
        peek.beginning(data)


def test_a_beginning_that_lies_ends_where_the_bytes_do() -> None:
    data = DENSE.read_bytes()
    whole = peek.beginning(data)
    for length in range(24, 4000, 7):
        cut = peek.beginning(data[:length])
        assert cut == {key: whole[key] for key in list(whole)[: len(cut)]}
        damaged = data[:length] + b"\xff" * 64
        assert len(peek.beginning(damaged)) <= len(whole)


def test_known_shapes_are_the_family_s() -> None:
    """FACTS: state per conversation of the 4B 50.3 MiB, of the 35B-A3B 62.8 MiB, without the windows' share."""
    for name, state in (("unsloth/Qwen3.5-4B-MTP-GGUF", 48.0), ("ggml-org/Qwen3.6-35B-A3B-GGUF", 60.0)):
        config = family.known_config(name, mtp=True)
        assert config is not None
        deltas = config.layers - config.attention_layers
        assert deltas * config.delta.value_heads * 128 * 128 * 4 == state * 2**20
    assert family.known_config("unsloth/Qwen3-Next-80B-A3B-GGUF", mtp=False) is None
    assert family.known_config("maker/Qwen3.5-40B", mtp=False) is None
    assert all(
        family.known_config(offer.repo, offer.mtp) and offer.model in family.QUALITY for offer in family.CATALOGUE
    )


def test_models_of_other_tools_are_found_and_used_in_place(
    place: Place, home: Path, around: models.Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(source: Path, *at: str | Path) -> Path:
        path = Path(home, *at)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
        return path

    studio = put(DENSE, ".lmstudio/models/maker/Qwen3.5-4B-GGUF/Qwen3.5-4B-Q8_0.gguf")
    put(DENSE, ".lmstudio/models/maker/Qwen3.5-4B-GGUF/mmproj-F16.gguf")
    sidecar = put(DENSE, ".lmstudio/models/maker/Qwen3.5-4B-GGUF/mtp-Qwen3.5-4B.gguf")
    llama = put(
        MOE, "Library/Caches" if sys.platform == "darwin" else ".cache", "llama.cpp", "maker_Qwen3.5-Q4_K_M.gguf"
    )
    digest = hashlib.sha256(DENSE.read_bytes()).hexdigest()
    ollama = put(DENSE, f".ollama/models/blobs/sha256-{digest}")
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/qwen3.5/4b-q4_K_M"
    manifest.parent.mkdir(parents=True)
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1}]
    manifest.write_text(json.dumps({"layers": layers}))
    given = put(DENSE, "my models/deep/er/mine.gguf")
    put(GOLDENS.parents[1] / "README.md", "my models/not a model.gguf")
    split = [put(DENSE, f"my models/Big-Q4_0-0000{i}-of-00003.gguf") for i in (1, 3)]
    place.hub.put(REPO, FILE, DENSE.read_bytes())
    cached = place.fetch().path

    seen = {model.path: model for model in models.local(around, HERE, [str(home / "my models"), str(home / "none")])}
    assert {path: model.source for path, model in seen.items()} == {
        str(studio): "LM Studio",
        str(llama): "llama.cpp",
        str(ollama): "Ollama",
        str(given): "your folder",
        str(split[0]): "your folder",
        cached: "Hugging Face cache",
    }
    assert seen[str(ollama)].name == "qwen3.5:4b-q4_K_M" and seen[str(ollama)].quant == "Q4_K_M"
    assert seen[str(studio)].sidecar == str(sidecar)
    assert seen[str(split[0])].problem == "Big-Q4_0-00002-of-00003.gguf is missing"
    assert (seen[cached].repo, seen[cached].file) == (REPO, FILE)
    for path, model in seen.items():
        if not model.problem:
            check_model(path)  # what is shown opens where it is
            assert model.fit is not None and model.fit.place == "cpu"


def close(patch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Folders may not be entered from now on, as others' homes may not be: not even by root, who may run the tests."""

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and not {*folders}.isdisjoint(Path(os.fsdecode(path)).parents):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return real(path, *args, **kwargs)

        return guarded

    for name in ("stat", "lstat", "scandir", "listdir"):
        patch.setattr(os, name, refusing(getattr(os, name)))


@pytest.mark.parametrize("cache_too", [False, True])
def test_folders_that_may_not_be_entered_are_left_out(
    place: Place, home: Path, around: models.Surroundings, monkeypatch: pytest.MonkeyPatch, cache_too: bool
) -> None:
    mine, theirs, ours = home / "mine", home / "theirs", home / "cache"
    for folder in (mine, theirs / "models" / "manifests", ours / "hub", home / ".lmstudio"):
        folder.mkdir(parents=True)
    shutil.copy(DENSE, mine / "mine.gguf")
    place.hub.put(REPO, FILE, DENSE.read_bytes())
    cached = place.fetch().path
    repo = place.cache.rename(ours / "hub") / "models--aa--first"
    (repo / "snapshots").mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(ours / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(theirs / "models"))
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(theirs / "models")}))

    close(monkeypatch, theirs, ours if cache_too else repo)
    seen = models.local(around, HERE, [str(theirs / "models"), str(mine)])
    others = [] if cache_too else [cached.replace(str(place.cache), str(ours / "hub"))]
    assert {model.path for model in seen} == {str(mine / "mine.gguf"), *others}
    assert downloads.unfinished() == []
    assert transfer.free(ours / "hub") > 0


def test_a_folder_that_does_not_end_is_left(home: Path) -> None:
    (home / "ring").symlink_to(home, target_is_directory=True)
    assert found.everywhere([str(home)]) == []


def test_the_files_of_a_repository_are_judged_before_they_are_fetched(
    place: Place, around: models.Surroundings
) -> None:
    place.hub.put(REPO, FILE, MOE.read_bytes())
    place.hub.put(REPO, "Qwen3.5-4B-NVFP4.gguf", DENSE.read_bytes() * 9)
    fetched = place.fetch().path
    first, other = models.listed(remote.listing(REPO), around, HERE)
    assert (first.file, first.local, first.update, first.quant) == (FILE, fetched, False, "Q4_K_M")
    assert first.fit is not None and first.fit.place == "cpu" and first.fit.tok_per_s
    assert "other engines" in other.problem
    place.hub.put(REPO, FILE, DENSE.read_bytes() + b"anew")
    changed = next(file for file in models.listed(remote.listing(REPO), around, HERE) if file.file == FILE)
    assert (changed.local, changed.update) == ("", True)
    [update] = models.updates(around, HERE)
    assert update.key == f"{REPO}/{FILE}"


def test_a_repository_of_another_family_is_refused_before_a_download(place: Place, around: models.Surroundings) -> None:
    data = DENSE.read_bytes().replace(b"qwen35", b"qwen99")
    place.hub.put(REPO, FILE, data)
    with pytest.raises(HubError, match="architecture qwen99; qwenchat runs qwen35"):
        models.listed(remote.listing(REPO), around, HERE)


def test_a_model_in_parts_is_here_when_all_parts_are(
    place: Place, around: models.Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (f"Big-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2))
    place.hub.put(REPO, first, DENSE.read_bytes())
    place.hub.put(REPO, second, b"two")
    path = place.fetch(file=first).path

    def here() -> tuple[str, bool]:
        listed = models.listed(remote.listing(REPO), around, HERE)
        return next((model.local, model.update) for model in listed if model.file == first)

    assert here() == (path, False)
    cache.remove(Path(path).with_name(second))  # as an interrupted download of another tool leaves it
    assert here() == ("", False)
    assert shell.run(["get", REPO, "Q8_0"]) == 0
    assert capsys.readouterr().out.strip() == path
    assert Path(path).with_name(second).read_bytes() == b"two"
    place.hub.put(REPO, second, b"another two")
    assert here() == ("", True)


def test_a_shape_that_cannot_be_run_is_said_as_it_is(place: Place, around: models.Surroundings) -> None:
    place.hub.put(REPO, FILE, DENSE.read_bytes().replace(b"qwen35.block_count", b"qwen35.block_COUNT"))
    with pytest.raises(UserError, match=r"lacks qwen35\.block_count") as caught:
        models.listed(remote.listing(REPO), around, HERE)
    assert str(explain(caught.value, REPO)) == str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rfilename": "../../../../evil.gguf"},
        {"rfilename": "/tmp/evil.gguf"},
        {"rfilename": "a\\b.gguf"},
        {"rfilename": "a\x1b]52;c;evil\x07.gguf"},
        {"lfs": {"size": 1, "sha256": "../../evil", "pointerSize": 1}},
        {"lfs": {"size": -1, "sha256": "0" * 64, "pointerSize": 1}},
    ],
    ids=["up", "absolute", "backslash", "escape", "hash", "size"],
)
def test_names_of_a_server_that_would_leave_the_cache_are_not_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    info = place.hub.info(REPO)
    siblings = info["siblings"]
    assert isinstance(siblings, list)
    siblings.append({**siblings[0], **changes})
    monkeypatch.setattr(place.hub, "info", lambda repo: info)
    assert [item.file for item in remote.listing(REPO).items] == [FILE]


@pytest.mark.parametrize("changes", [{"id": "../../evil"}, {"id": "a/.."}, {"sha": "../evil"}], ids=str)
def test_a_repository_that_is_called_otherwise_is_none(
    place: Place, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    info = place.hub.info(REPO) | changes
    monkeypatch.setattr(place.hub, "info", lambda repo: info)
    with pytest.raises(HubError, match="does not answer as a hub does"):
        remote.listing(REPO)


def test_no_model_of_a_full_disk_is_offered(place: Place, around: models.Surroundings) -> None:
    from dataclasses import replace

    place.hub.put(REPO, FILE, DENSE.read_bytes())
    [file] = models.listed(remote.listing(REPO), around, replace(HERE, disk_free=10**8))
    assert file.problem == "the disk has 0.1 GB free, which is too little"


def test_the_best_for_the_machine_comes_first_and_with_drafts_where_there_are(
    place: Place, around: models.Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"0.8B": 0.53e9, "2B": 1.28e9, "4B": 2.74e9, "9B": 5.68e9, "27B": 16.7e9, "35B-A3B": 22.1e9}
    listing = remote.listing

    def enlarged(repo: str) -> remote.Listing:
        """As the hub on loopback has it, but as large as files of that model are."""
        from dataclasses import replace

        real = listing(repo)
        offer = family.offer(repo)
        assert offer
        size = int(sizes[offer.model.partition("-")[2]])
        items = [replace(item, parts=(replace(item.parts[0], size=size),)) for item in real.items]
        return replace(real, items=tuple(items))

    monkeypatch.setattr(remote, "listing", enlarged)
    for offer in family.CATALOGUE:
        place.hub.put(offer.repo, f"{offer.model}-Q4_K_M.gguf", offer.repo.encode())
        place.hub.put(offer.repo, f"{offer.model}-Q8_0.gguf", b"8" + offer.repo.encode())
    best, *others = models.advised(around, HERE)
    # 40 GB/s read the 5 GB that a token of the 9B needs seven times a second; larger ones do not fit in 16 GB
    assert (best.repo, best.quant, best.mtp) == ("unsloth/Qwen3.5-9B-MTP-GGUF", "Q4_K_M", True)
    assert "Qwen3.6-35B-A3B" not in {file.name for file in others}
    place.hub.faults.api_status = 500
    with pytest.raises(HubError, match="trouble of its own"):
        models.advised(around, HERE)


def test_search_and_names_of_repositories(place: Place) -> None:
    assert [repo.repo for repo in models.searched("qwen3.5 4b")] == [REPO]
    assert models.searched("llama") == ()
    for named in (REPO, f"https://huggingface.co/{REPO}", f"https://huggingface.co/{REPO}/tree/main"):
        assert [repo.repo for repo in models.searched(named)] == [REPO]
    assert len(models.catalogue()) == len(family.CATALOGUE)


def test_the_shell_lists_gets_and_removes(
    place: Place, home: Path, around: models.Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    place.hub.put(REPO, FILE, DENSE.read_bytes())
    place.hub.put(REPO, "Qwen3.5-4B-Q8_0.gguf", MOE.read_bytes())
    assert shell.run(["list"]) == 0
    assert "no models here yet" in capsys.readouterr().err
    assert shell.run(["get", REPO, "q8_0"]) == 0
    path = capsys.readouterr().out.strip()
    assert Path(path).read_bytes() == MOE.read_bytes()
    assert shell.run(["get", REPO]) == 0
    assert Path(capsys.readouterr().out.strip()).name == FILE
    assert shell.run(["show", REPO]) == 0
    shown = capsys.readouterr().out
    assert "here" in shown and "fits: 0." in shown and "the usual choice" in shown
    assert shell.run(["list", "--json"]) == 0
    assert {each["file"] for each in json.loads(capsys.readouterr().out)} == {FILE, "Qwen3.5-4B-Q8_0.gguf"}
    assert shell.run(["rm", "--yes", path]) == 0
    assert not Path(path).exists()
    assert shell.run(["rm", "--yes", path]) == 1
    assert "Nothing here is called" in capsys.readouterr().err
    assert shell.run(["get", REPO, "Q2_K"]) == 1
    assert "it has Q4_K_M, Q8_0" in capsys.readouterr().err
    assert shell.run(["get", "maker/none"]) == 1
    assert "There is no repository" in capsys.readouterr().err


def test_what_lies_elsewhere_is_not_deleted(place: Place, home: Path) -> None:
    path = home / ".lmstudio/models/a/b/Qwen3.5-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(DENSE, path)
    with pytest.raises(HubError, match="deletes only what lies there"):
        models.remove(str(path))
    assert path.exists() and not downloads.unfinished()
