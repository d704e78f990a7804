"""Copying to where the user pastes from: the system's own clipboard, that of tmux, and the terminal's."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping

OSC_52_LIMIT = 74_994
"""Bytes that terminals take by their escape sequence; most drop a longer one."""
_SECONDS = 2.0


def commands(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> list[list[str]]:
    """The programs that take a copy here, each as its words."""
    found = []
    if platform == "darwin":
        found.append(["pbcopy"])
    elif environment.get("WAYLAND_DISPLAY") and shutil.which("wl-copy"):
        found.append(["wl-copy"])
    elif environment.get("DISPLAY") and shutil.which("xclip"):
        found.append(["xclip", "-selection", "clipboard"])
    elif environment.get("DISPLAY") and shutil.which("xsel"):
        found.append(["xsel", "--clipboard", "--input"])
    elif environment.get("WSL_DISTRO_NAME"):
        found.append(["clip.exe"])
    if environment.get("TMUX"):  # which keeps it, and hands it on to the terminal outside
        found.append(["tmux", "load-buffer", "-w", "-"])
    return [words for words in found if shutil.which(words[0])]


async def copy(text: str) -> bool:
    """Hand the text to these programs. Returns whether one has taken it."""
    return any(await asyncio.gather(*[_give(words, text) for words in commands()]))


async def _give(words: list[str], text: str) -> bool:
    # clip.exe reads UTF-16 only.
    data = text.encode("utf-16" if words[0] == "clip.exe" else "utf-8", "replace")
    try:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        await asyncio.wait_for(child.communicate(data), _SECONDS)
    except (TimeoutError, OSError):
        if child.returncode is None:
            child.kill()
        return False
    return child.returncode == 0
