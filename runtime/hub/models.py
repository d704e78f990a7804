"""What the chat shows of models, here and on the hub, each with its verdict for this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs

from runtime import fit, machine
from runtime.cores import default_threads
from runtime.errors import UserError
from runtime.hub import cache, family, found, names, peek, remote, transfer
from runtime.hub.cache import Cached
from runtime.hub.protocol import Fit, LocalModel, Machine, RemoteModel, Repo
from runtime.hub.remote import HubFile, Item, Listing
from runtime.hub.sentences import HubError, explain
from runtime.models.config import ModelConfig

_AT_ONCE = 8  # requests
_READABLE_SPEED = 6.0  # tokens per second; less than this is slower than one reads
# Of the same model the first of these that there is, if it fits.
USUAL = ("UD-Q4_K_XL", "UD-Q4_K_M", "Q4_K_M", "Q4_K_S", "IQ4_XS", "Q4_0")


class Surroundings:
    """The machine and what the user chose of context and KV, against which every model is judged."""

    def __init__(self) -> None:
        self.context: int | None = None
        self.kv_type = "auto"
        self._bandwidth: float | None = None

    def machine(self, *, anew: bool = False) -> Machine:
        if self._bandwidth is None or anew:
            self._bandwidth = machine.bandwidth(platformdirs.user_cache_path("qwenchat"), anew=anew)
        total, available = machine.memory()
        return Machine(
            cpu=machine.cpu(),
            cores=default_threads(),
            memory=total,
            available=available,
            disk_free=transfer.free(cache.root()),
            cache=str(cache.root()),
            gpus=machine.gpus(),
            bandwidth=self._bandwidth,
        )

    def judge(self, config: ModelConfig, size: int, here: Machine) -> Fit:
        return fit.verdict(config, size, here, self.context, self.kv_type)


def local(around: Surroundings, here: Machine, folders: Iterable[str] = ()) -> tuple[LocalModel, ...]:
    """The family's models that are on this machine."""
    return tuple(_local(model, around, here) for model in found.everywhere(folders))


def _local(model: found.Found, around: Surroundings, here: Machine) -> LocalModel:
    verdict, problem = None, model.problem
    try:
        size = model.size + (model.sidecar.stat().st_size if model.sidecar and not model.mtp else 0)
        verdict = around.judge(ModelConfig.from_metadata(model.metadata), size, here)
    except (UserError, OSError) as error:
        problem = problem or str(error)
    if not names.readable(model.name.quant):
        problem = problem or f"{model.name.quant} is a format for other engines"
    return LocalModel(
        path=str(model.path),
        name=model.title,
        source=model.source,
        repo=model.repo,
        file=model.file,
        quant=model.name.quant,
        about=names.about(model.name.quant),
        bytes=model.size,
        parts=model.name.count,
        mtp=model.mtp,
        sidecar=str(model.sidecar or ""),
        fit=verdict,
        problem=problem,
    )


def listed(found_: Listing, around: Surroundings, here: Machine) -> tuple[RemoteModel, ...]:
    """The models of a repository, the smallest first; none if they are not of the family.

    Their shape is read from the beginning of one of them, or if that fails taken from the repository's name.
    """
    items = [item for item in found_.items if not item.missing]
    if not items:
        return ()
    offer = family.offer(found_.repo)
    try:
        metadata = remote.beginning(found_.repo, found_.commit, items[0].parts[0].path)
    except peek.NotGGUFError:
        raise HubError(f"{items[0].file} of {found_.repo} is no GGUF file.") from None
    except Exception as error:
        config = family.known_config(found_.repo, bool(offer and offer.mtp))
        if config is None or not found_.gated:
            raise explain(error, found_.repo, items[0].file) from error
    else:
        architecture = str(metadata.get("general.architecture", ""))
        if architecture not in family.ARCHITECTURES:
            raise HubError(
                f"{found_.repo} holds models of the architecture {architecture[:40] or 'unknown'}; qwenchat runs "
                f"{' and '.join(family.ARCHITECTURES)} (Qwen3.5 and 3.6)."
            )
        config = ModelConfig.from_metadata(metadata)
    mtp = bool(config.mtp_layers)
    return tuple(
        _remote(item, mtp or bool(item.sidecars), around.judge(config, item.size, here), here) for item in items
    )


def _remote(item: Item, mtp: bool, verdict: Fit, here: Machine) -> RemoteModel:
    local_path, update = _here(item)
    problem = ""
    if not names.readable(item.name.quant):
        problem = f"{item.name.quant} is a format for other engines"
    elif not local_path and item.size + transfer.RESERVE > here.disk_free:
        problem = f"the disk has {here.disk_free / 1e9:.1f} GB free, which is too little"
    return RemoteModel(
        repo=item.repo,
        file=item.file,
        name=item.name.stem,
        quant=item.name.quant,
        about=names.about(item.name.quant),
        bytes=item.size,
        parts=item.name.count,
        mtp=mtp,
        sidecars=tuple(file.path for file in item.sidecars),
        local=local_path,
        update=update,
        fit=verdict,
        problem=problem,
    )


