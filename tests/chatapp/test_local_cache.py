"""What the local backend is told of the states that are kept."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from pathlib import Path

from workers import SECONDS, Heard, Workers, ask, everything, kinds, received

from runtime.protocol import (
    CachedState,
    CacheReport,
    Failed,
    Finished,
    Load,
    Notice,
    Ready,
)

FIRST = CachedState("c1", 120, 3, 400, 500, in_memory=True)
SECOND = CachedState("c2", 80, 1, 0, 300, in_memory=False)
KEPT = [dataclasses.asdict(state) for state in (FIRST, SECOND)]


async def test_what_is_kept_is_asked_and_dropped(backend: Workers, tmp_path: Path) -> None:
    one = backend(kept=KEPT)
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == CacheReport((FIRST, SECOND), 400, 1000, 800, 2000)
    assert await one.drop_cache("c1") == CacheReport((SECOND,), 0, 1000, 300, 2000)
    assert await one.drop_cache(None) == CacheReport((), 0, 1000, 0, 2000)
    assert [(line["type"], line.get("conversation_id")) for line in received(tmp_path)[1:]] == [
        ("CacheList", None),
        ("CacheDrop", "c1"),
        ("CacheDrop", None),
    ]


async def test_it_is_told_in_its_turn_beside_loads_and_replies(backend: Workers) -> None:
    """Each of several questions and loads gets its own answer."""
    one = backend(kept=KEPT, load=[{"when": "bad", "fail": "No."}])
    await everything(one.load(Load("/m/q.gguf")))
    async with asyncio.timeout(SECONDS):
        reply, first, bad, good, second = await asyncio.gather(
            everything(one.generate(ask())),
            one.cache(),
            everything(one.load(Load("/m/bad.gguf"))),
            everything(one.load(Load("/m/good.gguf"))),
            one.drop_cache(None),
        )
    assert (kinds(reply)[-1], kinds(bad), kinds(good)) == (Finished, [Failed], [Ready])
    assert isinstance(first, CacheReport) and isinstance(second, CacheReport)
    assert (len(first.states), len(second.states)) == (2, 0)


async def test_a_worker_that_dies_over_the_question_answers_it_and_comes_back(backend: Workers, tmp_path: Path) -> None:
    one = backend(kept=KEPT, cache=[{"once": str(tmp_path / "died"), "signal": signal.SIGSEGV}])
    heard = Heard()
    one.on_event(heard)
    await everything(one.load(Load("/m/q.gguf")))
    assert await one.cache() == Failed("The engine crashed (SIGSEGV).", "worker")
    assert heard.events == [Notice("The engine is being restarted.")]
    await heard.until(Ready)
    assert isinstance(await one.cache(), CacheReport)


async def test_without_a_model_no_worker_is_started_to_tell_it(backend: Workers, tmp_path: Path) -> None:
    one = backend()
    assert await one.cache() == Failed("No model is open, and what is kept is kept of a model.", "load")
    assert not (tmp_path / "received").exists()


async def test_what_lies_on_disk_is_dropped_without_a_model(backend: Workers, tmp_path: Path) -> None:
    """And the load that comes right after finds the same worker."""
    one = backend(kept=KEPT, snapshots=tmp_path / "snapshots")
    async with asyncio.timeout(SECONDS):
        report, loaded = await asyncio.gather(one.drop_cache("c1"), everything(one.load(Load("/m/q.gguf"))))
    assert isinstance(report, CacheReport)
    assert kinds(loaded)[-1] is Ready
    first, second = received(tmp_path)
    assert first == {"type": "CacheDrop", "conversation_id": "c1", "snapshots": str(tmp_path / "snapshots")}
    assert second["type"] == "Load"


async def test_a_question_that_nobody_waits_for_any_more_leaves_the_next_its_answer(backend: Workers) -> None:
    one = backend(kept=KEPT, cache=[{"delay": 0.2}])
    await everything(one.load(Load("/m/q.gguf")))
    gone = asyncio.ensure_future(one.drop_cache("c1"))
    await asyncio.sleep(0)
    gone.cancel()
    report = await one.cache()
    assert isinstance(report, CacheReport)
    assert report.states == (SECOND,)


async def test_closing_answers_an_open_question(backend: Workers) -> None:
    one = backend(cache=[{"delay": 60}])
    await everything(one.load(Load("/m/q.gguf")))
    asking = asyncio.ensure_future(one.cache())
    await asyncio.sleep(0)
    await one.close()
    assert await asking == Failed("The engine was closed.", "worker")
