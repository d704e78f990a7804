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
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.theme import Theme

from chatapp import paths
from chatapp.backend import Backend
from chatapp.chat_screen import ChatScreen
from chatapp.options import ChatOptions
from chatapp.settings import Settings, Value
from chatapp.store import Store
from chatapp.terminal import Burst, Terminal
from themes import DEFAULT, OwnThemes, load_theme, load_themes

LOOK_SECONDS = 1.0
"""Between two looks whether a theme of the user's has been written."""
GARBAGE = 1_500, 6, 200
"""When to look for garbage, as `gc.set_threshold` takes it. A frame makes a thousand objects: a look at all that have
come since the start is rare, and a look at the young ones takes a small part of a frame."""
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
        self._themes: dict[str, Theme] = {}
        self._all_themes = False
        self._own_themes = OwnThemes(paths.themes_path())
        own, faults = self._own_themes.look()
        for theme in own:
            self._know(theme)
        wanted = options.theme or settings.theme or DEFAULT
        if not self._can_wear(wanted):
            faults = [*faults, f"There is no theme {wanted!r}: /theme shows those there are."]
            wanted = DEFAULT
            self._can_wear(wanted)
        options = replace(options, notices=(*options.notices, *faults))
        self.theme = wanted
        self.settings = settings
        self.keymap: dict[str, str] = {}
        """The keys that the settings have changed."""
        self.chat = ChatScreen(backend, store, options, clock, keep)

    def get_driver_class(self) -> type[Driver]:
        usual = super().get_driver_class()
        return Terminal if usual is LinuxDriver else usual

    @property
    def themes(self) -> dict[str, Theme]:
        """Those of the program and the user's own, by name. Slow the first time: it reads them all but the one worn."""
        if not self._all_themes:
            self._all_themes = True
            for theme in load_themes():
                if theme.name not in self._themes:
                    self._know(theme)
        return self._themes

    def _can_wear(self, name: str) -> bool:
        """Whether there is such a theme, which is read if need be."""
        if name not in self.available_themes and (shipped := load_theme(name)) is not None:
            self._know(shipped)
        return name in self.available_themes

    def _know(self, theme: Theme) -> None:
        self._themes[theme.name] = theme
        self.register_theme(theme)

    def refresh_css(self, animate: bool = True) -> None:
        """Before there is anything to show, only the colours are set: the styles are then read once, with them."""
        if self.screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

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

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, Burst):
            await super().on_event(event)
        elif self.screen is self.chat and self.chat.transcript.has_focus:  # there letters are commands
            await super().on_event(events.Paste(event.text))
        else:
            for key in event.keys:
                key.set_sender(self)
                await super().on_event(key)

    def on_mount(self) -> None:
        warm_up = partial(_warm_up, not self.is_headless)
        self.call_after_refresh(self.run_worker, warm_up, thread=True, exit_on_error=False)
        if self.settings.reduced_motion:
            self.chat.call_after_refresh(self.chat.keep_still, True)
        if self.settings.keys:
            self.run_worker(self._map_keys(self.settings.keys), exit_on_error=False)
        self.set_interval(LOOK_SECONDS, self._look_at_themes)
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
            self.call_after_refresh(_collect_from_here)

    async def _map_keys(self, wanted: Mapping[str, object]) -> None:
        from chatapp import keys

        self.keymap, warnings = await asyncio.to_thread(keys.checked, wanted)
        self.set_keymap(self.keymap)
        for widget in self.chat.query("FirstKeys, JumpToEnd, ReadingKeys"):
            widget.refresh(layout=True)
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
        try:
            scheme = urlsplit(address).scheme
        except ValueError:  # brackets round what is no IPv6 address: nothing could open it
            scheme = ""
        if scheme in ("http", "https", "mailto") and desktop:
            self.open_url(address)
        else:
            self.chat.copy(address)


def _collect_from_here() -> None:
    """What is here now stays until the end: a collection that walks through it stops the drawing for a while."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    gc.enable()


def _warm_up(stays: bool) -> None:
    """Import what the first reply and the first look around need, beside the drawing; all of that `stays` too."""
    for name in (
        "history",
        "parse",
        "highlight",
        "titles",
        "sidebar",
        "lookup",
        "picker",
        "form",
        "search_bar",
        "search",
    ):
        importlib.import_module(f"chatapp.{name}")
    if stays:
        gc.freeze()
