"""Which model answers."""

from __future__ import annotations

import asyncio

from chatapp.commands import CommandError
from chatapp.parts.base import ChatBase
from chatapp.paths import model_path
from chatapp.picker import Choice, Picker
from chatapp.remote import address
from chatapp.remote.address import Address, AddressError, is_address

HERE = "local"
HOW = (
    "Write an address after /server, such as http://host:8000. Servers of the settings have a name: a table "
    '[servers.NAME] with url = "http://host:8000/v1", and with key_env if they want a key.'
)


class ModelsPart(ChatBase):
    """Implements `commands.models`."""

    async def open_model(self, path: str) -> None:
        await self.turns.stop()
        if served := self._sibling(path):
            path = served
        self._show_opening(model_path(path))
        self.turns.open(path, chosen=True)

    async def choose_model(self) -> bool:
        """Let the user choose among the models of the server; False if this machine answers."""
        model = self.turns.model
        if model is None or not is_address(model.path):
            return False
        now = address.parse(model.path).model
        choices = [Choice(name, name, "in use" if name == now else "") for name in model.siblings or (now,)]
        chosen = await self.app.push_screen_wait(Picker("Models of the server", choices))
        if chosen is not None and chosen != now:
            await self.open_model(chosen)
        return True

    async def open_server(self, word: str) -> None:
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
        try:
            path = self._local if chosen == HERE else str(address.read(chosen, servers))
        except AddressError as error:
            raise CommandError(str(error)) from error
        if path is None:
            raise CommandError("No model of this machine was opened yet: /model PATH opens one.")
        await self.open_model(path)

    def _sibling(self, word: str) -> str | None:
        """The address of the model that the user means, if the server that answers now has it."""
        model = self.turns.model
        if model is None or not is_address(model.path) or is_address(word):
            return None
        found = [name for name in model.siblings if word in (name, address.short(name))]
        return str(Address(address.parse(model.path).server, found[0])) if found else None

    def model_chosen(self, path: str) -> None:
        async def keep() -> None:
            await asyncio.to_thread(self._keep, {"model": path})

        self.run_worker(self._guard(keep), exit_on_error=False)
