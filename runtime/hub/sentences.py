"""What can go wrong with the hub, each in a sentence that says what to do."""

from __future__ import annotations

import errno
import os
import urllib.request
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, errors

from runtime.errors import UserError

_NO_SUCH_FILE = 404


class HubError(UserError):
    """The hub cannot be asked, or refuses; or a download cannot go on. One sentence for the user."""


class ForeignHostError(HubError):
    """Something would contact a host that the user has not named."""


def host(address: str) -> str:
    return urlsplit(address).hostname or address


def explain(error: Exception, repo: str = "", file: str = "") -> HubError:
    """The sentence for whatever huggingface_hub, httpx2 or the system raises."""
    if isinstance(error, HubError):
        return error
    if isinstance(error, UserError):
        return HubError(str(error))
    endpoint = host(constants.ENDPOINT)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(
            "HF_HUB_OFFLINE is set, so the hub is not asked; unset it to download. Models that are here open as always."
        )
    if isinstance(error, errors.GatedRepoError):
        return _gated(repo)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return HubError(f"{repo} has no file {file}: it was renamed or removed. Choose another from its list.")
    if isinstance(error, errors.RepositoryNotFoundError | errors.DisabledRepoError | errors.HFValidationError):
        return HubError(
            f"There is no repository {repo!r} on {endpoint}, or it is private. Check its name, or log in with "
            "`hf auth login` if it is yours."
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _status(error.response, repo, file)
    if isinstance(error, httpx2.HTTPStatusError):
        return _status(error.response, repo, file)
    if isinstance(error, httpx2.HTTPError):
        return _network(error, endpoint)
    if isinstance(error, OSError) and error.errno is not None:
        return disk(error)
    return HubError(
        f"{endpoint} does not answer as a hub does ({type(error).__name__}); if HF_ENDPOINT is set, check it."
    )


def disk(error: OSError) -> HubError:
    """For what a file system refuses."""
    folder = constants.HF_HUB_CACHE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"The disk that holds {folder} is full. Make room, for instance with `qwenchat models rm`, and resume: "
            "what has arrived is kept."
        )
    if error.errno == errno.EFBIG:
        return HubError(f"The file system of {folder} does not take files this large; set HF_HOME to another disk.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HubError(f"{folder} cannot be written; set HF_HOME to a folder of yours.")
    return HubError(f"{folder} cannot be used: {os.strerror(error.errno or 0)}.")


def _gated(repo: str) -> HubError:
    return HubError(
        f"{repo} is gated: accept its terms at {constants.ENDPOINT}/{repo}, log in with `hf auth login` (or set "
        "HF_TOKEN), and try again."
    )


def _status(response: httpx2.Response, repo: str, file: str) -> HubError:
    status, name = response.status_code, host(str(response.url))
    code = response.headers.get("X-Error-Code")
    if code == "GatedRepo" or (status == 403 and "gated" in response.headers.get("X-Error-Message", "").lower()):
        return _gated(repo)
    if status == 401:
        return HubError(f"{name} does not accept the token that is saved: log in again with `hf auth login`.")
    if status == 403:
        return HubError(f"{name} refuses {repo or 'this'} to you (403): your token may lack the right to read it.")
    if status == 407:
        return HubError(
            "The proxy wants a name and a password: write them in HTTPS_PROXY, http://name:password@host:port."
        )
    if status == 429:
        return HubError(
            f"{name} has had too many requests from here: wait some minutes, or log in with `hf auth login`."
        )
    if status == _NO_SUCH_FILE:
        what = f"{repo} has no file {file}" if file else f"There is no {repo} on {name}"
        return HubError(f"{what}: it was renamed or removed. Choose another from the list.")
    if status >= 500:
        return HubError(f"{name} has trouble of its own ({status}): try again later.")
    return HubError(f"{name} answers with the unexpected status {status}.")


def _network(error: httpx2.HTTPError, endpoint: str) -> HubError:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(urlsplit(constants.ENDPOINT).scheme) or proxies.get("all")
    bypassed = bool(urllib.request.proxy_bypass(endpoint))
    if isinstance(error, httpx2.ProxyError) or (proxy and not bypassed and isinstance(error, httpx2.ConnectError)):
        return HubError(
            f"The proxy {host(proxy or '')} cannot be used ({error}): check HTTPS_PROXY, or put {endpoint} in NO_PROXY."
        )
    if isinstance(error, httpx2.TimeoutException):
        return HubError(f"{endpoint} does not answer in time: check the network and try again.")
    if "certificate" in str(error).lower():
        return HubError(f"{endpoint} shows a certificate that is not trusted here; behind a proxy set SSL_CERT_FILE.")
    if isinstance(error, httpx2.TooManyRedirects | httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return HubError(f"{endpoint} does not answer as a hub does; check HF_ENDPOINT.")
    return HubError(f"{endpoint} cannot be reached: check the network and try again.")
