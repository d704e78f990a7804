"""Where qwenchat keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from chatapp.remote.address import is_address
from runtime.protocol import BUILT_IN_MODEL

_APP = "qwenchat"

BUILT_IN = "built-in"
"""What users write for the model that comes with the package."""


def expanded(path: str | Path) -> Path:
    """With the home that `~` or `~user` stands for; that of nobody stays as it is written."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def absolute(path: Path) -> Path:
    """From the root on; as it is written where the folder that the program was started in is gone."""
    try:
        return path.absolute()
    except OSError:
        return path


def _home() -> Path | None:
    """The one folder for everything, if the environment names it."""
    home = os.environ.get("QWENCHAT_HOME")
    return absolute(expanded(home)) if home else None


def database_path() -> Path:
    return (_home() or platformdirs.user_data_path(_APP, appauthor=False)) / "conversations.db"


def snapshots_path() -> Path:
    """The folder in which the states of conversations outlive the worker."""
    return database_path().with_name("snapshots")


def settings_path() -> Path:
    return (_home() or platformdirs.user_config_path(_APP, appauthor=False)) / "settings.toml"


def themes_path() -> Path:
    """The folder of the user's own themes."""
    return settings_path().with_name("themes")


def log_path() -> Path:
    """What the worker writes to its stderr ends here."""
    return (_home() or platformdirs.user_log_path(_APP, appauthor=False)) / "worker.log"


def model_path(word: str) -> str:
    """The absolute path of the model file that a user names; the address of a served model as it is."""
    if is_address(word):
        return word
    if word == BUILT_IN and not Path(word).exists():
        return str(BUILT_IN_MODEL)
    return str(absolute(expanded(word)))


def built_in_model() -> str | None:
    """The path of the model that comes with the package; None where the package lacks it."""
    return str(BUILT_IN_MODEL) if BUILT_IN_MODEL.is_file() else None
