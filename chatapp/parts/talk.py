"""How the next reply is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from chatapp import attachments, choices, context, paths, settings
from chatapp.commands import CommandError
from chatapp.figures import count, percent, plural
from chatapp.options import Draft
from chatapp.parts.base import ChatBase
from chatapp.remote.address import is_address
from chatapp.sanitize import clean_line
from chatapp.settings import SettingsError, Value
from chatapp.shelf import Shelf, ShelfError
from chatapp.turns import QuestionError

if TYPE_CHECKING:
    from chatapp.form import Entry

_NO_PERSONA = "-"
_OF_THE_MODEL = "model"


class TalkPart(ChatBase):
    """Implements `commands.talk`."""

    _told_full: str | None = None  # the conversation whose context was told to be nearly full

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

    async def set_thinking(self, on: bool | None) -> None:
        """It is remembered; None only shows it."""
        if on is not None:
            await self._choose("thinking", on, everywhere=True)
        state = self.turns.status.thinking
        if state is not None:
            self._show_hint(f"thinking is {'on' if state else 'off'}{' from the next message on' * (on is not None)}")

    async def set_budget(self, tokens: int | None, *, off: bool = False) -> None:
        """In this conversation; `off`: none, whatever the settings say. None leaves it to them."""
        await self._choose("thinking_budget", choices.OFF if off else tokens)
        self.show_budget()

    def show_budget(self) -> None:
        now = self.turns.choices.thinking_budget
        self._show_hint("thoughts end by themselves" if now is None else f"thoughts end after {now:,} tokens", 4)

    async def set_draft(self, choice: Draft | None) -> None:
        if choice is not None:
            await self._choose("draft", choice)
        model = self.turns.model
        if model is not None and is_address(model.path):
            self._show_hint("what is drafted is the server's choice", 4.0)
            return
        if model is not None and not model.has_mtp:
            self._show_hint("this model has no MTP block: it drafts nothing", 4.0)
            return
        drafts = self.turns.choices.drafts
        state = {None: "as many as pay", 0: "none"}.get(drafts, f"{drafts} at each step")
        self._show_hint(f"drafts: {state}{' from the next message on' * (choice is not None)}")

    def set_system(self, text: str) -> None:
        if text:
            self._session.system = "" if text == "-" else text
        now = self._session.system
        self.say(f"System prompt: {now}" if now else "There is no system prompt.")

    # Sampling and all else that a reply is made with.

    async def show_parameters(self) -> None:
        """Here, or for every conversation: as the user switches."""
        from chatapp.form import Form

        def entries() -> list[Entry]:
            return [self._entry(name) for name in choices.NAMES]

        async def change(name: str, value: Value) -> None:
            await self._choose(name, value)

        self.app.push_screen(
            Form("How replies are made, in this conversation", entries, change, "/settings is for all of them")
        )

    async def set_parameter(self, name: str, word: str, *, everywhere: bool) -> None:
        """Without a word it is shown; `-` takes the choice away."""
        if name not in choices.NAMES:
            raise CommandError(f"There is no parameter {clean_line(name, 40)!r}. Those are {', '.join(choices.NAMES)}.")
        if word:
            value = _read(name, word)
            await self._choose(name, None if everywhere and value == choices.OFF else value, everywhere=everywhere)
        entry = self._entry(name)
        shown = "the model's own" if entry.value is None else _shown(entry.value)
        source = f" ({entry.source or 'of the model'})" if entry.value is not None else ""
        self._show_hint(f"{name}: {shown}{source}", 4.0)

    async def use_preset(self, name: str) -> None:
        """All sampling of this conversation at once."""
        from chatapp.picker import Choice, Picker

        shelf = presets()
        if not name:
            listed = [Choice(_OF_THE_MODEL, _OF_THE_MODEL, "What the makers of the model advise")]
            listed += [Choice(each, each, _remark(shelf, each)) for each in shelf.names()]
            name = await self.app.push_screen_wait(Picker("Presets", listed)) or ""
            if not name:
                return
        if name == _OF_THE_MODEL:
            values: dict[str, Value] = {}
        else:
            try:
                values = preset(name, shelf.read(name))
            except ShelfError as error:
                raise CommandError(str(error)) from error
        for each in choices.SAMPLING:
            self.turns.choices.set(each, values.get(each))
        for each in set(values) - set(choices.SAMPLING):
            self.turns.choices.set(each, values[each])
        await self._keep_own()
        self._show_hint(f"preset {name} from the next message on", 4.0)

    async def save_preset(self, name: str) -> None:
        """What replies are made with now, as a preset of the user's own."""
        if name == _OF_THE_MODEL:
            raise CommandError(f"/preset {name} is what the makers of the model advise: another name will do.")
        held = {each: self.turns.choices.get(each) for each in choices.SAMPLING}
        lines = [f"{each} = {value}" for each, value in held.items() if value is not None]
        if not lines:
            raise CommandError("Nothing is chosen here: there is nothing to save. /set chooses.")
        try:
            await asyncio.to_thread(presets().save, name, "\n".join(lines) + "\n")
        except ShelfError as error:
            raise CommandError(str(error)) from error
        self._show_hint(f"saved as the preset {name}", 4.0)

    # The context and what leaves it.

    def turns_changed(self) -> None:
        super().turns_changed()
        status = self.turns.status
        if status.busy or not status.context_used or not status.context_length or not self.is_mounted:
            return
        full = status.context_used / status.context_length
        conversation = self._session.conversation
        if full >= context.NEARLY_FULL and conversation is not None and self._told_full != conversation.id:
            self._told_full = conversation.id
            self.say(
                f"The context is {percent(full)} full: {count(status.context_used)} of "
                f"{count(status.context_length)} tokens. /context makes room before it overflows.",
                "warning",
            )
        elif full < context.NEARLY_FULL and self._told_full is not None:
            self._told_full = None

    def context_full(self, why: str) -> None:
        if self.app.screen is self:
            choose = self._guard(partial(self.show_context, why))
            self.run_worker(choose, group="context", exclusive=True, exit_on_error=False)

    async def show_context(self, why: str = "") -> None:
        """How full it is, or why something did not fit, with what can be done about it."""
        from chatapp.picker import Choice, Picker

        status = self.turns.status
        length = status.context_length
        if not length:
            raise CommandError("How much context there is is known once a model is open.")
        used = context.used(self._session.thread, status.context_used)
        what = context.plan(self._session.thread, used, length)
        listed = []
        if what is not None:
            freed = f"about {plural(what.tokens, 'token')}"
            if what.tokens > context.SUMMARY_TOKENS:
                listed.append(Choice("summarise", f"Summarise {what.what}", f"{freed} become a few hundred"))
            listed.append(Choice("drop", f"Leave out {what.what}", f"{freed} are free"))
        listed += [
            Choice(str(larger), f"{count(larger)} tokens of context", "the model is opened again")
            for larger in self._larger(length)
        ]
        listed.append(Choice("new", "Begin a new conversation", "this one stays saved"))
        chosen: str | None = await self.app.push_screen_wait(
            Picker(why or context.headline(used, length, status.cached), listed)
        )
        match chosen or "":
            case "summarise":
                await self.summarise()
            case "drop":
                await self.drop_oldest()
            case "new":
                self._run_named("new")
            case tokens if tokens.isdecimal():
                await self.enlarge(int(tokens))
            case _:
                pass

    async def drop_oldest(self) -> None:
        """After the reply that runs, and before the next message."""
        self._plan()  # what cannot be is told at once

        async def drop() -> None:
            await self._cut("", self._plan())

        self._make_room(drop, "Nothing was left out.")

    async def summarise(self) -> None:
        """The model writes it, after the reply that runs and before the next message."""
        self._plan()
        if self.turns.model is None:
            raise CommandError("No model is open to write the summary.")

        async def write() -> None:
            what = self._plan()
            asked = context.question(self._session.thread, what)
            summary = await self.turns.question(asked, context.SUMMARY_TOKENS, "summarising")
            if not summary:
                raise CommandError("The model wrote no summary, so nothing was left out.")
            await self._cut(summary, what)

        self._make_room(write, "There is no summary, and nothing was left out.", asks=True)

    def _make_room(self, work: Callable[[], Awaitable[None]], failed: str, *, asks: bool = False) -> None:
        async def make() -> None:
            try:
                await self.turns.between(work, asks=asks)
            except QuestionError as error:
                raise CommandError(f"{failed} {error}") from error

        self._run_beside(make)

    async def enlarge(self, tokens: int) -> None:
        """Open the model again, with so much context; the conversation goes on."""
        model = self.turns.model
        if model is None:
            raise CommandError("No model is open.")
        if model.trained_context and tokens > model.trained_context:
            raise CommandError(f"This model knows contexts of {count(model.trained_context)} tokens at most.")
        if not model.file_bytes:
            raise CommandError("The context of a served model is the server's choice.")
        settings.check("context_length", tokens)
        self.turns.reconfigure({"context_length": tokens})
        self.turns.open(model.path)
        await self.turns.stop()  # after it, so that what waits is answered with that much

    def _plan(self) -> context.Plan:
        status, thread = self.turns.status, self._session.thread
        length = status.context_length or 0
        what = context.plan(thread, context.used(thread, status.context_used), length)
        if what is None:
            raise CommandError("There is one exchange at most: nothing older can leave the context.")
        return what

    async def _cut(self, summary: str, what: context.Plan) -> None:
        from chatapp.history import blocks_of

        cut = await self._session.cut(summary, what.meta(summary=bool(summary)))
        if cut is None:
            raise CommandError("Another window is answering in this conversation: try again after its reply.")
        self.show_news(cut.news)
        self._add(*blocks_of([cut.marker]))
        self.turns.freed(what.tokens)
        status, message = self.turns.status, self.composer.message  # such as the one that had no room
        used = context.used(self._session.thread, status.context_used) + attachments.tokens(message)
        if message and used < (status.context_length or 0):
            self.say("There is room again: Enter sends what is written below.")

    def _larger(self, length: int) -> list[int]:
        """Two larger contexts that the model may be opened with."""
        model = self.turns.model
        if model is None or not model.file_bytes:
            return []
        sizes = (2 * length, 4 * length)
        return sorted({min(size, model.trained_context) for size in sizes} - {length})

    # Personas: system prompts with a name.

    async def use_persona(self, name: str) -> None:
        from chatapp.picker import Choice, Picker

        shelf = personas()
        if not name:
            listed = [Choice(each, each, _first_line(shelf, each)) for each in shelf.names()]
            listed.append(Choice(_NO_PERSONA, "none", "No system prompt"))
            name = await self.app.push_screen_wait(Picker("Personas", listed)) or ""
            if not name:
                return
        try:
            text = "" if name == _NO_PERSONA else await asyncio.to_thread(shelf.read, name)
        except ShelfError as error:
            raise CommandError(f"{error} /persona edit NAME makes one.") from error
        self._session.system = text.strip()
        self.say(f"Persona {name}: {self._session.system}" if text else "There is no system prompt.")

    async def edit_persona(self, name: str) -> None:
        """On a screen of its own, beginning with what it is, else with the system prompt.

        It becomes the system prompt only if it was that before.
        """
        from chatapp.writing_screen import WritingScreen

        shelf = personas()
        try:
            shelf.check_name(name)  # before anything is written that could not be kept
            known = name in shelf.names()
            text = (await asyncio.to_thread(shelf.read, name) if known else self._session.system).strip()
            in_use = known and text == self._session.system.strip()
            screen = WritingScreen(f"Persona {clean_line(name, 60)}", text)
            edited: str | None = await self.app.push_screen_wait(screen)
            if edited is None:
                return
            if not edited.strip():
                raise CommandError("An empty persona is not saved. /persona delete NAME deletes one of yours.")
            await asyncio.to_thread(shelf.save, name, edited.strip() + "\n")
        except ShelfError as error:
            raise CommandError(str(error)) from error
        if in_use:
            self._session.system = edited.strip()
            self.say(f"The persona {name} is saved, and from the next message on it is the system prompt.")
        else:
            self.say(f"The persona {name} is saved: /persona {name} takes it on.")

    async def save_persona(self, name: str) -> None:
        if not self._session.system:
            raise CommandError("There is no system prompt to save. /system TEXT sets one.")
        try:
            await asyncio.to_thread(personas().save, name, self._session.system + "\n")
        except ShelfError as error:
            raise CommandError(str(error)) from error
        self._show_hint(f"saved as the persona {name}", 4.0)

    async def delete_persona(self, name: str) -> None:
        try:
            await asyncio.to_thread(personas().delete, name)
        except ShelfError as error:
            raise CommandError(str(error)) from error
        self._show_hint(f"the persona {name} is deleted", 4.0)

    # Inner workings.

    async def _choose(self, name: str, value: Value, *, everywhere: bool = False) -> None:
        """For this conversation, or for all, in which case the settings keep it. Raises SettingsError, StoreError."""
        self.turns.choices.set(name, value, everywhere=everywhere)
        self.turns_changed()
        await self._keep_own()
        if everywhere:
            await self.remember({name: "auto" if name == "draft" and value is None else value})

    async def _keep_own(self) -> None:
        await self._session.keep_own(self.turns.choices.here)
        self.turns_changed()

    def _entry(self, name: str) -> Entry:
        from chatapp.form import Entry

        held = self.turns.choices
        value = held.get(name)
        if value is None:
            value, source = held.of_model(name, self.turns.model), ""
        else:
            source = "of this conversation" if name in held.here else "of all conversations"
        group = "Sampling" if name in choices.SAMPLING else "Thought and drafts"
        return Entry(name, value, source, group)


