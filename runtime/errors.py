"""What can go wrong for reasons that lie with a file, a request or the machine, not with the program."""

from __future__ import annotations

from typing import ClassVar

from runtime.protocol import Failure


class UserError(Exception):
    """One sentence for the user; `kind` says what it concerns."""

    kind: ClassVar[Failure] = "internal"
