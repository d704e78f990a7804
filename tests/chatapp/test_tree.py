"""Which messages are versions of one another, and where a version leads."""

from __future__ import annotations

from chatapp.tree import Tree, Twig


def grown(
    *twigs: tuple[int, int | None, str]
    | tuple[int, int | None, str, int | None]
    | tuple[int, int | None, str, int | None, bool],
) -> Tree:
    roles = {"u": "user", "a": "assistant", "s": "system"}
    return Tree(Twig(id, parent, roles[role], *rest) for id, parent, role, *rest in twigs)  # type: ignore[arg-type, misc]


def test_replies_to_one_message_are_versions() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 1, "a"), (4, 3, "u"))
    assert tree.versions(2) == tree.versions(3) == [2, 3]
    assert tree.versions(1) == [1]
    assert tree.versions(4) == [4]


def test_a_system_prompt_between_parts_no_versions() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 1, "s"), (4, 3, "a"), (5, None, "s"), (6, 5, "u"))
    assert tree.versions(2) == [2, 4]
    assert tree.versions(1) == [1, 6]
    assert tree.versions(3) == [3]


def test_a_message_and_a_reply_are_no_versions_of_each_other() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 1, "u"))
    assert tree.versions(2) == [2]


def test_a_reply_that_another_continues_is_no_version_but_where_it_is_shown() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 1, "a", 2), (4, 1, "a"))
    assert tree.versions(3) == [3, 4]
    assert tree.versions(2) == [2, 3, 4]


def test_a_version_leads_to_the_newest_message_below_it() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 2, "u"), (4, 3, "a"), (5, 2, "u"), (6, 1, "a"), (7, 3, "a", 4))
    assert tree.leaf(1) == 7
    assert tree.leaf(2) == 7
    assert tree.leaf(5) == 5
    assert tree.leaf(6) == 6


def test_a_reply_that_was_to_be_continued_without_room_for_it_is_a_version_still() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 1, "a", 2, True), (4, 1, "a"))
    assert tree.versions(4) == [2, 4]


def test_a_message_that_had_no_room_is_no_version_and_leads_nowhere() -> None:
    tree = grown((1, None, "u"), (2, 1, "a"), (3, 2, "u"), (4, 3, "a"), (5, 2, "u"), (6, 5, "a", None, True))
    assert tree.versions(3) == [3]
    assert tree.versions(5) == [3, 5]  # where it is shown it is one
    assert tree.leaf(1) == 4
    tree.add(Twig(7, 5, "assistant"))  # asked again, with more room
    assert tree.versions(3) == [3, 5]
    assert tree.versions(7) == [7]
    assert tree.leaf(1) == 7
    tree.refuse(7)
    assert tree.versions(3) == [3]
