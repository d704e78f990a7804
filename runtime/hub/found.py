"""Models that are on this machine already, wherever other tools have put them; they are used in place."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import printable
from runtime.hub import cache, family, names, peek

_DEEPEST = 5  # folders below one that is searched
_MOST = 50_000  # entries of one search
_MODEL_LAYER = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Found:
    """A model: its first file, what it is called, whose folder it lies in, and the beginning of its metadata."""

    path: Path
    title: str
    source: str
    name: names.Name
    size: int  # bytes, of all parts
    metadata: dict[str, Any]
    repo: str = ""
    file: str = ""
    sidecar: Path | None = None
    problem: str = ""

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def mtp(self) -> bool:
        return bool(self.metadata.get(f"{self.architecture}.nextn_predict_layers"))


def everywhere(folders: Iterable[str] = ()) -> list[Found]:
    """The family's models, each once, whatever cannot be read left out."""
    found: dict[Path, Found] = {}
    for model in _all(folders):
        key = Path(os.path.realpath(model.path))
        if key not in found and model.architecture in family.ARCHITECTURES:
            found[key] = model
    return sorted(found.values(), key=lambda model: (bool(model.problem), model.title.lower(), model.size))


def _all(folders: Iterable[str]) -> Iterator[Found]:
    for repo in cache.repos():
        newest = ""
        for cached in cache.files(repo):
            newest = newest or cached.commit
            title = cached.path.name if cached.commit == newest else f"{cached.path.name} (older)"
            yield from _model(cached.path, "Hugging Face cache", title=title, repo=repo, file=cached.file)
    for source, folder in places(folders):
        for path in _files(folder):
            yield from _model(path, source)
    for path, title in _ollama():
        yield from _model(path, "Ollama", title=title)


def places(folders: Iterable[str] = ()) -> list[tuple[str, Path]]:
    """Folders with GGUF files, and whose they are: those of the user first."""
    home = Path.home()
    mac = sys.platform == "darwin"
    caches = home / "Library" / "Caches" if mac else Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    found = [("your folder", Path(os.path.expanduser(folder))) for folder in folders]  # noqa: PTH111 (raises nothing)
    with suppress(OSError, ValueError, KeyError, TypeError):
        settings = json.loads((home / ".lmstudio" / "settings.json").read_text())
        found.append(("LM Studio", Path(settings["downloadsFolder"])))
    found += [("LM Studio", home / ".lmstudio" / "models"), ("LM Studio", home / ".cache" / "lm-studio" / "models")]
    found.append(("llama.cpp", Path(os.environ.get("LLAMA_CACHE") or caches / "llama.cpp")))
    return [(source, folder) for source, folder in found if os.path.isdir(folder)]  # noqa: PTH112 (raises nothing)


def _files(folder: Path) -> Iterator[Path]:
    seen = 0
    for top, below, files in os.walk(folder):
        seen += len(files) + len(below)
        if seen > _MOST:
            return
        if len(Path(top).relative_to(folder).parts) >= _DEEPEST:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(top) / name for name in sorted(files) if name.lower().endswith(".gguf"))


def _model(path: Path, source: str, *, title: str = "", repo: str = "", file: str = "") -> Iterator[Found]:
    """The file as a model, if it is one, and the first of its parts."""
    name = names.parse(path.name)
    if name.kind != "model" or name.number != 1:
        return
    try:
        metadata = peek.read(path)
        parts = [path.with_name(part) for part in _parts(path.name, name)]
        missing = [part.name for part in parts if not part.is_file()]
        size = sum(part.stat().st_size for part in parts if part.is_file())
    except (OSError, peek.NotGGUFError):
        return
    sidecars = [] if path.name.startswith("sha256-") else cache.matching(path.parent, "mtp-*.gguf")
    problem = f"{', '.join(missing)} is missing" if missing else ""
    if not name.quant and not repo:
        name = names.parse(f"{title.replace(':', '-')}.gguf")
    title = printable(title or path.name)
    sidecar = sidecars[0] if len(sidecars) == 1 else None
    yield Found(path, title, source, name, size, metadata, repo, file, sidecar, problem)


def _parts(file: str, name: names.Name) -> list[str]:
    if name.count == 1:
        return [file]
    return [f"{name.stem}-{number:05}-of-{name.count:05}.gguf" for number in range(1, name.count + 1)]


def _ollama() -> Iterator[tuple[Path, str]]:
    """The blob of each model that Ollama has, with the name that it is run by."""
    home = Path.home() / ".ollama" / "models"
    for root in {Path(os.environ.get("OLLAMA_MODELS") or home), home, Path("/usr/share/ollama/.ollama/models")}:
        manifests = root / "manifests"
        for manifest in cache.matching(manifests, "*/*/*/*"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                layers = json.loads(manifest.read_text())["layers"]
                digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER)
                _, owner, name, tag = manifest.relative_to(manifests).parts
                blob = root / "blobs" / digest.replace(":", "-")
                if blob.is_file():
                    yield blob, f"{name}:{tag}" if owner == "library" else f"{owner}/{name}:{tag}"
