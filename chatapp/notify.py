"""Notices that leave the window: escape sequences that terminals pass on to the desktop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from textual.app import App

from chatapp.sanitize import clean_line


def desktop(app: App[Any], title: str, body: str) -> None:
    """Ask the terminal to notify; one that does not know how shows nothing."""
    if app._driver is not None:
        app._driver.write(sequence(title, body, os.environ))


def sequence(title: str, body: str, environment: Mapping[str, str]) -> str:
    """OSC 777 for the terminals that know only that, else OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal).

    Inside tmux it is wrapped, so that tmux hands it on where `allow-passthrough` is set.
    """
    title, body = (clean_line(text, 200).replace(";", ",") for text in (title, body))
    if environment.get("TERM", "").startswith(("rxvt", "foot")):
        told = f"\x1b]777;notify;{title};{body}\x1b\\"
    else:
        told = f"\x1b]9;{title}: {body}\x1b\\"
    if "TMUX" in environment:
        told = "\x1bPtmux;" + told.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return told
