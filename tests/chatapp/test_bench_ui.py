"""`qwenchat bench ui`: what it measures is there, and it is judged as it should be."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest
from textual.strip import Strip

from chatapp.app import GARBAGE
from chatapp.bench import screen, ui
from chatapp.bench.ui import Figure, Report
from chatapp.blocks import ReplyBlock
from chatapp.open_block import LIVE_LIMIT
from chatapp.rows_view import RowsView
from chatapp.transcript import TALL
from runtime import protocol
from runtime.protocol import Cancel, Delta, Finished, Generate, Load, Message, Ready


@pytest.mark.parametrize(("value", "torch", "good"), [(0.5, False, True), (0.51, False, False), (0.1, True, False)])
def test_a_report_is_good_if_all_of_it_is(value: float, torch: bool, good: bool) -> None:
    report = Report((Figure("first paint", value, "s", 0.5), Figure("other", 1.0, "ms", 16)), torch)
    assert report.good is good
    assert report.as_dict()["good"] is good
    assert ("✗" in report.as_text()) is not good


def test_a_cost_that_grows_is_told_from_one_that_does_not() -> None:
    assert screen.growth([1.0, 1.1, 0.9, 1.0] * 4) <= ui.GROWTH
    assert screen.growth([float(n) for n in range(1, 17)]) > ui.GROWTH


async def test_frames_and_long_conversations_are_measured() -> None:
    async def work(paper: screen.Screen) -> tuple[list[float], tuple[float, float], int]:
        times = await paper.frames("table", 3 * screen.PIECE)
        name = paper.write_conversation(60)
        return times, await paper.open(name, 60), paper.app.chat.transcript.earlier

    times, (seconds, processor), earlier = await screen.on_paper(work)
    assert len(times) == 4  # 490 characters
    assert all(0 < each < 5 for each in times)
    assert 0 < processor < seconds + 0.1 < 10
    # A question is of one line, an answer of twelve, and two rows are around each. Those that fill the rows of a few
    # screens are there at once: five of each, and one answer more.
    exchange = (1 + 2) + (12 + 2)
    assert TALL // exchange == 5
    assert TALL % exchange <= 12 + 2
    assert earlier == 60 - (5 * 2 + 1)


def may_change(case: str, text: str, at: int, in_sight: int) -> int:
    """Rows that a piece may have changed: those that its lines begin or go on with, and the one below them.

    Columns are measured anew with each row of a table, as long as it is laid out as one.
    """
    piece = text[at : at + screen.PIECE]
    if case == "table" and at <= LIVE_LIMIT:
        return min((text[:at] + piece).count("\n") + 1, in_sight)
    return piece.count("\n") + (not piece.endswith("\n")) + 1


@pytest.mark.slow
async def test_a_frame_draws_what_is_new_and_nobody_looks_at_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []  # rows
    looks: list[int] = []
    found: dict[str, list[tuple[int, int]]] = {}  # by case: rows drawn and rows that may have changed, up to each piece
    draw = RowsView._draw

    def counted(view: RowsView, y: int, width: int) -> Strip:
        drawn.append(y)
        return draw(view, y, width)

    def look(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            looks.append(told["generation"])

    async def work(paper: screen.Screen) -> None:
        transcript = paper.app.chat.transcript
        for case, (start, unit, full) in screen.CASES.items():
            text = start + unit * (full // len(unit))
            reply = ReplyBlock()
            await transcript.add(reply)
            drawn.clear()
            changed, found[case] = 0, []
            for at in range(0, len(text), screen.PIECE):
                changed += may_change(case, text, at, transcript.size.height)
                reply.feed("answer", text[at : at + screen.PIECE], 40)
                paper.drawn.clear()
                await reply.draw()
                await paper.drawn.wait()
                found[case].append((len(drawn), changed))
            last = text.count("\n") - 1
            await paper.until(lambda last=last: last in drawn)  # type: ignore[misc]
            await reply.finish("stop")
            await reply.remove()

    monkeypatch.setattr(RowsView, "_draw", counted)
    gc.callbacks.append(look)
    try:
        await screen.on_paper(work)
    finally:
        gc.callbacks.remove(look)
    for case, (start, unit, full) in screen.CASES.items():
        pieces = -(-(len(start) + full // len(unit) * len(unit)) // screen.PIECE)
        assert len(found[case]) == pieces, case
        # On a busy machine a frame may come later and show what several pieces brought, but no row is drawn more often.
        assert all(rows <= changed for rows, changed in found[case]), case
    frames = sum(map(len, found.values()))
    assert 0 < len(looks) < 2 * frames
    assert looks.count(1) <= len(looks) / GARBAGE[1]
    assert looks.count(2) == 0


def test_the_engine_of_the_measure_streams_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-m", "chatapp.bench.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(protocol.encode(Load("/m.gguf")))
        child.stdin.write(protocol.encode(Generate("r", "c", (Message("user", "go"),))))
        child.stdin.flush()
        events = [protocol.decode_event(child.stdout.readline()) for _ in range(12)]
        assert isinstance(events[0], Ready)
        assert all(isinstance(event, Delta) for event in events[1:])
        child.stdin.write(protocol.encode(Cancel("r")))
        child.stdin.flush()
        last = next(event for line in child.stdout if not isinstance(event := protocol.decode_event(line), Delta))
        assert isinstance(last, Finished)
        child.stdin.close()


@pytest.mark.slow
def test_the_command_prints_what_it_found() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chatapp", "bench", "ui", "--quick", "--json"], capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    assert report["torch_imported"] is False
    assert len(report["figures"]) == 9
    assert done.returncode == (0 if report["good"] else 1)
