"""What is told of the turns as they go: the model that answers, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chatapp.status import Status
from runtime.protocol import ModelInfo


class Board:
    """`changed` is called when the status is another."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.status = Status()
        self.model: ModelInfo | None = None
        """The last that was ready, also while its engine restarts."""
        self._changed = changed

    def show(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            self._changed()

    def change(self, **figures: Any) -> None:
        """These fields of the status, and the others as they are."""
        self.show(replace(self.status, **figures))