def _read(name: str, word: str) -> Value:
    """What a user writes for a parameter; `-` takes the choice away. Raises SettingsError."""
    if word == "-":
        return None
    return choices.OFF if (name, word.lower()) == ("thinking_budget", choices.OFF) else settings.read(name, word)


def presets() -> Shelf:
    return Shelf("presets", ".toml", paths.settings_path().with_name("presets"))


def personas() -> Shelf:
    return Shelf("personas", ".md", paths.settings_path().with_name("personas"))


def preset(name: str, text: str) -> dict[str, Value]:
    """The values of a preset's TOML. Raises CommandError."""
    import tomllib

    try:
        body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of syntax, of a number without measure, of nesting without end
        raise CommandError(f"The preset {name} is not valid TOML: {error}.") from error
    if unknown := sorted(body.keys() - set(choices.NAMES)):
        raise CommandError(f"The preset {name} has {plural(len(unknown), 'unknown key')}: {', '.join(unknown)}.")
    try:
        return {key: settings.check(key, value) for key, value in body.items()}
    except SettingsError as error:
        raise CommandError(f"The preset {name} cannot be used: {error}") from error


def _remark(shelf: Shelf, name: str) -> str:
    """The comment at its beginning, else its values."""
    first = _first_line(shelf, name)
    if first.startswith("#") or not shelf.is_own(name):
        return first.lstrip("# ")
    return ", ".join(line.replace(" = ", " ") for line in shelf.read(name).splitlines() if line.strip())


def _first_line(shelf: Shelf, name: str) -> str:
    try:
        return next((line for line in shelf.read(name).splitlines() if line.strip()), "")
    except ShelfError as error:
        return str(error)


def _shown(value: Value) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
