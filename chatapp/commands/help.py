"""The help, made from the registry."""

from __future__ import annotations

from typing import Protocol

from chatapp.commands.registry import COMMANDS, command


class Pages(Protocol):
    """What these commands ask of the chat."""

    def show(self, markdown: str) -> None: ...


@command("", "Show the commands and keys")
async def help(chat: Pages, argument: str) -> None:
    told = [(known.usage.replace("|", "\\|"), known.help, known.key) for known in COMMANDS.values()]
    lines = ["| Command | | Key |", "|:--|:--|:--|", *(f"| `{usage}` | {what} | {key} |" for usage, what, key in told)]
    lines += ["", "| Key | |", "|:--|:--|", *(f"| {key} | {what} |" for key, what in KEYS), "", _SLASH]
    chat.show("\n".join(lines))


KEYS = (
    ("Enter", "Send; while a reply runs, the message waits for its turn"),
    ("Shift+Enter", "New line; Ctrl+J where the terminal does not tell the two apart"),
    ("Up, Down", "Earlier messages; Up in an empty line takes back a waiting one"),
    ("Esc", "Stop the reply"),
    ("Ctrl+C", "Copy what is selected, else stop, else clear the line, else twice: quit"),
    ("PgUp, PgDn", "Scroll; Ctrl+End goes back to the end and follows again"),
    ("Tab, Enter", "Go to a thought, unfold it"),
    ("Ctrl+P", "All commands in a list"),
)
_SLASH = (
    "To send a message that begins with a slash, double it: `//like this`. "
    "Paths such as `/etc/hosts` are sent as they are."
)