def _here(item: Item) -> tuple[str, bool]:
    """The path of the item in the cache, "" unless all its parts are there; and whether another version of it is."""
    snapshots: dict[str, dict[str, Cached]] = {}
    for cached in cache.files(item.repo):
        snapshots.setdefault(cached.commit, {})[cached.file] = cached
    update = False
    for files in snapshots.values():
        same = [_same(files[part.path], part) for part in item.parts if part.path in files]
        if same == [True] * len(item.parts):
            return str(files[item.file].path), False
        update = update or not all(same)
    return "", update


def _same(cached: Cached, file: HubFile) -> bool:
    """Whether it is what the hub has, by its size where there are no links to tell."""
    return cached.etag == file.etag or (not cached.etag and cached.path.stat().st_size == file.size)


def catalogue() -> tuple[Repo, ...]:
    return tuple(Repo(offer.repo, offer.model, offer.mtp, None, gated=False) for offer in family.CATALOGUE)


def searched(query: str) -> tuple[Repo, ...]:
    """What the hub finds, or the repository that the query names."""
    if named := remote.repo_of(query):
        offer = family.offer(named)
        return (Repo(named, offer.model if offer else "", bool(offer and offer.mtp), None, gated=False),)
    repos = []
    for info in remote.search(query):
        offer = family.offer(info.id)
        mtp = offer.mtp if offer else "-mtp-" in info.id.lower()
        repos.append(Repo(info.id, offer.model if offer else "", mtp, info.downloads, bool(info.gated)))
    return tuple(repos)


def advised(around: Surroundings, here: Machine) -> tuple[RemoteModel, ...]:
    """For each model of the catalogue that runs here its usual file, the best for this machine first."""
    rank = {model: number for number, model in enumerate(family.QUALITY)}
    chosen: dict[str, RemoteModel] = {}
    for offer, files in zip(
        family.CATALOGUE, _all([offer.repo for offer in family.CATALOGUE], around, here), strict=True
    ):
        usual = sorted((f for f in files if f.quant in USUAL and not f.problem), key=lambda f: USUAL.index(f.quant))
        if usual and offer.model not in chosen and usual[0].fit and usual[0].fit.place != "no":
            chosen[offer.model] = usual[0]

    def value(model: str) -> tuple[bool, int]:
        verdict = chosen[model].fit
        quick = bool(verdict and (verdict.tok_per_s is None or verdict.tok_per_s >= _READABLE_SPEED))
        return quick, rank[model] if quick else -rank[model]

    return tuple(chosen[model] for model in sorted(chosen, key=value, reverse=True))


def _all(repos: Iterable[str], around: Surroundings, here: Machine) -> list[tuple[RemoteModel, ...]]:
    """Of each repository; of one that cannot be listed nothing. Raises HubError if none can be."""
    failures: list[HubError] = []

    def look(repo: str) -> tuple[RemoteModel, ...]:
        try:
            listing = remote.listing(repo)
            offer = family.offer(repo)
            config = family.known_config(repo, bool(offer and offer.mtp))
            if config is None:
                return listed(listing, around, here)
            items = [item for item in listing.items if not item.missing]
            mtp = bool(offer and offer.mtp)
            return tuple(_remote(item, mtp, around.judge(config, item.size, here), here) for item in items)
        except Exception as error:
            failures.append(explain(error, repo))
            return ()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(look, repos))
    if failures and not any(answers):
        raise failures[0]
    return answers


def updates(around: Surroundings, here: Machine) -> tuple[RemoteModel, ...]:
    """Of the files in the cache those that the hub has changed since."""
    mine = {(model.repo, model.file) for model in found.everywhere() if model.repo}
    answers = _all(sorted({repo for repo, _ in mine}), around, here)
    return tuple(file for files in answers for file in files if file.update and (file.repo, file.file) in mine)


def remove(path: str, report: Callable[[str], None] = lambda path: None) -> int:
    """Delete a model of the cache, with its other parts and its sidecar. Returns the bytes freed. Raises HubError."""
    model = next((m for m in found.everywhere() if str(m.path) == path), None)
    if model is None or not model.repo:
        raise HubError(
            f"{path} is not in the Hugging Face cache: qwenchat deletes only what lies there. Delete it with the tool "
            "that it came from."
        )
    name = model.name
    parts = [model.path]
    if name.count > 1:
        numbers = range(1, name.count + 1)
        parts = [model.path.with_name(f"{name.stem}-{number:05}-of-{name.count:05}.gguf") for number in numbers]
    if model.sidecar and not _others(model.path.parent, parts):
        parts.append(model.sidecar)
    freed = 0
    try:
        for part in parts:
            if part.is_symlink() or part.exists():
                report(str(part))
                freed += cache.remove(part)
    except (OSError, ValueError) as error:
        raise HubError(f"{path} cannot be deleted: {error}.") from error
    return freed


def _others(folder: Path, parts: list[Path]) -> bool:
    """Whether another model lies there, which may want the sidecar."""
    return any(p not in parts and names.parse(p.name).kind == "model" for p in folder.glob("*.gguf"))
