"""The chat up to the first time that it draws its composer; prints as JSON what it took to get there."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from chatapp import __main__ as program
from chatapp.options import ChatOptions
from chatapp.settings import Settings
from chatapp.store import Store

QwenChat = program._screen()

import textual.css.stylesheet  # noqa: E402
from textual.dom import DOMNode  # noqa: E402
from textual.drivers.headless_driver import HeadlessDriver  # noqa: E402
from textual.widget import Widget  # noqa: E402

parsed: list[str] = []
styled: list[str] = []
ours = Path(program.__file__).with_name("app.tcss").read_text("utf-8")
parse = textual.css.stylesheet.parse


def counted(scope: str, css: str, *rest: object, **named: object) -> object:
    parsed.append(css)
    return parse(scope, css, *rest, **named)  # type: ignore[arg-type]


apply = textual.css.stylesheet.Stylesheet.apply


def noted(sheet: object, node: DOMNode, **named: object) -> None:
    if isinstance(node, Widget):
        styled.append(type(node).__name__)
    apply(sheet, node, **named)  # type: ignore[arg-type]


class Painted(HeadlessDriver):
    """A terminal in which all is drawn, up to the composer."""

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        if "essage…" in data and not self._app._exit:
            app = self._app
            found = {
                "modules": sorted(sys.modules),
                "parsed": sorted(map(parsed.count, parsed)),
                "characters": sum(map(len, set(parsed))),
                "compiled": sorted(
                    f"{name}.{each.__qualname__}"
                    for name, module in list(sys.modules.items())
                    if name.startswith(("chatapp.", "runtime.", "textual.", "rich."))
                    for each in vars(module).values()
                    if isinstance(each, type) and each.__module__ == name
                    # what the standard decorator has compiled comes from no file
                    if "__dataclass_fields__" in vars(each) and each.__init__.__code__.co_filename == "<string>"
                ),
                "styled": sorted(styled),
                "parsed_ours": sum(css == ours for css in parsed),
                "widgets": len(app.screen.walk_children()),
                "opened": app.chat.opened.is_set(),  # type: ignore[attr-defined]
            }
            print(json.dumps(found), file=sys.__stdout__)
            app.exit()


def main(folder: Path) -> None:
    textual.css.stylesheet.parse = counted  # type: ignore[assignment]
    textual.css.stylesheet.Stylesheet.apply = noted  # type: ignore[assignment, method-assign]
    store = Store(folder / "conversations.db")
    app = QwenChat(program._backend({}), store, Settings(), ChatOptions())
    app.driver_class = Painted
    asyncio.run(app.run_async(size=(100, 30)))
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
