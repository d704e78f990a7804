"""How the chat looks and behaves, and leaving it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType

from chatapp import choices, paths, settings
from chatapp.commands import COMMANDS, CommandError
from chatapp.figures import duration
from chatapp.parts.base import ChatBase
from chatapp.sanitize import clean_line
from chatapp.settings import FIELDS, Value
from chatapp.store import StoreError
from themes import DEFAULT, remark

if TYPE_CHECKING:
    from textual.theme import Theme

    from chatapp.form import Entry

LEAVE_SECONDS = 3.0
"""How long leaving waits for a reply to stop."""


class ComfortPart(ChatBase):
    """Implements `commands.comfort`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "palette", "All commands in a list", id="chat.palette", priority=True, show=False),
    ]

    _replying_since: float | None = None

    def action_palette(self) -> None:
        self.run_worker(self._palette(), group="palette", exclusive=True, exit_on_error=False)

    async def _palette(self) -> None:
        """Every command; one that needs more is written into the composer, to be gone on with."""
        from chatapp.picker import Choice, Picker

        listed = [Choice(name, known.usage, known.about) for name, known in COMMANDS.items()]
        name = await self.app.push_screen_wait(Picker("Commands", listed))
        if name not in COMMANDS:  # nothing was chosen
            return
        if COMMANDS[name].alone:
            self._run_named(name)
        else:
            self.composer.put(f"/{name} ")
            self.composer.focus()

    # Themes.

    async def set_theme(self, name: str) -> None:
        """It is remembered. Without a name: from a list, in which each is shown at once."""
        from chatapp.picker import Choice, Picker

        before = self.app.theme
        if not name:
            listed = [
                Choice(each, each, _about(theme, in_use=each == before))
                for each, theme in sorted(self._themes().items(), key=lambda item: (not item[1].dark, item[0]))
            ]
            picker = Picker("Themes", listed, preview=self._wear, chosen=before)
            name = await self.app.push_screen_wait(picker) or before
        if not self._is_theme(name):
            raise CommandError(f"There is no theme {clean_line(name, 40)!r}. /theme shows those there are.")
        self._wear(name)
        if name != before:
            await self.remember({"theme": name})

    def _themes(self) -> dict[str, Theme]:
        return getattr(self.app, "themes", {})

    def _is_theme(self, name: str) -> bool:
        return name in self._themes() or name in self.app.available_themes

    def _wear(self, name: str) -> None:
        self.app.theme = name

    # Settings.

    async def show_settings(self) -> None:
        from chatapp.form import Form

        self.app.push_screen(Form("Settings, for all conversations", self._entries, self._change_setting))

    def _entries(self) -> list[Entry]:
        from chatapp.form import Entry

        saved, group, entries = self.comfort, "", []
        for name, field in FIELDS.items():
            group = field.metadata["group"] or group
            value: Value = getattr(saved, name)
            entries.append(Entry(name, value, "yours" if value != field.default else "", group, self._more(name)))
        return entries

    def _more(self, name: str) -> str:
        """What concerns one setting only."""
        own = self.turns.choices.here.get(name)
        if own is not None:
            return f"This conversation has its own: {own}."
        if name == "theme":
            return f"There are {', '.join(sorted(self._themes()))}."
        return ""

    async def _change_setting(self, name: str, value: Value) -> None:
        """Kept in the file and, where it can be, felt at once. Raises SettingsError."""
        if value is None:
            value = cast(Value, FIELDS[name].default)
        if (
            name == "theme"
            and value is not None
            and value not in self._themes()
            and value not in self.app.available_themes
        ):
            raise settings.SettingsError(f"There is no theme {clean_line(str(value), 40)!r}.")
        await self.remember({name: value})
        if name in choices.NAMES:
            self.turns.choices.prefer(name, None if value == "auto" else value)
        elif FIELDS[name].metadata["when"] == "load":
            self.turns.reconfigure({name: value})
        elif name == "theme":
            self._wear(str(value or DEFAULT))
        elif name == "system":
            self._session.prefer_system(str(value or ""))
        elif name == "reduced_motion":
            self.keep_still(bool(value))
        self.turns_changed()

    def keep_still(self, still: bool) -> None:
        """Nothing moves by itself, or again it does."""
        self.app.animation_level = "none" if still else "full"
        self.composer.cursor_blink = not still

    # The end of a long reply, told outside the window.

    def turns_changed(self) -> None:
        super().turns_changed()
        if self.turns.generating:
            self._replying_since = self._replying_since if self._replying_since is not None else self._clock()
        elif self._replying_since is not None:
            seconds, self._replying_since = self._clock() - self._replying_since, None
            self._tell_the_end(seconds)

    def _tell_the_end(self, seconds: float) -> None:
        from chatapp import notify

        wanted = self.comfort
        looked_at = self.app.app_focus and wanted.notify_when == "away"
        if wanted.notify == "off" or looked_at or seconds < wanted.notify_seconds or not self.is_mounted:
            return
        if wanted.notify == "bell":
            self.app.bell()
        else:
            notify.desktop(self.app, "qwenchat", f"The reply is there, after {duration(seconds)}.")

    # Moves as in vim.

    def move(self, key: str) -> bool:
        """Scroll, if the user wants such keys and is not writing; whether that was it."""
        if not self.comfort.vim_moves or self.composer.has_focus:
            return False
        transcript = self.transcript
        half = max(transcript.size.height // 2, 1)
        match key:
            case "j":
                transcript.scroll_relative(y=1, animate=False)
            case "k":
                transcript.scroll_relative(y=-1, animate=False)
            case "d":
                transcript.scroll_relative(y=half, animate=False)
            case "u":
                transcript.scroll_relative(y=-half, animate=False)
            case "g":
                transcript.scroll_home(animate=False)
            case "G" | "upper_g":
                transcript.follow()
            case "i":
                self.composer.focus()
            case _:
                return False
        return True

    # Leaving.

    def quit(self) -> None:
        self.run_worker(self._leave(), exit_on_error=False)

    async def _leave(self) -> None:
        """What is being written is kept as far as it has come."""
        with contextlib.suppress(StoreError):
            await self._keeper.flush()
        self.turns.withdraw()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.turns.stop(), LEAVE_SECONDS)
        await self._session.save_late()
        self._session.close()
        self.app.exit()


def _about(theme: Theme, *, in_use: bool) -> str:
    """A theme as the list of them tells of it."""
    kind = "dark" if theme.dark else "light"
    return " · ".join(
        part for part in (kind, "in use" if in_use else "", remark(theme.name, paths.themes_path())) if part
    )
