"""Which model answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from chatapp.commands import CommandError
from chatapp.download_line import DownloadLine
from chatapp.figures import percent
from chatapp.parts.base import ChatBase
from chatapp.paths import BUILT_IN, log_path, model_path
from chatapp.remote import address
from chatapp.remote.address import HERE, Address, AddressError, is_address
from chatapp.sanitize import clean_line
from runtime.protocol import BUILT_IN_MODEL

if TYPE_CHECKING:
    from chatapp.hub import Hub
    from runtime.hub.protocol import Download

HOW = (
    "Write an address after /server, such as http://host:8000. Servers of the settings have a name: a table "
    '[servers.NAME] with url = "http://host:8000/v1", and with key_env if they want a key.'
)


class ModelsPart(ChatBase):
    """Implements `commands.models`."""

    hub: Hub | None = None  # made when it is first needed

    async def open_model(self, path: str) -> None:
        if served := self._sibling(path):
            path = served
        beside = self.turns.opens_beside(path)
        self._show_opening(model_path(path))
        self.turns.open(path, chosen=True)
        if not beside:
            await self.turns.stop()  # after it, so that what waits is answered by the new model

    async def choose_model(self) -> bool:
        """Let the user choose among the models of the server; False if this machine answers."""
        model = self.turns.model
        if model is None or not is_address(model.path):
            return False
        from chatapp.picker import Choice, Picker

        now = address.parse(model.path).model
        choices = [Choice(name, name, "in use" if name == now else "") for name in model.siblings or (now,)]
        chosen = await self.app.push_screen_wait(Picker("Models of the server", choices))
        if chosen is not None and chosen != now:
            await self.open_model(chosen)
        return True

    async def open_server(self, word: str) -> None:
        from chatapp.picker import Choice, Picker

        servers = self._options.servers
        chosen: str | None = word
        if not word and not servers:
            raise CommandError(HOW)
        if not word:
            here = Choice(
                HERE, "this machine", address.label(self._local) if self._local else "no model was chosen yet"
            )
            choices = [here, *(Choice(name, name, url) for name, url in servers.items())]
            chosen = await self.app.push_screen_wait(Picker("Where the model is", choices))
        if chosen is None:
            return
        now = self._backend.model
        if chosen == HERE and now is not None and not is_address(now.path) and not self.turns.loading:
            self.say(f"{address.label(now.path)} of this machine is in use already: /model PATH opens another.")
            return
        try:
            path = self._local if chosen == HERE else str(address.read(chosen, servers))
        except AddressError as error:
            raise CommandError(str(error)) from error
        if path is None:
            raise CommandError("No model of this machine was opened yet: /model PATH opens one.")
        await self.open_model(path)

    async def choose_anew(self) -> None:
        """Find, fetch and open models."""
        from chatapp.wizard import Wizard

        opened = self.turns.model.path if self.turns.model is not None else None
        options = self._options
        wizard = Wizard(self._looked_after(), opened, options.model_folders, options.context_length, options.kv_type)
        chosen = await self.app.push_screen_wait(wizard)
        if chosen is not None and chosen != opened:
            await self.open_model(chosen)

    async def go_on_downloading(self) -> None:
        """What was being downloaded when qwenchat last ended goes on, if it did not end by the user's wish."""
        from chatapp.hub import HubError, has_unfinished

        if not await asyncio.to_thread(has_unfinished):
            return
        hub, options = self._looked_after(), self._options
        try:
            here = await hub.look(options.model_folders, options.context_length, options.kv_type)
            for left in here.downloads:
                if left.state == "waiting":
                    await hub.fetch(left.repo, left.file)
                    share = percent(left.done / max(left.total, 1))
                    self.say(f"The download of {clean_line(left.file)} goes on, from {share}.")
        except HubError as error:
            self.say(f"A download has not ended. {error}", "warning")

    def _looked_after(self) -> Hub:
        if self.hub is None:
            from chatapp.hub import Hub

            self.hub = Hub(log=log_path())
            self.hub.on_progress(self._downloading)
        return self.hub

    def _downloading(self, download: Download) -> None:
        assert self.hub is not None
        self.query_one(DownloadLine).show(self.hub.running)
        name = clean_line(download.file.rpartition("/")[2])
        if download.state == "failed":
            self.say(clean_line(download.message, 600), "error")
        elif download.state == "done":
            model = self.turns.model
            if (model is None or model.path == str(BUILT_IN_MODEL)) and not self.turns.loading:
                self.run_worker(self._guard(partial(self.open_model, download.path)), exit_on_error=False)
            else:
                self.say(f"{name} is here: /models opens it.")
        elif download.message:
            self._show_hint(download.message, 4.0)

    def _sibling(self, word: str) -> str | None:
        """The address of the model that the user means, if the server that answers now has it."""
        model = self.turns.model
        if model is None or not is_address(model.path) or is_address(word):
            return None
        found = [name for name in model.siblings if word in (name, address.short(name))]
        return str(Address(address.parse(model.path).server, found[0])) if found else None

    def model_chosen(self, path: str) -> None:
        # The built-in one lies elsewhere after another installation.
        kept = BUILT_IN if path == str(BUILT_IN_MODEL) else path

        async def keep() -> None:
            await self.remember({"model": kept})

        self.run_worker(self._guard(keep), exit_on_error=False)
