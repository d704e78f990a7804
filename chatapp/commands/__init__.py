"""The slash commands: one decorated function each, in the module of their subject."""

from __future__ import annotations

from typing import Protocol

# The order of the imports is the order of the commands in the help.
# isort: off
from chatapp.commands.help import Pages
from chatapp.commands.conversations import Conversations
from chatapp.commands.versions import Versions
from chatapp.commands.talk import Talk
from chatapp.commands.writing import Writing
from chatapp.commands.reading import Reading
from chatapp.commands.models import Models
from chatapp.commands.comfort import Comfort
from chatapp.commands.registry import COMMANDS, Call, Command, CommandError, matches, parse
# isort: on

__all__ = ["COMMANDS", "Call", "Chat", "Command", "CommandError", "matches", "parse"]


class Chat(Pages, Conversations, Versions, Talk, Writing, Reading, Models, Comfort, Protocol):
    """All that commands can ask of the chat."""
