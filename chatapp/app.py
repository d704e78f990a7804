"""The composition root of the terminal chat."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.theme import Theme

from chatapp import keys, paths
from chatapp.backend import Backend
from chatapp.chat_screen import ChatScreen
from chatapp.options import ChatOptions
from chatapp.settings import Settings, Value
from chatapp.store import Store
from chatapp.terminal import Terminal
from themes import DEFAULT, OwnThemes, load_themes

LOOK_SECONDS = 1.0
"""Between two looks whether a theme of the user's has been written."""
_PATIENCE = 6.0
"""Seconds to leave in good order once the terminal is gone."""


class QwenChat(App[None]):
    """Give it a backend, which it closes at its end, and an open store, which it does not close.

    `keep` writes what the user has chosen into the settings; it may raise SettingsError.
    """

    TITLE = "qwenchat"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False  # the chat has its own, in its own look
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Leave", id="app.quit", priority=True, show=False),
    ]

    def __init__(
        self,
        backend: Backend,
        store: Store,
        settings: Settings,
        options: ChatOptions,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Mapping[str, Value]], object] = lambda changes: None,
    ) -> None:
        super().__init__()
        self._backend = backend
        self.themes: dict[str, Theme] = {}
        self._own_themes = OwnThemes(paths.themes_path())
        for theme in load_themes():
            self._know(theme)
        own, faults = self._own_themes.look()
        for theme in own:
            self._know(theme)
        options = replace(options, notices=(*options.notices, *faults))
        wanted = options.theme or settings.theme
        if wanted is not None and wanted not in self.available_themes:
            notice = f"There is no theme {wanted!r}: /theme shows those there are."
            options = replace(options, notices=(*options.notices, notice))
            wanted = None
        self.theme = wanted or DEFAULT
        self.settings = settings
        self.keymap: dict[str, str] = {}
        """The keys that the settings have changed."""
        self.chat = ChatScreen(backend, store, options, clock, keep)

    def get_driver_class(self) -> type[Driver]:
        usual = super().get_driver_class()
        return Terminal if usual is LinuxDriver else usual

    def _know(self, theme: Theme) -> None:
        self.themes[theme.name] = theme
        self.register_theme(theme)

    def _look_at_themes(self) -> None:
        """A theme of the user's that was written is worn as it is now."""
        own, faults = self._own_themes.look()
        for theme in own:
            self._know(theme)
            if theme.name == self.theme:
                self.mutate_reactive(QwenChat.theme)
        for fault in faults:
            self.chat.say(fault, "warning")

    def get_default_screen(self) -> Screen[Any]:
        return self.chat

    def on_mount(self) -> None:
        self.call_after_refresh(self.run_worker, _warm_up, thread=True, exit_on_error=False)
        if self.settings.reduced_motion:
            self.chat.call_after_refresh(self.chat.keep_still, True)
        if self.settings.keys:
            self.run_worker(self._map_keys(self.settings.keys), exit_on_error=False)
        self.set_interval(LOOK_SECONDS, self._look_at_themes)
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
            # What is here now stays until the end: a collection that walks through it stops the drawing for a while.
            self.call_after_refresh(gc.freeze)

    async def _map_keys(self, wanted: Mapping[str, object]) -> None:
        self.keymap, warnings = await asyncio.to_thread(keys.checked, wanted)
        self.set_keymap(self.keymap)
        await self.chat.opened.wait()
        for warning in warnings:
            self.chat.say(warning, "warning")

    def _end(self, number: int) -> None:
        """The terminal is put in order, and what is being written is kept, if the terminal still takes what it gets."""
        watchdog = threading.Timer(_PATIENCE, os._exit, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        self.chat.quit()

    async def on_unmount(self) -> None:
        if self.chat.hub is not None:
            await self.chat.hub.close()
        await self._backend.close()

    async def action_quit(self) -> None:
        self.chat.quit()

    def action_open_link(self, address: str) -> None:
        """Open a link of the model's text, where there is a desktop to show it; else copy its address."""
        desktop = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
        if urlsplit(address).scheme in ("http", "https", "mailto") and desktop:
            self.open_url(address)
        else:
            self.chat.copy(address)


def _warm_up() -> None:
    """Import what the first reply needs, beside the drawing."""
    importlib.import_module("chatapp.parse")
    importlib.import_module("chatapp.highlight")
