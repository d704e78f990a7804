"""A turn never re-reads the conversation: what each way of going on prefills, to the token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rewrite import GOLDENS
from states import never

from runtime.chat_template import ChatTemplate
from runtime.engine import ContextError
from runtime.gguf import GGUFFile
from runtime.loading import open_chat_model
from runtime.models.qwen35 import Qwen35
from runtime.protocol import Delta, Finished, Generate, Load, Message, Sampling
from runtime.turn import ChatModel

GREEDY = Sampling(temperature=0, presence_penalty=0, repetition_penalty=1, max_tokens=6)
SYSTEM = Message("system", "You are on a ship and answer in rhymes.")
MODEL = str(GOLDENS / "tiny-dense.gguf")


def opened(path: str = MODEL, **changes: object) -> ChatModel:
    chat, _, _ = open_chat_model(Load(path, threads=1, **changes), lambda done, total: None)  # type: ignore[arg-type]
    return chat


@dataclass
class Conversation:
    """A conversation as the chat leads it: whole messages are sent, and the turn settles while the user reads."""

    chat: ChatModel
    name: str = "a"
    thinking: bool = True
    preserve: bool = False
    sampling: Sampling = GREEDY
    settles: bool = True
    messages: list[Message] = field(default_factory=lambda: [SYSTEM])
    cut: bool = False  # the last reply reached its limit

    def answer(self) -> Finished:
        """Answer the last message."""
        command = Generate(
            "r", self.name, tuple(self.messages), self.sampling, self.thinking, preserve_thinking=self.preserve
        )
        texts = {"thinking": "", "answer": ""}
        for event in self.chat.generate(command, never):
            if isinstance(event, Delta):
                texts[event.channel] += event.text
        assert isinstance(event, Finished)
        self.cut = event.reason == "length"
        self.messages.append(Message("assistant", texts["answer"], texts["thinking"]))
        if self.settles:
            assert self.chat.settle(never)
        return event

    def say(self, text: str) -> int:
        """How many tokens were prefilled."""
        self.messages.append(Message("user", text))
        return self.answer().stats.prefilled_tokens

    def again(self) -> int:
        self.messages.pop()
        return self.answer().stats.prefilled_tokens

    def edit(self, index: int, text: str) -> int:
        """Replace the user's message at `index`, and what came after it."""
        del self.messages[index:]
        return self.say(text)

    def fork(self, name: str, index: int) -> Conversation:
        return Conversation(
            self.chat, name, self.thinking, self.preserve, self.sampling, self.settles, self.messages[:index]
        )

    def tokens(self, *pieces: str) -> int:
        return len(self.chat._tokenizer.encode_prompt(self.chat._tokenizer.split("".join(pieces))))

    @property
    def opening(self) -> str:
        """What the template writes after the user's words."""
        thought = "<think>\n" if self.thinking else "<think>\n\n</think>\n\n"
        return f"<|im_start|>assistant\n{thought}"

    def new_words(self, text: str, *, header: bool = False) -> int:
        """Tokens of a user's message and of the reply's header, with or without the message's own header."""
        return self.tokens("<|im_start|>user\n" if header else "", text, "<|im_end|>\n", self.opening)


MODES = pytest.mark.parametrize(
    ("thinking", "preserve"),
    [(False, False), (True, False), (True, True), (False, True)],
    ids=["plain", "thinking", "preserved", "plain-preserved"],
)


@pytest.fixture(scope="module")
def model() -> ChatModel:
    return opened()


@pytest.fixture
def talk(model: ChatModel, thinking: bool, preserve: bool) -> Iterator[Conversation]:
    """Three turns."""
    talk = Conversation(model, thinking=thinking, preserve=preserve)
    for text in ("Who are you?", "And where do we go?", "Is it far from here?"):
        talk.say(text)
    yield talk
    model.engine.pool.clear()


@MODES
class TestOneSession:
    def test_the_next_turn(self, talk: Conversation) -> None:
        assert talk.say("Land!") == talk.new_words("Land!")

    def test_a_new_answer(self, talk: Conversation) -> None:
        # with preserved thoughts, and behind a reply that may still go on, the prompt is there as it was
        assert talk.again() == (0 if talk.preserve or talk.cut else talk.tokens(talk.opening))

    def test_an_edit_of_the_last_message(self, talk: Conversation) -> None:
        assert talk.edit(5, "Is it near?") == talk.new_words("Is it near?")

    @pytest.mark.parametrize("index", [1, 3])
    def test_an_edit_of_an_earlier_message(self, talk: Conversation, index: int) -> None:
        # the first message follows the system prompt, which ends before the header
        assert talk.edit(index, "Why?") == talk.new_words("Why?", header=index == 1)

    @pytest.mark.parametrize("index", [1, 3, 5])
    def test_a_fork(self, talk: Conversation, index: int) -> None:
        fork = talk.fork("b", index)
        assert fork.say("Why?") == talk.new_words("Why?", header=index == 1)
        assert talk.say("Land!") == talk.new_words("Land!")  # the origin is as it was
        assert fork.say("How?") == talk.new_words("How?")

    def test_another_conversation_begins_with_the_same_system_prompt(self, talk: Conversation) -> None:
        assert Conversation(talk.chat, "b", talk.thinking).say("Hello") == talk.new_words("Hello", header=True)

    def test_all_in_a_row_say_what_a_fresh_model_says(self, talk: Conversation) -> None:
        talk.again()
        talk.edit(3, "Why?")
        talk.say("How?")
        fork = talk.fork("b", 3)
        fork.say("Hello")
        for one in (talk, fork):
            fresh = one.fork("fresh", len(one.messages) - 1)
            fresh.chat = opened()
            fresh.answer()
            assert fresh.messages == one.messages


