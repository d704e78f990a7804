"""Saved conversations as blocks of the transcript, and as choices in a list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast, get_args

from chatapp import context
from chatapp.blocks import Block, Ending, NoticeBlock, PageBlock, ReplyBlock, UserBlock
from chatapp.picker import Choice
from chatapp.store import Conversation, Node
from runtime.protocol import FinishReason


def blocks_of(thread: Sequence[Node]) -> list[Block]:
    """The blocks that show a thread."""
    return [_block(node) for node in thread]


def title_of(conversation: Conversation) -> str:
    """What it is called in a list."""
    return conversation.name or conversation.title or "(untitled)"


def choices_of(conversations: Sequence[Conversation]) -> list[Choice]:
    """Each conversation with its title and the time it was last written to."""
    return [
        Choice(each.id, title_of(each), time.strftime("%x %H:%M", time.localtime(each.updated)))
        for each in conversations
        if each.head is not None
    ]


def _block(node: Node) -> Block:
    if node.role == "user":
        return UserBlock(node.content)
    if "cut" in node.meta:
        return PageBlock(context.told(node.meta, node.content))
    if node.role == "system":
        return NoticeBlock(f"System prompt: {node.content}" if node.content else "No system prompt from here on.")
    stats = node.meta.get("stats")
    stats = stats if isinstance(stats, dict) else {}
    return ReplyBlock(
        node.content,
        node.thought,
        _ending(node),
        thought_closed=node.thought_closed and not (node.status == "partial" and node.thought and not node.content),
        thinking_ms=_number(stats.get("thinking_ms")),
        thinking_tokens=round(_number(stats.get("thinking_tokens")) or 0) or None,
    )


def _ending(node: Node) -> Ending:
    if node.status == "complete":
        reason = node.meta.get("reason")
        return cast(FinishReason, reason) if reason in get_args(FinishReason) else "stop"
    return node.status


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
