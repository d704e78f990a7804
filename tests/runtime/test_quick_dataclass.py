"""Classes made by the quick decorator do what those of the standard one do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from chatapp import cli, options, settings
from chatapp.status import Status
from runtime import protocol, quick_dataclass

CLASSES = [
    *(each for _, each in inspect.getmembers(protocol, dataclasses.is_dataclass)),
    *(options.ChatOptions, settings.Settings, cli.Arguments, Status),
]
DEFAULTS = {"int": 3, "str": "words", "bool": True, "float": 0.5}


def twin(cls: Any) -> Any:
    """The same fields through the standard decorator."""
    made = []
    for field in dataclasses.fields(cls):
        own = dataclasses.field(default=field.default, default_factory=field.default_factory, kw_only=field.kw_only)
        made.append((field.name, field.type, own))
    return dataclasses.make_dataclass(cls.__name__, made, frozen=True)


def values(cls: Any) -> dict[str, Any]:
    return {each.name: DEFAULTS.get(str(each.type), ("x",)) for each in dataclasses.fields(cls)}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_it_is_made_shown_compared_and_replaced_as_ever(cls: Any) -> None:
    standard, given = twin(cls), values(cls)
    ours, theirs = cls(**given), standard(**given)
    assert repr(ours) == repr(theirs)
    assert cls.__match_args__ == standard.__match_args__
    assert ours == cls(**given)
    assert ours != theirs
    assert hash(ours) == hash(cls(**given)) == hash(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert pickle.loads(pickle.dumps(ours)) == copy.copy(ours) == copy.deepcopy(ours) == ours
    for name in given:
        changed = dataclasses.replace(ours, **{name: "other"})
        assert getattr(changed, name) == "other"
        assert changed != ours
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(ours, name, "other")
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(ours, name)
    needed = {each.name for each in dataclasses.fields(standard) if is_needed(each)}
    least = {name: given[name] for name in needed}
    assert dataclasses.asdict(cls(**least)) == dataclasses.asdict(standard(**least))


def is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@quick_dataclass.dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: list[int] = dataclasses.field(default_factory=list)


@quick_dataclass.dataclass(frozen=True, slots=True, eq=False)
class Same:
    value: int


def test_each_instance_gets_a_default_of_its_own() -> None:
    assert Pair(1).right is not Pair(1).right


def test_without_eq_only_the_same_one_is_equal() -> None:
    one = Same(1)
    assert one == one
    assert one != Same(1)
    assert {one: 1}[one] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: Pair(),
        lambda: Pair(1, [], 2),  # type: ignore[call-arg]
        lambda: Pair(1, left=2),  # type: ignore[misc]
        lambda: Pair(1, middle=2),  # type: ignore[call-arg]
        lambda: settings.Settings("model"),  # type: ignore[misc]
    ],
)
def test_what_does_not_fit_the_fields_raises(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


def test_what_it_cannot_make_is_refused() -> None:
    with pytest.raises(TypeError, match="frozen"):
        quick_dataclass.dataclass(frozen=False, slots=True)


def test_a_field_that_is_not_shown_or_not_compared_is_not() -> None:
    def of(decorate: Callable[..., Any]) -> Any:
        @decorate(frozen=True, slots=True)
        class Account:
            name: str
            key: str = dataclasses.field(repr=False)
            seen: int = dataclasses.field(default=0, compare=False)

        return Account

    quick, standard = of(quick_dataclass.dataclass), of(dataclasses.dataclass)
    shown = [repr(each("me", "s3cret", 1)).rpartition(".")[2] for each in (quick, standard)]
    assert shown == ["Account(name='me', seen=1)"] * 2
    for each in (quick, standard):
        assert each("me", "k", 1) == each("me", "k", 2)
        assert hash(each("me", "k", 1)) == hash(each("me", "k", 2))
        assert each("me", "k") != each("me", "other")


def test_a_method_of_the_class_s_own_stays() -> None:
    @quick_dataclass.dataclass(frozen=True, slots=True)
    class Account:
        key: str

        def __repr__(self) -> str:
            return "Account(***)"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    account = Account("s3cret")
    assert repr(account) == "Account(***)"
    assert account == Account("other")
    assert hash(account) == 7


def numbered(decorate: Callable[..., Any]) -> tuple[Any, Any]:
    @decorate(order=True, unsafe_hash=True)
    class Numbered:
        number: int
        names: list[str] = dataclasses.field(default_factory=list, hash=False)
        half: float = dataclasses.field(init=False, repr=False)
        offset: int = 0

        def __post_init__(self) -> None:
            self.half = self.number / 2 + self.offset

    @decorate(frozen=True, slots=True)
    class Fixed:
        name: str
        rest: tuple[int, ...] = ()

    return Numbered, Fixed


def test_methods_that_are_compiled_at_their_first_call_do_the_same() -> None:
    (numbered_later, fixed_later), (numbered_now, fixed_now) = map(
        numbered, (quick_dataclass.standard_dataclass, dataclasses.dataclass)
    )
    found: list[list[Any]] = []
    for make, fixed in ((numbered_later, fixed_later), (numbered_now, fixed_now)):
        one, two = make(1, offset=5), make(number=2, names=["x"])
        word = fixed("a", rest=(1,))
        found.append([repr(one), repr(two), one == make(1, offset=5), one == two, one < two, one >= two])
        found[-1] += [hash(one), hash(two), one.half, two.half, repr(word), hash(word), word == fixed("a", (1,))]
        found[-1] += [dataclasses.asdict(one), dataclasses.replace(word, name="b").name, make.__init__.__qualname__]
        for fails in (make, lambda fixed=fixed: fixed("a", (), 3), lambda word=word: setattr(word, "name", "c")):
            with pytest.raises((TypeError, dataclasses.FrozenInstanceError)) as error:
                fails()
            found[-1].append(str(error.value))
    names = [[str(each).replace("<lambda>", "") for each in row] for row in found]
    assert names[0] == names[1]


def test_each_is_compiled_once_and_only_if_it_is_called() -> None:
    made, _ = numbered(quick_dataclass.standard_dataclass)
    below = type("Below", (made,), {})
    for name in ("__init__", "__eq__", "__hash__"):
        assert not is_compiled(made, name)
    assert below(3) == below(3)
    assert is_compiled(made, "__init__")
    assert is_compiled(made, "__eq__")
    assert not is_compiled(made, "__hash__")
    assert "__init__" not in vars(below)


@pytest.mark.skipif(not hasattr(dataclasses, "_create_fn"), reason="this Python compiles all methods together")
def test_the_standard_decorator_is_as_it_was_afterwards() -> None:
    before = dataclasses._create_fn  # type: ignore[attr-defined]
    with quick_dataclass.compiled_later():
        assert dataclasses._create_fn is not before  # type: ignore[attr-defined]
    assert dataclasses._create_fn is before  # type: ignore[attr-defined]


def is_compiled(cls: type, name: str) -> bool:
    return bool(vars(cls)[name].__code__.co_filename == "<string>")
