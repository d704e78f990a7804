"""Find a model, see what fits, fetch it: the screen behind /models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.field import Line
from chatapp.figures import size
from chatapp.hub import Hub, HubError
from chatapp.key_names import key_of, moves
from chatapp.paths import BUILT_IN
from chatapp.sanitize import clean_line
from chatapp.wizard_pages import (
    Row,
    download_row,
    heading,
    local_row,
    machine_line,
    narrowed,
    note,
    remote_row,
    repo_row,
)
from runtime.hub.protocol import Download, LocalModel, RemoteModel
from runtime.protocol import BUILT_IN_MODEL


@dataclass(slots=True)
class _Page:
    """`fill` makes its rows; a page without is made of `rows` alone."""

    title: str
    fill: Callable[[], Awaitable[None]] | None = None
    rows: list[Row] = field(default_factory=list)
    query: str = ""


_MOMENT = note("One moment…")
"""On a page that is not yet filled."""
_FRAME = 8
"""Columns beside a row: the frame, what is around it and inside it."""


class Wizard(ModalScreen[str]):
    """Ends with the path of the model to open, or None. Downloads go on after it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="wizard.back", priority=True, show=False),
        Binding("ctrl+c", "dismiss(None)", "Close", id="wizard.close", priority=True, show=False),
        *moves("wizard"),
        Binding("pagedown", "move(8)", "Further", id="wizard.page_down", priority=True, show=False),
        Binding("pageup", "move(-8)", "Back", id="wizard.page_up", priority=True, show=False),
        Binding("delete", "remove", "Remove", id="wizard.remove", priority=True, show=False),
    ]

    def __init__(
        self, hub: Hub, opened: str | None, folders: Sequence[str], context_length: int | None, kv_type: str
    ) -> None:
        """`opened`: the path of the model that answers now."""
        super().__init__()
        self._hub = hub
        self._opened = opened
        self._place = folders, context_length, kv_type
        self._pages: list[_Page] = []
        self._local: tuple[LocalModel, ...] = ()
        self._stopped: dict[str, Download] = {}  # downloads of earlier sessions
        self._advice: tuple[RemoteModel, ...] | str | None = None  # a sentence if there is none; None: not yet known
        self._shown: dict[str, Row] = {}
        self._moved = False  # on the page that is shown

    def compose(self) -> ComposeResult:
        with Vertical(id="wizard"):
            yield Label("Models", id="wizard-title", markup=False)
            yield Label("", id="wizard-machine", markup=False)
            yield Line(placeholder="Type to narrow the list, or to search the hub", id="wizard-search")
            yield OptionList(id="wizard-list", markup=False)
            yield Static("", id="wizard-about", markup=False)
            yield Label(self._keys(), id="wizard-keys", markup=False)

    def _keys(self) -> str:
        remove, back = key_of(self, "wizard.remove", "Delete"), key_of(self, "wizard.back", "Esc")
        told = f"Enter chooses · {back} back · type to narrow or search · {remove} removes"
        if len(told) + _FRAME > self.app.size.width:
            told = told.replace(" · type to narrow or search", "")  # which the line above says
        return told

    def on_mount(self) -> None:
        self._deaf = self._hub.on_progress(self._progress)
        self._go(_Page("Models", self._look))
        self._beside(self._advise)

    def on_resize(self) -> None:
        if self._pages:
            self.query_one("#wizard-keys", Label).update(self._keys())
            self.call_after_refresh(self._list)

    def on_unmount(self) -> None:
        self._deaf()

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come before the list is there move nothing."""
        return bool(self.query(OptionList))

    async def action_back(self) -> None:
        if len(self._pages) == 1:
            self.dismiss(None)
            return
        self._pages.pop()
        page = self._pages[-1]
        self._draw(page.query)
        if page.fill is not None and len(self._pages) == 1:
            self._beside(page.fill)

    def action_move(self, step: int) -> None:
        self._moved = True
        options = self.query_one(OptionList)
        for _ in range(abs(step)):
            if step > 0:
                options.action_cursor_down()
            else:
                options.action_cursor_up()

    def action_remove(self) -> None:
        if self.query_one(Input).value:
            raise SkipAction  # then the key is the input's
        row = self._highlighted()
        if row and row.delete:
            self._beside(row.delete)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if self._pages and event.value != self._pages[-1].query:
            self._pages[-1].query = event.value
            self._list()

    @on(Input.Submitted)
    def _take(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        row = self._shown.get(event.option.id or "")
        if row and row.act:
            self._beside(row.act)

    @on(OptionList.OptionHighlighted)
    def _tell_about(self) -> None:
        row = self._highlighted()
        self.query_one("#wizard-about", Static).update(clean_line(row.about, 600) if row else "")

    # Pages.

    async def _look(self) -> None:
        folders, context_length, kv_type = self._place
        here = await self._hub.look(folders, context_length, kv_type)
        self._local = here.models
        self._stopped = {download.key: download for download in here.downloads}
        self.query_one("#wizard-machine", Label).update(machine_line(here.machine))
        self._home()

    async def _advise(self) -> None:
        try:
            self._advice = await self._hub.advise()
        except HubError as error:
            self._advice = str(error)
        self._home()

    def _home(self) -> None:
        """Make the rows of the first page from what is known by now."""
        rows = [heading("On this machine")]
        rows += [self._local_row(model) for model in self._local] or [note("None but the built-in one.")]
        downloads = {**self._stopped, **self._hub.downloads}
        going = [download for download in downloads.values() if download.state != "done"]
        if going:
            rows += [heading("Downloads"), *map(self._download_row, going)]
        rows.append(heading("Suits this machine"))
        if self._advice is None:
            rows.append(note("Asking the hub…"))
        elif isinstance(self._advice, str):
            rows.append(note(self._advice))
        else:
            rows += [self._remote_row(file, best=i == 0) for i, file in enumerate(self._advice)]
            rows = rows if self._advice else [*rows, note("Nothing that the hub has fits on this machine.")]
        rows.append(heading("More"))
        rows.append(self._simple("catalogue", "All models of the family", self._show_catalogue))
        rows.append(self._simple("updates", "Look for updates of what was downloaded", self._show_updates))
        if self._opened != str(BUILT_IN_MODEL):
            rows.append(self._simple("built-in", "The built-in model", partial(self._open, BUILT_IN)))
        self._pages[0].rows = rows
        if len(self._pages) == 1:
            self._list()

    @staticmethod
    def _simple(key: str, text: str, act: Callable[[], Awaitable[None]]) -> Row:
        return Row(key, Content(f"  {text}"), "", text, act)

    def _local_row(self, model: LocalModel) -> Row:
        act = None if model.problem else partial(self._open, model.path)
        return local_row(
            model, model.path == self._opened, act, partial(self._ask_delete, model) if model.repo else None
        )

    def _download_row(self, download: Download) -> Row:
        return download_row(download, partial(self._choose, download.key), partial(self._ask_discard, download.key))

    def _remote_row(self, file: RemoteModel, *, best: bool = False, repo: bool = True) -> Row:
        act = partial(self._open, file.local) if file.local else partial(self._fetch, file)
        return replace(remote_row(file, None if file.problem else act, repo=repo), best=best)

    async def _show_catalogue(self) -> None:
        await self._show_repos("Models of the family", "")

    async def _search(self, query: str) -> None:
        await self._show_repos(f"“{query}” on the hub", query)

    async def _show_repos(self, title: str, query: str) -> None:
        async def fill() -> None:
            repos = await self._hub.browse(query)
            page.rows = [repo_row(repo, partial(self._show_files, repo.repo)) for repo in repos]
            page.rows = page.rows or [note("Nothing is called so.")]
            self._list()

        page = _Page(title, fill)
        self._go(page)

    async def _show_files(self, repo: str) -> None:
        async def fill() -> None:
            files = await self._hub.files(repo)
            page.rows = [self._remote_row(file, repo=False) for file in files] or [note("No model that qwenchat runs.")]
            self._list()

        page = _Page(repo, fill)
        self._go(page)

    async def _show_updates(self) -> None:
        async def fill() -> None:
            files = await self._hub.updates()
            page.rows = [self._remote_row(file) for file in files] or [note("What was downloaded is what the hub has.")]
            self._list()

        page = _Page("Updates", fill)
        self._go(page)

    # What rows do.

    async def _open(self, path: str) -> None:
        self.dismiss(path)

    async def _fetch(self, file: RemoteModel, *, sure: bool = False) -> None:
        if file.fit and file.fit.place == "no" and not sure:
            await self._ask(
                f"{file.name} {file.fit.sentence}.", "Download it all the same", partial(self._fetch, file, sure=True)
            )
            return
        page = self._pages[-1]
        await self._hub.fetch(file.repo, file.file)
        self._stopped.pop(file.key, None)
        if page is self._pages[-1]:
            del self._pages[1:]
            self._draw("")
        self._home()

    async def _choose(self, key: str) -> None:
        download = self._hub.downloads.get(key) or self._stopped[key]
        going = download.state in ("running", "checking")
        first = ("Pause", self._pause) if going else ("Go on", self._resume)
        rows = [
            self._simple("first", first[0], partial(first[1], download)),
            self._simple("discard", "Cancel, and delete what has arrived", partial(self._discard, key)),
        ]
        self._go(_Page(download.file, rows=rows))

    async def _pause(self, download: Download) -> None:
        page = self._pages[-1]
        await self._hub.pause(download.key)
        await self._leave(page)

    async def _resume(self, download: Download) -> None:
        page = self._pages[-1]
        await self._hub.fetch(download.repo, download.file)
        self._stopped.pop(download.key, None)
        await self._leave(page)

    async def _ask_discard(self, key: str) -> None:
        await self._ask("Cancel this download?", "Cancel, and delete what has arrived", partial(self._discard, key))

    async def _discard(self, key: str) -> None:
        page = self._pages[-1]
        await self._hub.discard(key)
        self._stopped.pop(key, None)
        await self._leave(page)

    async def _ask_delete(self, model: LocalModel) -> None:
        await self._ask(
            f"Delete {model.name}?", f"Delete it: {size(model.bytes)} become free", partial(self._delete, model)
        )

    async def _delete(self, model: LocalModel) -> None:
        page = self._pages[-1]
        await self._hub.remove(model)
        await self._leave(page)

    async def _ask(self, title: str, yes: str, act: Callable[[], Awaitable[None]]) -> None:
        self._go(_Page(title, rows=[self._simple("no", "No", self.action_back), self._simple("yes", yes, act)]))

    # Inner workings.

    async def _leave(self, page: _Page) -> None:
        """What was asked for on a page is done: back, unless the user has gone from there meanwhile."""
        if page is self._pages[-1]:
            await self.action_back()
        elif len(self._pages) == 1:
            self._beside(self._look)

    def _progress(self, download: Download) -> None:
        if not self.is_mounted:
            return
        row = self._download_row(download)
        if row.key in self._shown and download.state not in ("done", "paused", "failed"):
            self._shown[row.key] = row
            self.query_one(OptionList).replace_option_prompt(row.key, row.shown(self._room))
        elif download.state == "done":
            if isinstance(self._advice, tuple):
                arrived = {download.key: download.path}
                self._advice = tuple(replace(f, local=arrived.get(f.key, f.local)) for f in self._advice)
            self._beside(self._look)
        else:
            self._home()

    def _go(self, page: _Page) -> None:
        self._pages.append(page)
        page.rows = page.rows or [_MOMENT]
        self._draw("")
        if page.fill is not None:
            self._beside(page.fill, page)

    def _draw(self, query: str) -> None:
        page = self._pages[-1]
        page.query = query
        self._moved = False
        self.query_one("#wizard-title", Label).update(clean_line(page.title))
        self.query_one(Input).value = query
        self._list()

    def _list(self) -> None:
        """Show the page's rows, those that the text leaves, with the highlight where it was."""
        page, options = self._pages[-1], self.query_one(OptionList)
        before = self._highlighted()
        rows = narrowed(page.rows, page.query)
        if query := page.query.strip():
            rows.append(self._simple("search", f"Search the hub for “{query}”", partial(self._search, query)))
        self._shown = {row.key: row for row in rows}
        options.clear_options()
        options.add_options([Option(row.shown(self._room), id=row.key, disabled=not row.usable) for row in rows])
        usable = [index for index, row in enumerate(rows) if row.act or row.delete]
        same = [index for index in usable if self._moved and before and rows[index].key == before.key]
        if usable:
            options.highlighted = (same or usable)[0]
        self._tell_about()

    @property
    def _room(self) -> int:
        """Columns of a row."""
        return self.query_one(OptionList).size.width - 2

    def _highlighted(self) -> Row | None:
        option = self.query_one(OptionList).highlighted_option
        return self._shown.get(option.id or "") if option else None

    def _beside(self, work: Callable[[], Awaitable[None]], fills: _Page | None = None) -> None:
        """`fills`: the page that the work is to fill."""
        self.run_worker(self._guard(work, fills), exit_on_error=False)

    async def _guard(self, work: Callable[[], Awaitable[None]], fills: _Page | None) -> None:
        try:
            await work()
        except HubError as error:
            if not self.is_mounted:
                return
            if fills is not None and fills.rows == [_MOMENT]:
                fills.rows = [note(str(error))]
                self._list()
            self.query_one("#wizard-about", Static).update(clean_line(str(error), 600))
