"""What the widgets around the transcript have in common, so that a reply that grows costs one layout and one paint."""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget


class LaidOutOnce(Widget):
    """A widget whose new size asks for no second layout: its children had their say in the first."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False, repaint=False)


class PlainContainer(LaidOutOnce):
    """A container that draws nothing but its ground: no border, no title."""

    BLANK = True
