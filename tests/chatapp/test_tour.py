"""What the built-in model is told of the chat."""

from __future__ import annotations

from chatapp import settings, tour
from chatapp.commands import COMMANDS
from runtime.builtin.corpus.tour import DEFAULT_TOUR, read_tour


def test_the_file_is_current() -> None:
    current = DEFAULT_TOUR.read_text("utf-8") == tour.text()
    assert current, "Write it again: python -m chatapp.tour > runtime/builtin/tour.json"


def test_it_holds_every_command_and_setting_once() -> None:
    found = read_tour(DEFAULT_TOUR)
    assert [entry.name for entry in found.of_kind("command")] == [f"/{name}" for name in COMMANDS]
    assert [entry.name for entry in found.of_kind("setting")] == list(settings.FIELDS)
    assert {entry.name: entry.key for entry in found.of_kind("command")}["/new"] == "Ctrl+N"
    assert {"Enter", "Esc", "Ctrl+P"} <= {entry.name for entry in found.of_kind("key")}
