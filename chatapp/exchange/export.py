"""A conversation as a text that others can read."""

from __future__ import annotations

import html
import json
import re
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from chatapp.records import title_of
from chatapp.store import Conversation, Node, Store

Format = Literal["md", "html", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
MARK = "qwenchat conversation"
VERSION = 1
_LONGEST_NAME = 60  # characters
_DEEPEST = 60  # levels of lists and quotes inside one another, of which each takes two or one


@dataclass(frozen=True, slots=True)
class Exported:
    """`tree` is every message, parents first; `thread` what is shown of them."""

    conversation: Conversation
    thread: list[Node]
    tree: list[Node]

    @classmethod
    def of(cls, store: Store, conversation: Conversation) -> Exported:
        return cls(conversation, store.thread(conversation.id), store.nodes(conversation.id))

    def text(self, format: Format, *, thoughts: bool) -> str:
        """Markdown and HTML hold what is shown, JSON every version; thoughts only if asked for."""
        match format:
            case "md":
                return as_markdown(self.conversation, self.thread, thoughts=thoughts)
            case "html":
                return as_html(self.conversation, self.thread, thoughts=thoughts)
            case "json":
                return as_json(self.conversation, self.tree, thoughts=thoughts)


def file_name(conversation: Conversation, format: Format) -> str:
    """A name for its file that every system takes."""
    plain = unicodedata.normalize("NFC", title_of(conversation))
    words = re.sub(r"[^\w\-]+", "-", plain).strip("-_")[:_LONGEST_NAME].strip("-_")
    return f"{words or 'conversation'}.{format}"


def as_json(conversation: Conversation, tree: Sequence[Node], *, thoughts: bool) -> str:
    """All of it, as `read.conversation` takes it; messages are numbered from 1."""
    numbers = {node.id: number for number, node in enumerate(tree, start=1)}
    messages = []
    for node in tree:
        meta = {**node.meta}
        if meta.get("continues") in numbers:
            meta["continues"] = numbers[meta["continues"]]
        if isinstance(cut := meta.get("cut"), dict) and cut.get("from") in numbers:
            meta["cut"] = {**cut, "from": numbers[cut["from"]]}
        message: dict[str, Any] = {
            "id": numbers[node.id],
            "parent": numbers.get(node.parent) if node.parent is not None else None,
            "role": node.role,
            "content": node.content,
        }
        if thoughts and node.thought:
            message["thought"] = node.thought
        message |= {"status": node.status, "thought_closed": node.thought_closed, "created": node.created, "meta": meta}
        messages.append(message)
    whole = {
        "format": MARK,
        "version": VERSION,
        "title": conversation.title,
        "titled": conversation.titled,
        "name": conversation.name,
        "model": conversation.model,
        "created": conversation.created,
        "updated": conversation.updated,
        "pinned": conversation.pinned,
        "tags": list(conversation.tags),
        "head": numbers.get(conversation.head) if conversation.head is not None else None,
        "messages": messages,
    }
    return json.dumps(whole, ensure_ascii=False, indent=2) + "\n"


def as_markdown(conversation: Conversation, thread: Sequence[Node], *, thoughts: bool) -> str:
    """What was said, as it was written, under a heading for each speaker."""
    parts = [f"# {_one_line(title_of(conversation))}", f"*{_when(conversation.created)}*"]
    for node in thread:
        parts.append(f"## {_speaker(node)}")
        if thoughts and node.thought.strip():
            quoted = "\n".join(f"> {line}".rstrip() for line in node.thought.strip().split("\n"))
            parts.append(f"> *Thought*\n>\n{quoted}")
        if node.content.strip():
            parts.append(_closed(node.content.strip("\n")))
        if remark := _remark(node):
            parts.append(f"*{remark}*")
    return "\n\n".join(parts) + "\n"


def as_html(conversation: Conversation, thread: Sequence[Node], *, thoughts: bool) -> str:
    """One page that loads nothing and runs nothing; what was said cannot become a part of it."""
    title = html.escape(_one_line(title_of(conversation)))
    parts = []
    for node in thread:
        inside = []
        if thoughts and node.thought.strip():
            thought = html.escape(node.thought.strip())
            inside.append(f"<details><summary>Thought</summary><div class=plain>{thought}</div></details>")
        if node.role == "assistant":
            inside.append(_rendered(node.content))
        elif node.content:
            inside.append(f"<div class=plain>{html.escape(node.content)}</div>")
        if remark := _remark(node):
            inside.append(f"<p class=remark>{html.escape(remark)}</p>")
        parts.append(f"<section class={node.role}><h2>{_speaker(node)}</h2>\n{''.join(inside)}\n</section>")
    body = "\n".join(parts)
    when = html.escape(_when(conversation.created))
    return _PAGE.format(title=title, when=when, style=_STYLE + _code_style(), body=body)


def _rendered(markdown: str) -> str:
    from markdown_it import MarkdownIt  # only those who export wait for it

    options = {"html": False, "highlight": _highlighted, "maxNesting": _DEEPEST}
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("image")
    tokens = parser.parse(markdown)
    if any(token.level >= _DEEPEST - 5 for token in tokens):  # close to where the parser drops the text
        return f"<div class=plain>{html.escape(markdown)}</div>"
    return str(parser.renderer.render(tokens, parser.options, {}))


def _highlighted(code: str, language: str, attributes: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def _code_style() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="friendly").get_style_defs("pre")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\npre {{ background: var(--code) }}\n"


def _closed(markdown: str) -> str:
    """With a fence that was left open closed, so that it does not swallow what follows."""
    fence = ""
    for line in markdown.split("\n"):
        match = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if match is None:
            continue
        if not fence:
            fence = match[1]
        elif match[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
    return f"{markdown}\n{fence}" if fence else markdown


def _speaker(node: Node) -> str:
    return {"user": "You", "assistant": "Reply", "system": "System prompt"}[node.role]


def _remark(node: Node) -> str:
    if node.role == "system" and not node.content.strip():
        return "no system prompt from here on"
    if node.status == "complete":
        return "cut at the limit of tokens" if node.meta.get("reason") == "length" else ""
    return {"cancelled": "stopped", "failed": "broken off", "partial": "unfinished"}[node.status]


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _one_line(text: str) -> str:
    return " ".join(text.split())


_STYLE = """
:root { color-scheme: light dark; --ink: #23242c; --soft: #6d6f7b; --ground: #fcfcfd; --card: #f1f1f6; --line: #dcdce4;
  --accent: #5b5bd6; --code: #f1f1f6 }
@media (prefers-color-scheme: dark) { :root { --ink: #dcdce6; --soft: #8f91a0; --ground: #12131a; --card: #1a1c26;
  --line: #2d303d; --accent: #9a9aff; --code: #1a1c26 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 3rem 1.25rem 5rem; max-width: 46rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: anywhere }
header { border-bottom: 1px solid var(--line); margin-bottom: 2rem }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 }
header p, .remark { color: var(--soft); font-size: .875rem }
section { margin: 1.75rem 0 }
section > h2 { font-size: .8rem; letter-spacing: .04em; color: var(--soft); margin: 0 0 .4rem }
.user { background: var(--card); border-left: 3px solid var(--accent); border-radius: 4px; padding: .8rem 1rem }
.system { color: var(--soft); font-size: .9rem }
.plain { white-space: pre-wrap }
details { color: var(--soft); font-size: .9rem; margin-bottom: .8rem }
pre { padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; font-size: .875rem; line-height: 1.5 }
code { font-family: ui-monospace, monospace; font-size: .9em }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border: 1px solid var(--line); padding: .35rem .7rem; text-align: left }
blockquote { margin: 1rem 0; padding-left: 1rem; border-left: 3px solid var(--line); color: var(--soft) }
a { color: var(--accent) }
"""
_PAGE = """<!DOCTYPE html>
<html lang="und">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{when}</p></header>
{body}
</body>
</html>
"""
