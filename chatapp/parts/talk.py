"""How the next reply is made."""

from __future__ import annotations

from chatapp.commands import CommandError
from chatapp.options import Draft, drafts
from chatapp.parts.base import ChatBase
from chatapp.remote.address import is_address


class TalkPart(ChatBase):
    """Implements `commands.talk`."""

    async def stop(self) -> None:
        self.turns.hold()  # who stops a reply does not want the next one at once
        await self.turns.stop()

    async def answer_now(self) -> None:
        if not self.turns.thinks:
            self._show_hint("no thought is running")
        elif await self.turns.answer_now():
            self._show_hint("the thought is being closed")
        else:
            raise CommandError("This source of replies cannot end a thought early.")

    async def retry(self) -> None:
        await self.turns.stop()
        self.turns.retry()

    def set_thinking(self, on: bool | None) -> None:
        if on is not None:
            self.turns.thinking = on
        self.turns_changed()
        state = self.turns.status.thinking
        if state is not None:
            self._show_hint(f"thinking is {'on' if state else 'off'}{' from the next message on' * (on is not None)}")

    def set_draft(self, choice: Draft | None) -> None:
        if choice is not None:
            self.turns.drafts = drafts(choice)
        model = self.turns.model
        if model is not None and is_address(model.path):
            self._show_hint("what is drafted is the server's choice", 4.0)
            return
        if model is not None and not model.has_mtp:
            self._show_hint("this model has no MTP block: it drafts nothing", 4.0)
            return
        state = {None: "as many as pay", 0: "none"}.get(self.turns.drafts, f"{self.turns.drafts} at each step")
        self._show_hint(f"drafts: {state}{' from the next message on' * (choice is not None)}")

    def set_system(self, text: str) -> None:
        if text:
            self._session.system = "" if text == "-" else text
        now = self._session.system
        self.say(f"System prompt: {now}" if now else "There is no system prompt.")
