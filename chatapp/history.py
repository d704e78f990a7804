"""Saved conversations as blocks of the transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast, get_args

from chatapp import context
from chatapp.block import ONLY, Block, Versions
from chatapp.blocks import Ending, NoticeBlock, PageBlock, ReplyBlock, UserBlock
from chatapp.entries import Entry
from chatapp.store import Node
from runtime.protocol import FinishReason


def blocks_of(thread: Sequence[Node], versions: Callable[[int], Versions] = lambda node: ONLY) -> list[Block]:
    """The blocks that show a thread; `versions` tells of a node's id its place among its versions."""
    return [_block(node, versions(node.id)) for node in thread]


def as_block(node: Node) -> ReplyBlock:
    """The block that shows a reply."""
    return _reply(node, ONLY)


def entries_of(thread: Sequence[Node], versions: Callable[[int], Versions] = lambda node: ONLY) -> list[Entry]:
    """The entries that show a thread: a long one has widgets only where they are seen."""

    def made(node: Node) -> Block:
        return _block(node, versions(node.id))

    return [Entry(partial(made, node), *_texts(node), node=node.id) for node in thread]


def _block(node: Node, versions: Versions) -> Block:
    if node.role == "user":
        return UserBlock(node.content, node.id, versions)
    if "cut" in node.meta:
        return PageBlock(context.told(node.meta, node.content))
    if node.role == "system":
        return NoticeBlock(f"System prompt: {node.content}" if node.content else "No system prompt from here on.")
    return _reply(node, versions)


def _reply(node: Node, versions: Versions) -> ReplyBlock:
    stats = node.meta.get("stats")
    stats = stats if isinstance(stats, dict) else {}
    return ReplyBlock(
        node.content,
        node.thought,
        _ending(node),
        thought_closed=node.thought_closed and not (node.status == "partial" and node.thought and not node.content),
        thinking_ms=_number(stats.get("thinking_ms")),
        thinking_tokens=round(_number(stats.get("thinking_tokens")) or 0) or None,
        node=node.id,
        versions=versions,
    )


def _texts(node: Node) -> tuple[str, ...]:
    if node.role == "system" or "cut" in node.meta:
        return ()
    return (node.content,) if node.role == "user" else (node.content, node.thought)


def _ending(node: Node) -> Ending:
    if node.status == "complete":
        reason = node.meta.get("reason")
        return cast(FinishReason, reason) if reason in get_args(FinishReason) else "stop"
    return node.status


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
