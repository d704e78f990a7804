"""How replies are made: parameters, presets, personas, budgets, and where each choice holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_backend import MODEL, FakeBackend, Gate, say
from harness import here, running
from textual.widgets import Input, TextArea

from chatapp import paths
from chatapp.choices import Choices
from chatapp.form import Form
from chatapp.options import ChatOptions
from chatapp.parts.talk import personas, presets
from chatapp.settings import SettingsError, Value
from chatapp.shelf import Shelf, ShelfError
from chatapp.store import StoreError
from chatapp.writing_screen import WritingScreen
from runtime.protocol import Message, Sampling


class TestChoices:
    def test_a_conversation_s_own_stand_before_those_of_all(self) -> None:
        chosen = Choices(ChatOptions(sampling=Sampling(temperature=0.5, top_k=7), thinking=False, drafts=0))
        chosen.set("temperature", 1)
        assert chosen.sampling == Sampling(temperature=1.0, top_k=7)
        assert (chosen.thinking, chosen.drafts) == (False, 0)
        chosen.set("temperature", None)
        assert chosen.sampling.temperature == 0.5

    def test_one_for_all_takes_the_place_of_the_own(self) -> None:
        chosen = Choices(ChatOptions())
        chosen.set("top_p", 0.5)
        chosen.set("top_p", 0.9, everywhere=True)
        assert (chosen.get("top_p"), chosen.here) == (0.9, {})

    @pytest.mark.parametrize(("name", "value"), [("top_p", 0.0), ("theme", "ink"), ("seed", "x")])
    def test_what_no_reply_takes_is_refused(self, name: str, value: Value) -> None:
        with pytest.raises(SettingsError, match=name):
            Choices(ChatOptions()).set(name, value)

    def test_of_what_was_stored_only_what_still_holds_is_taken(self) -> None:
        chosen = Choices(ChatOptions())
        chosen.take({"top_k": 3, "top_p": 7.0, "gone": 1})
        assert chosen.here == {"top_k": 3}

    def test_the_model_tells_what_it_does_by_itself(self) -> None:
        chosen = Choices(ChatOptions())
        assert (chosen.of_model("temperature", MODEL), chosen.of_model("thinking", MODEL)) == (1.0, True)
        chosen.set("thinking", False)
        assert chosen.of_model("temperature", MODEL) == 0.7


class TestParameters:
    async def test_one_is_set_for_this_conversation_and_survives_it(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send("/set temperature 0.3")
            await chat.until(lambda: "temperature: 0.3 (of this conversation)" in chat.status())
            await chat.ask("first")
            await chat.send("/new")
            await chat.ask("second")
            first = chat.store.conversations()[1].id
            await chat.send(f"/resume {first}")
            await chat.until(lambda: "first" in chat.text())
            await chat.ask("third")
        assert [request.sampling.temperature for request in backend.requests] == [0.3, None, 0.3]

    async def test_one_set_as_the_default_is_kept_in_the_settings(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        backend = FakeBackend()
        async with running(backend, tmp_path, keep=kept.append) as chat:
            await chat.send("/set top_k 5 default")
            await chat.until(lambda: "of all conversations" in chat.status())
            await chat.send("/new")
            await chat.ask("q")
        assert kept == [{"top_k": 5}]
        assert backend.requests[0].sampling.top_k == 5

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("/set top_p 0", "top_p takes a number above 0 and up to 1, not '0'"),
            ("/set tmperature 1", "There is no parameter 'tmperature'"),
            ("/set seed x", "seed takes a whole number from 0"),
            ("/budget soon", "Write /budget and a number"),
            ("/preset nonsense", "There is no preset 'nonsense'. There are: coding, creative,"),
            ("/preset save", "Write a name"),
            ("/preset save x", "Nothing is chosen here"),
            ("/persona nonsense", "There is no persona 'nonsense'"),
            ("/persona edit", "Write the name"),
            ("/persona edit bad:name", "'bad:name' is no name for a persona"),
            ("/persona edit ../../x", "'../../x' is no name for a persona"),
            ("/persona save x", "no system prompt to save"),
            ("/persona delete concise", "no persona 'concise' of yours"),
        ],
    )
    async def test_what_cannot_be_is_told(self, text: str, says: str, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send(text)
            await chat.until(lambda: says in chat.words())

    async def test_the_screen_changes_one_and_judges_it_while_it_is_written(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send("/set")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            await chat.pilot.press(*"top_p", "enter")
            await chat.until(lambda: chat.app.screen.query_one("#form-value", Input).has_focus)
            await chat.pilot.press("2")
            await chat.until(lambda: "not '2'" in chat.text())
            await chat.pilot.press("enter", "backspace", *"0.5", "enter")
            await chat.until(lambda: "0.5" in chat.text() and "of this conversation" in chat.text())
            await chat.pilot.press("escape")
            await chat.ask("q")
        assert backend.requests[0].sampling.top_p == 0.5

    async def test_a_store_that_cannot_keep_one_is_told_on_the_screen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: object) -> None:
            raise StoreError("The disk is full.")

        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.ask("q")
            monkeypatch.setattr(chat.store, "keep_choices", full)
            await chat.send("/set")
            await chat.until(lambda: isinstance(chat.app.screen, Form))
            await chat.pilot.press(*"top_p", "enter")
            await chat.until(lambda: chat.app.screen.query_one("#form-value", Input).has_focus)
            await chat.pilot.press(*["backspace"] * 4, *"0.5", "enter")
            await chat.until(lambda: "The disk is full." in chat.text())
            await chat.pilot.press("escape")
            assert "of this conversation" in chat.text()
            await chat.pilot.press("escape")
            await chat.ask("q")
        assert backend.requests[1].sampling.top_p == 0.5

    async def test_a_budget_is_set_and_taken_away(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send("/budget 64")
            await chat.until(lambda: "end after 64 tokens" in chat.status())
            await chat.ask("q")
            await chat.send("/budget off")
            await chat.until(lambda: "end by themselves" in chat.status())
            await chat.ask("q")
            await chat.send("/budget 32")
            await chat.send("/set top_k 5")
            await chat.until(lambda: "top_k" in chat.status())
            await chat.send("/budget")
            await chat.until(lambda: "end after 32 tokens" in chat.status())
        assert [request.thinking_budget for request in backend.requests] == [64, None]

    async def test_none_here_whatever_the_settings_say(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path, ChatOptions(model=MODEL.path, thinking_budget=500)) as chat:
            await chat.until(lambda: backend.model is not None)
            await chat.ask("q")
            await chat.send("/budget off")
            await chat.until(lambda: "end by themselves" in chat.status())
            await chat.ask("q")
            conversation = chat.thread()[0].conversation_id
            await chat.send("/new")
            await chat.ask("q")
            await chat.send(f"/resume {conversation}")
            await chat.ask("q")
            await chat.send("/budget -")
            await chat.until(lambda: "after 500 tokens" in chat.status())
            await chat.send("/set thinking_budget off")
            await chat.until(lambda: "thinking_budget: off" in chat.status())
        assert [request.thinking_budget for request in backend.requests] == [500, None, 500, None]

    @here("it asks for no reply")
    async def test_thinking_is_remembered(self, tmp_path: Path) -> None:
        kept: list[Mapping[str, Value]] = []
        async with running(FakeBackend(), tmp_path, keep=kept.append) as chat:
            await chat.pilot.press("ctrl+t")
            await chat.until(lambda: kept)
        assert kept == [{"thinking": False}]

    async def test_a_message_that_waits_keeps_the_thinking_it_was_sent_with(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([gate], [say("two")], [gate], [say("four")])
        async with running(backend, tmp_path) as chat:
            await chat.send("one")
            await gate.reached.wait()
            await chat.send("two")
            await chat.send("/set temperature 0.5")
            await chat.pilot.press("ctrl+t")
            await chat.until(lambda: "thinking is off" in chat.status())
            await chat.send("three")
            await chat.send("four")
            gate.open()
            await chat.until(lambda: len(backend.requests) == 4)
            await chat.idle()
            asked = [(request.thinking, request.sampling.temperature) for request in backend.requests]
            assert asked == [(None, None), (None, None), (False, 0.5), (False, 0.5)]

    async def test_a_message_that_is_held_gets_the_thinking_of_when_it_is_let_go(self, tmp_path: Path) -> None:
        gate = Gate()
        backend = FakeBackend([gate])
        async with running(backend, tmp_path) as chat:
            await chat.send("one")
            await gate.reached.wait()
            await chat.send("two")
            await chat.pilot.press("escape")
            await chat.until(lambda: not chat.screen.turns.generating)
            await chat.pilot.press("ctrl+t")
            await chat.until(lambda: "thinking is off" in chat.status())
            await chat.pilot.press("enter")
            await chat.until(lambda: len(backend.requests) == 2)
            await chat.idle()
            assert backend.requests[1].thinking is False

    async def test_a_word_in_the_status_line_leaves_the_figures(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.ask("q")
            await chat.send("/think off")
            await chat.until(lambda: "from the next message on" in chat.status())
            assert "50 / 4,096" in chat.status()


class TestPresets:
    async def test_one_sets_all_of_sampling_and_the_model_s_own_takes_it_back(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send("/set seed 7")
            await chat.send("/preset coding")
            await chat.ask("q")
            await chat.send("/preset model")
            await chat.ask("q")
        first, second = (request.sampling for request in backend.requests)
        assert (first.temperature, first.top_p, first.top_k, first.seed) == (0.6, 0.95, 20, None)
        assert second == Sampling()

    @here("it asks for no reply")
    async def test_one_of_the_user_s_own(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/set temperature 0.1")
            await chat.send("/preset save mine")
            await chat.until(lambda: "mine" in presets().names())
            assert presets().read("mine") == "temperature = 0.1\n"
            await chat.send("/preset")
            await chat.until(lambda: "temperature 0.1" in chat.text())
            assert "For programs and other exact work." in chat.text()
            await chat.pilot.press("escape")

    @here("it asks for no reply")
    async def test_none_has_the_name_of_the_model_s_own(self, tmp_path: Path) -> None:
        presets().save("model", "temperature = 0.2\n")
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/set temperature 0.1")
            await chat.send("/preset save model")
            await chat.until(lambda: "another name will do" in chat.words())
            assert presets().read("model") == "temperature = 0.2\n"
            await chat.send("/preset")
            await chat.until(lambda: "What the makers of the model advise" in chat.text())
            assert "temperature 0.2" not in chat.text()

    async def test_a_damaged_one_is_told(self, tmp_path: Path) -> None:
        presets().save("odd", "temperature = ")
        presets().save("wrong", "temprature = 1")
        presets().save("high", "temperature = 9")
        presets().save("deep", "temperature = " + "[" * 3000)
        async with running(FakeBackend(), tmp_path) as chat:
            for name, says in (
                ("odd", "odd is not valid TOML"),
                ("wrong", "1 unknown key"),
                ("high", "from 0 to 5, not 9"),
                ("deep", "deep is not valid TOML"),
            ):
                await chat.send(f"/preset {name}")
                await chat.until(lambda says=says: says in chat.words())

    def test_those_that_come_along_can_be_used(self) -> None:
        from chatapp.parts.talk import preset

        for name in presets().names():
            assert preset(name, presets().read(name))


class TestPersonas:
    async def test_one_becomes_the_system_prompt(self, tmp_path: Path) -> None:
        backend = FakeBackend()
        async with running(backend, tmp_path) as chat:
            await chat.send("/persona")
            await chat.until(lambda: "tutor" in chat.text())
            await chat.pilot.press(*"patient", "enter")
            await chat.until(lambda: "Persona tutor" in chat.text())
            await chat.ask("q")
            await chat.send("/persona -")
            await chat.until(lambda: "There is no system prompt." in chat.text())
        assert backend.requests[0].messages[0] == Message("system", personas().read("tutor").strip())

    @here("it asks for no reply")
    async def test_one_is_written_saved_and_deleted(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/persona edit pirate")
            await chat.until(lambda: isinstance(chat.app.screen, WritingScreen))
            chat.app.screen.query_one(TextArea).insert("Arr.\nMatey.")
            await chat.pilot.press("ctrl+s")
            await chat.until(lambda: "pirate is saved" in chat.text())
            assert personas().read("pirate") == "Arr.\nMatey.\n"
            await chat.send("/system")
            await chat.until(lambda: "There is no system prompt." in chat.text())  # it was edited, and no more
            await chat.send("/persona pirate")
            await chat.until(lambda: "Persona pirate" in chat.text())
            await chat.send("/persona edit pirate")  # the one in use
            await chat.until(lambda: isinstance(chat.app.screen, WritingScreen))
            chat.app.screen.query_one(TextArea).insert("Ahoy. ", (0, 0))
            await chat.pilot.press("ctrl+s")
            await chat.until(lambda: "it is the system prompt" in chat.words())
            assert chat.screen._session.system == "Ahoy. Arr.\nMatey."
            await chat.send("/persona save second")
            await chat.until(lambda: personas().is_own("second"))
            await chat.send("/persona delete pirate")
            await chat.until(lambda: not personas().is_own("pirate"))

    @here("it asks for no reply")
    async def test_leaving_the_editor_changes_nothing(self, tmp_path: Path) -> None:
        async with running(FakeBackend(), tmp_path) as chat:
            await chat.send("/persona edit concise")
            await chat.until(lambda: isinstance(chat.app.screen, WritingScreen))
            await chat.pilot.press("x", "escape")
            await chat.until(lambda: chat.app.screen is chat.screen)
        assert not personas().is_own("concise")


class TestShelf:
    @pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 61])
    def test_a_name_that_is_no_file_name_is_refused(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ShelfError, match="is no name for a persona"):
            Shelf("personas", ".md", tmp_path).save(name, "x")

    @pytest.mark.parametrize("name", ["../notes", "../personas/../notes", "deep/er", "../deep/er"])
    def test_no_name_leads_out_of_the_folder(self, name: str, tmp_path: Path) -> None:
        own = tmp_path / "personas"
        for file in (tmp_path / "notes.md", own / "deep" / "er.md", tmp_path / "deep" / "er.md"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("not for the shelf")
        shelf = Shelf("personas", ".md", own)
        assert not shelf.is_own(name)
        with pytest.raises(ShelfError, match="There is no persona"):
            shelf.read(name)
        with pytest.raises(ShelfError, match="of yours"):
            shelf.delete(name)
        assert len(list(tmp_path.rglob("*.md"))) == 3

    def test_the_user_s_own_stand_before_those_that_come_along(self, tmp_path: Path) -> None:
        shelf = Shelf("personas", ".md", tmp_path)
        before = shelf.read("tutor")
        shelf.save("tutor", "mine")
        assert shelf.read("tutor") == "mine"
        shelf.delete("tutor")
        assert shelf.read("tutor") == before

    def test_what_cannot_be_written_or_read_is_a_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ShelfError, match="cannot be written"):
            Shelf("personas", ".md", tmp_path / "file" / "x").save("a", "b")
        (tmp_path / "odd.md").write_bytes(b"\xff")
        with pytest.raises(ShelfError, match="not UTF-8"):
            Shelf("personas", ".md", tmp_path).read("odd")


def test_the_folders_lie_beside_the_settings() -> None:
    assert personas().own == paths.settings_path().parent / "personas"
    assert presets().own == paths.settings_path().parent / "presets"
