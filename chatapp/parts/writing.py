"""What is being written."""

from __future__ import annotations

import asyncio

from chatapp import files
from chatapp.chips import mention
from chatapp.commands import CommandError
from chatapp.files import FileError
from chatapp.parts.base import ChatBase


class WritingPart(ChatBase):
    """Implements `commands.writing`."""

    async def write_in_editor(self) -> None:
        from chatapp.editor import EditorError, edit

        composer = self.composer
        before = composer.message
        try:
            written = await edit(self.app, before)
        except EditorError as error:
            raise CommandError(str(error)) from error
        if written != before:
            composer.put(composer.chips.kept(written))
        composer.focus()

    async def attach(self, path: str) -> None:
        from chatapp.picker import Choice, Picker

        composer = self.composer
        if not path:
            found = await asyncio.to_thread(files.below, composer.chips.folder)
            if not found:
                raise CommandError("There is no file here that can be sent.")
            path = await self.app.push_screen_wait(Picker("Files", [Choice(name, name) for name in found]))
            if not path:
                return
        else:
            path = path.strip('@"')
        try:
            await asyncio.to_thread(files.read, composer.chips.path(path))
        except FileError as error:
            raise CommandError(str(error)) from error
        text = composer.text
        composer.insert_typed(f"{' ' * bool(text and not text[-1].isspace())}{mention(path)} ")
