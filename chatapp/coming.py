"""A model that is opened while the old one goes on answering; what is sent after it is ready is the new one's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chatapp.backend import Backend
from chatapp.jobs import Open
from chatapp.options import ChatOptions
from chatapp.remote.address import label
from chatapp.view import View
from runtime.protocol import Failed, LoadProgress, Notice, Ready


class Coming:
    """One at a time. `state`: how far it is, in words; "" while none comes."""

    def __init__(self, backend: Backend, view: View) -> None:
        self.state = ""
        self._backend = backend
        self._view = view
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    def open(self, job: Open, options: ChatOptions, ended: Callable[[], None]) -> None:
        """Begin; `ended` is called when the model is ready, or will not be."""
        self._task = asyncio.create_task(self._run(job, options, ended))

    async def _run(self, job: Open, options: ChatOptions, ended: Callable[[], None]) -> None:
        name = label(job.path)
        self.state = f"loading {name}"
        try:
            async for event in self._backend.load(options.load(job.path)):
                match event:
                    case LoadProgress(done=done, total=total) if total > 0:
                        self.state = f"loading {name} {100 * done // total} %"
                        self._view.turns_changed()
                    case Notice(message=message):
                        self._view.say(message)
                    case Ready():
                        self._view.say(f"{name} answers from now on.")
                        if job.chosen:
                            self._view.model_chosen(job.path)
                    case Failed(message=message):
                        self._view.say(message, "error")
                    case _:
                        pass
        except Exception as error:
            self._view.report(error)
        finally:
            self._task, self.state = None, ""
            ended()
            self._view.turns_changed()
