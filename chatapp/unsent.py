"""What was written and not sent: the composer's text and the queued messages of each conversation, per window.

A window's words belong to it while it lives; those that a dead one has left go to the next window that opens the
conversation.
"""

from __future__ import annotations

import json

from chatapp.records import first_words, storable
from chatapp.store import Store
from runtime.quick_dataclass import dataclass

WINDOW = "window-"
"""Begins the name that a living window claims."""


@dataclass(frozen=True, slots=True)
class Unsent:
    draft: str = ""
    queue: tuple[str, ...] = ()

    def without(self, text: str) -> Unsent:
        """The same without the first message of that text."""
        queue = list(self.queue)
        if text in queue:
            queue.remove(text)
        return Unsent(self.draft, tuple(queue))


def keep(store: Store, conversation_id: str, window: str, unsent: Unsent) -> None:
    """In place of what this window kept of the conversation before."""
    with store.transaction() as sql:
        if unsent == Unsent():
            sql.execute("DELETE FROM unsent WHERE conversation_id = ? AND window = ?", (conversation_id, window))
        elif store.get(conversation_id) is not None:
            queue = json.dumps([storable(text) for text in unsent.queue])
            sql.execute(
                "INSERT OR REPLACE INTO unsent VALUES (?, ?, ?, ?)",
                (conversation_id, window, storable(unsent.draft), queue),
            )
            sql.execute(
                "UPDATE conversations SET title = ? WHERE id = ? AND head IS NULL AND titled = ''",
                (first_words(storable(unsent.draft or unsent.queue[0])), conversation_id),
            )


def take(store: Store, conversation_id: str, window: str) -> Unsent:
    """What this window and dead ones kept of a conversation; from now on it is this window's.

    One draft goes to the composer, and further ones into the queue.
    """
    with store.transaction() as sql:
        rows = sql.execute(
            "SELECT window, draft, queue FROM unsent WHERE conversation_id = ? ORDER BY window <> ?",
            (conversation_id, window),
        ).fetchall()
        mine = [row for row in rows if row[0] == window or not store.claimed(WINDOW + row[0])]
        drafts = [draft for _, draft, _ in mine if draft.strip()]
        queue = [text for _, _, texts in mine for text in json.loads(texts)]
        for owner, _, _ in mine:
            sql.execute("DELETE FROM unsent WHERE conversation_id = ? AND window = ?", (conversation_id, owner))
        found = Unsent(drafts[0] if drafts else "", (*queue, *drafts[1:]))
        keep(store, conversation_id, window, found)
    return found