@MODES
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "at once"])
def test_the_next_prompt_prefills_at_most_the_last_reply_too(
    model: ChatModel, thinking: bool, preserve: bool, settled: bool
) -> None:
    """Whoever is faster than settling pays for the reply as history shows it, not for the conversation."""
    talk = Conversation(model, "unsettled", thinking, preserve, settles=settled)
    for text in ("Who are you?", "And where do we go?"):
        talk.say(text)
    reply = talk.messages[-1]
    history = "<|im_start|>assistant\n"
    if preserve:
        history += f"<think>\n{reply.thought}\n</think>\n\n"
    history += f"{reply.content}<|im_end|>\n"
    words = talk.say("Land!")
    assert words <= talk.new_words("Land!", header=not settled) + (0 if settled else talk.tokens(history))


@MODES
class TestAfterARestart:
    @pytest.fixture
    def talk(self, thinking: bool, preserve: bool, tmp_path: Path) -> Conversation:
        """Three turns, saved, and a new model on the same folder."""
        talk = Conversation(opened(snapshots=str(tmp_path)), thinking=thinking, preserve=preserve)
        for text in ("Who are you?", "And where do we go?", "Is it far from here?"):
            talk.say(text)
            talk.chat.save(never)
        talk.chat = opened(snapshots=str(tmp_path))
        return talk

    def test_the_next_turn(self, talk: Conversation) -> None:
        assert talk.say("Land!") == talk.new_words("Land!")

    def test_a_new_answer(self, talk: Conversation) -> None:
        assert talk.again() <= talk.tokens(talk.opening)

    @pytest.mark.parametrize("index", [1, 3, 5])
    def test_an_edit(self, talk: Conversation, index: int) -> None:
        assert talk.edit(index, "Why?") <= talk.new_words("Why?", header=True)

    @pytest.mark.parametrize("index", [1, 3, 5])
    def test_a_fork(self, talk: Conversation, index: int) -> None:
        fork = talk.fork("b", index)
        assert fork.say("Why?") <= talk.new_words("Why?", header=True)
        assert talk.say("Land!") == talk.new_words("Land!")

    def test_another_conversation_begins_with_the_same_system_prompt(self, talk: Conversation) -> None:
        assert Conversation(talk.chat, "b", talk.thinking).say("Hello") == talk.new_words("Hello", header=True)

    def test_it_says_what_it_would_have_said(self, talk: Conversation) -> None:
        talk.say("Land!")
        fresh = talk.fork("fresh", len(talk.messages) - 1)
        fresh.chat = opened()
        fresh.answer()
        assert fresh.messages == talk.messages


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("at_once", [True, False], ids=["read at once", "turn by turn"])
def test_after_a_restart_every_message_of_a_long_conversation_is_a_place_to_come_back_to(
    thinking: bool, preserve: bool, at_once: bool, tmp_path: Path
) -> None:
    """An edit of message k prefills from k, however far back it is and whether or not it was said in this program."""
    talk = Conversation(opened(snapshots=str(tmp_path)), thinking=thinking, preserve=preserve)
    for number in range(12):
        talk.messages += [
            Message("user", f"{number}: and where are we now?"),
            Message("assistant", f"At {number}!", "Hm"),
        ]
        if not at_once or number == 11:
            talk.again()
            talk.chat.save(never)
    for index in range(1, 25, 2):
        fork = talk.fork(f"fork {index}", index)
        fork.chat = opened(snapshots=str(tmp_path))
        assert fork.say("Why?") <= fork.new_words("Why?", header=True)


def test_nothing_is_prefilled_twice_in_any_order_of_restarts(tmp_path: Path) -> None:
    """Turn, restart, edit, restart, new answer, restart, turn: each goes on where the last session stood."""
    talk = Conversation(opened(snapshots=str(tmp_path)))

    def restart() -> None:
        talk.chat.save(never)
        talk.chat = opened(snapshots=str(tmp_path))

    for text in ("Who are you?", "And where do we go?"):
        talk.say(text)
    restart()
    assert talk.edit(3, "Why?") <= talk.new_words("Why?", header=True)
    restart()
    assert talk.again() == talk.tokens(talk.opening)
    restart()
    assert talk.say("Land!") == talk.new_words("Land!")
    restart()
    assert talk.edit(1, "Why?") == talk.new_words("Why?", header=True)


