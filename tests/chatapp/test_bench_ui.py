"""`qwenchat bench ui`: what it measures is there, and it is judged as it should be."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from chatapp.bench import screen, ui
from chatapp.bench.ui import Figure, Report
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
    assert 30 <= earlier < 60


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
