"""`/cache`: what is kept of conversations, and how it is dropped."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_backend import FakeBackend, Gate, say
from harness import Chat, here, running

from chatapp.cache import ROWS, page
from chatapp.figures import size
from chatapp.options import ChatOptions
from chatapp.store import Store
from runtime.protocol import CachedState, CacheReport, Failed

pytestmark = here("what is kept of conversations the worker alone tells")

STATE = CachedState("a" * 32, 12_345, 6, 50_300_000, 61_000_000, in_memory=True)
REPORT = CacheReport((STATE,), 50_300_000, 8_000_000_000, 1_261_000_000, 16_000_000_000)


async def told(chat: Chat, command: str, words: str) -> None:
    await chat.send(command)
    await chat.until(lambda: words in chat.words())


class TestPage:
    """The Markdown itself."""

    def rows(self, report: CacheReport, **titles: str) -> list[str]:
        lines = page(report, titles, None).splitlines()
        return [line for line in lines[2:] if line.startswith("|")]

    def test_a_row_tells_tokens_checkpoints_and_sizes(self) -> None:
        [row] = self.rows(REPORT, **{STATE.conversation_id: "Oslo"})
        assert row == "| Oslo | 12,345 | 6 | 50 MB | 61 MB |"

    def test_a_title_stays_as_it_is(self) -> None:
        """A backslash before a bracket would begin mathematics."""
        title = "a [b] (c) | `d` *e* <f> ~g~"
        [row] = self.rows(REPORT, **{STATE.conversation_id: title})
        cell = row.split(" | ")[0].removeprefix("| ")
        assert html.unescape(cell) == title
        assert not re.search(r"[\\\[\](|`*<>~]", cell)

    def test_what_is_not_there_is_a_dash(self) -> None:
        cold = replace(STATE, in_memory=False, bytes=0)
        hot = replace(STATE, on_disk_bytes=0)
        first, second = self.rows(replace(REPORT, states=(cold, hot)))
        assert first.endswith("| – | 61 MB |")
        assert second.endswith("| 50 MB | – |")

    def test_the_totals_stand_against_the_budgets(self) -> None:
        assert "In memory 50 MB of 8.0 GB, on disk 1.3 GB of 16 GB." in page(REPORT, {}, None)
        assert "In memory 50 MB of 8.0 GB; nothing is kept on disk." in page(replace(REPORT, disk_budget=0), {}, None)

    def test_without_a_model_there_are_no_budgets(self) -> None:
        text = page(CacheReport((), 0, 0, 0, 0), {}, None)
        assert text.endswith("No model of this machine is open, so nothing is in memory.")

    def test_nothing_kept_is_a_sentence(self) -> None:
        text = page(CacheReport((), 0, 1000, 0, 0), {}, None)
        assert text == "Nothing is kept of conversations yet. In memory 0 B of 1.0 kB; nothing is kept on disk."

    def test_the_conversation_on_the_screen_stands_out(self) -> None:
        other = replace(STATE, conversation_id="b")
        text = page(replace(REPORT, states=(STATE, other)), {"b": "here"}, "b")
        assert "| **here** |" in text
        assert f"| {STATE.conversation_id} |" in text

    def test_many_are_cut_with_a_count(self) -> None:
        states = tuple(replace(STATE, conversation_id=str(number)) for number in range(ROWS + 7))
        rows = self.rows(replace(REPORT, states=states))
        assert len(rows) == ROWS + 1
        assert "7 more conversations" in rows[-1]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (50_300_000, "50 MB"),
        (1_234_000_000, "1.2 GB"),
        (999_500_000_000, "1.0 TB"),
        (5_000_000_000_000_000, "5,000 TB"),
    ],
)
def test_sizes_are_in_thousands(number: int, shown: str) -> None:
    assert size(number) == shown


async def test_the_table_names_conversations_by_their_titles(tmp_path: Path) -> None:
    store = Store(tmp_path / "conversations.db")
    odd = store.create(title="a | b *c* `d` <e>")
    store.add(odd.id, None, "user", "x")
    store.close()
    backend = FakeBackend()
    backend.kept = replace(REPORT, states=(replace(STATE, conversation_id=odd.id),))
    async with running(backend, tmp_path) as chat:
        await told(chat, "/cache", "on disk 1.3 GB of 16 GB")
        row = next(line for line in chat.lines() if "12,345" in line)
        assert "a | b *c* `d` <e>" in row
        assert row.split()[-6:] == ["12,345", "6", "50", "MB", "61", "MB"]


async def test_drop_forgets_this_conversation(tmp_path: Path) -> None:
    backend = FakeBackend()
    async with running(backend, tmp_path) as chat:
        await told(chat, "/cache drop", "This conversation is new")
        await chat.ask("q")
        await told(chat, "/cache drop", "Dropped. In memory 0 B of 1.0 kB")
        assert backend.dropped == [backend.requests[0].conversation_id]


async def test_drop_all_forgets_everything(tmp_path: Path) -> None:
    backend = FakeBackend()
    async with running(backend, tmp_path) as chat:
        await told(chat, "/cache drop all", "Dropped.")
        assert backend.dropped == [None]
        await told(chat, "/cache burn", "Write /cache, /cache drop or /cache drop all.")
        assert backend.dropped == [None]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [(None, "known to the server alone"), (Failed("The disk is gone.", "internal"), "The disk is gone.")],
    ids=["server", "failed"],
)
@pytest.mark.parametrize("command", ["/cache", "/cache drop all"])
async def test_what_cannot_be_told_is_a_sentence(
    answer: Failed | None, sentence: str, command: str, tmp_path: Path
) -> None:
    backend = FakeBackend()
    backend.kept = answer
    async with running(backend, tmp_path) as chat:
        await told(chat, command, sentence)
        assert "Dropped" not in chat.text()


async def test_while_a_reply_runs_the_question_waits_and_holds_up_no_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, answered = Gate(), Gate()
    backend = FakeBackend([say("x"), gate])

    async def cache() -> CacheReport:
        answered.reached.set()
        await answered.opened.wait()
        return REPORT

    monkeypatch.setattr(backend, "cache", cache)
    async with running(backend, tmp_path) as chat:
        await chat.send("q")
        await gate.reached.wait()
        await told(chat, "/cache", "told after this reply")
        await answered.reached.wait()
        await chat.send("/stop")
        await chat.idle()
        assert backend.cancelled
        answered.open()
        await chat.until(lambda: "12,345" in chat.text())


def test_a_budget_of_nothing_on_disk_keeps_nothing_there() -> None:
    assert ChatOptions(snapshots="/data/snapshots", snapshot_budget=0.0).load("/m.gguf").snapshots is None


async def test_states_on_disk_have_a_folder_in_the_chat(tmp_path: Path) -> None:
    options = ChatOptions(
        model="/m.gguf", snapshots="/data/snapshots", snapshot_budget=2.5, memory_budget=0.5, kv_type="q8"
    )
    async with running(FakeBackend(), tmp_path, options) as chat:
        await chat.until(lambda: chat.backend.loads)
        load = chat.backend.loads[0]
        assert (load.snapshots, load.kv_type) == ("/data/snapshots", "q8")
        assert (load.snapshot_budget, load.memory_budget) == (2_500_000_000, 500_000_000)
