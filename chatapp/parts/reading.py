"""Looking at what was said, and taking it along."""

from __future__ import annotations

from chatapp.commands import CommandError
from chatapp.drafts import DraftsScreen
from chatapp.parts.base import ChatBase


class ReadingPart(ChatBase):
    """Implements `commands.reading`."""

    def show_drafts(self) -> None:
        replies = [node for node in self._session.thread if node.role == "assistant"]
        record = self.turns.records.get(replies[-1].id) if replies else None
        if not replies:
            raise CommandError("There is no reply yet.")
        if record is None:
            raise CommandError("What was drafted is known of replies of this session only, once they have ended.")
        if not record.stats.drafted:
            raise CommandError("The last reply was made without drafts.")
        self.app.push_screen(DraftsScreen(record))

    def show_cache(self) -> None:
        async def show() -> None:
            self.show(await self._cache.page())

        self._run_beside(show)

    def drop_cache(self, *, everything: bool) -> None:
        async def drop() -> None:
            self.say(await self._cache.drop(everything=everything))

        self._run_beside(drop)

    def copy_reply(self) -> None:
        reply = self.transcript.last_reply()
        if reply is None or not reply.answer:
            raise CommandError("There is no reply to copy yet.")
        self.copy(reply.answer)

    def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self._show_hint("copied")