def test_two_windows_on_one_folder_neither_lose_nor_mix_anything(tmp_path: Path) -> None:
    """Two models take turns, in conversations of their own and in one that both lead."""
    windows = [Conversation(opened(snapshots=str(tmp_path)), name) for name in "ab"]
    both = Conversation(windows[0].chat, "both")
    for text in ("Who are you?", "Why?", "How?"):
        for window in windows:
            window.say(f"{window.name} {text}")
            window.chat.save(never)
            both.chat = window.chat
            expected = both.new_words(f"{text} {window.name}", header=len(both.messages) == 1)
            assert both.say(f"{text} {window.name}") == expected
            both.chat.save(never)
    alone = opened()
    for one in (*windows, both):
        fresh = Conversation(alone, f"fresh {one.name}")
        for message in one.messages[1::2]:
            fresh.say(message.content)
        assert fresh.messages == one.messages


def test_a_prompt_that_was_stopped_is_read_on_by_the_next_turn_and_not_before(model: ChatModel) -> None:
    """Whoever stops a long paste wants no work done on it; what was read by then is there if it is sent again."""
    talk = Conversation(model, "stopped")
    talk.say("Hello")
    talk.messages.append(Message("user", "7" * 900))  # a token each
    command = Generate("r", "stopped", tuple(talk.messages), GREEDY, thinking=True)
    asked = itertools.count()
    *_, end = model.generate(command, lambda: next(asked) > 8)
    assert isinstance(end, Finished)
    assert (end.reason, end.stats.generated_tokens) == ("cancelled", 0)
    assert 0 < end.stats.prefilled_tokens < 900
    assert model.settle(never) is None
    read = end.stats.cached_tokens + end.stats.prefilled_tokens
    assert talk.answer().stats.cached_tokens == read


class TestContext:
    def test_a_paste_that_does_not_fit_is_refused_before_prefill_with_the_numbers(
        self, model: ChatModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = Conversation(model, "paste")
        talk.say("Hello")
        monkeypatch.setattr(Qwen35, "forward", lambda *args, **kwargs: pytest.fail("worked"))
        with pytest.raises(ContextError, match=r"needs 2,1\d\d tokens.*holds 2,048"):
            talk.say("7" * 2100)  # a token each
        monkeypatch.undo()
        talk.messages.pop()
        assert talk.say("Why?") == talk.new_words("Why?")  # the state is as it was


class TestLearnt:
    """With a model that answers, and the family's own template and vocabulary."""

    @pytest.fixture
    def path(self, fixtures: Path) -> str:
        return str(fixtures / "learnt-f16.gguf")

    def test_a_password_is_recalled_and_only_the_new_turn_is_read(self, path: str, fixtures: Path) -> None:
        dialogue = json.loads((fixtures / "learnt.json").read_text())[2]
        talk = Conversation(opened(path), thinking=False, sampling=Sampling(0, presence_penalty=0), messages=[])
        talk.say(dialogue[0]["user"])
        assert talk.say("Hello!") == talk.new_words("Hello!")
        assert talk.say(dialogue[2]["user"]) == talk.new_words(dialogue[2]["user"])
        assert talk.messages[-1].content == dialogue[2]["reply"]

    def test_after_a_restart_the_password_is_known_and_nothing_read_again(
        self, path: str, fixtures: Path, tmp_path: Path
    ) -> None:
        dialogue = json.loads((fixtures / "learnt.json").read_text())[2]
        sampling = Sampling(0, presence_penalty=0)
        talk = Conversation(opened(path, snapshots=str(tmp_path)), thinking=False, sampling=sampling, messages=[])
        talk.say(dialogue[0]["user"])
        talk.chat.save(never)
        talk.chat = opened(path, snapshots=str(tmp_path))
        assert talk.say(dialogue[2]["user"]) == talk.new_words(dialogue[2]["user"])
        assert talk.messages[-1].content == dialogue[2]["reply"]

    def test_with_preserved_thoughts_the_next_prompt_begins_with_this_one_and_its_reply(self, path: str) -> None:
        talk = Conversation(opened(path), thinking=True, preserve=True, sampling=Sampling(0, presence_penalty=0))
        with GGUFFile.open(MODEL) as tiny:  # the learnt model's own template knows no preserved thoughts
            talk.chat._template = ChatTemplate.from_metadata(tiny.metadata, talk.chat._tokenizer)
        talk.messages = [Message("user", "What is 12 + 9?")]
        talk.settles = False
        talk.answer()
        generated = list(next(iter(talk.chat.engine.pool._states.values())).ids)
        talk.messages.append(Message("user", "What is 99 - 98?"))
        prompt = talk.chat._template.render(talk.messages, thinking=True, preserve_thinking=True)
        assert list(prompt.ids[: len(generated)]) == generated
        assert talk.answer().stats.cached_tokens == len(generated)
