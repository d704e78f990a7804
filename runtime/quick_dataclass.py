"""`dataclass` for what is defined before the first paint: the same to its users, and made in a tenth of the time.

The standard one compiles six methods for each frozen class, which for all classes of the chat took an eighth of its
start. Here they are closures over the names of the fields. An instance takes longer to make, so what is made by the
thousand stays with the standard one. Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, FrozenInstanceError
from functools import partial
from typing import TYPE_CHECKING, Any, Never

if TYPE_CHECKING:
    from dataclasses import dataclass
    from dataclasses import dataclass as standard_dataclass
else:

    def standard_dataclass(**options: bool) -> Callable[[type], type]:
        """The standard decorator, whose methods are compiled when they are first called: for what there are many of."""

        def made(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or f"{cls.__name__}."
            with compiled_later():
                return dataclasses.dataclass(**options)(cls)

        return made

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False, eq: bool = True) -> Callable[[type], type]:
        """A decorator for frozen classes with slots, whose fields are all of the constructor and compared."""
        if not (frozen and slots):
            raise TypeError("only frozen classes with slots: for others there is the standard dataclass")

        def made(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or f"{cls.__name__}."  # else a signature is made for it
            make = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)
            own = frozenset(vars(cls))
            return _equipped(make(cls), eq, own)

        return made


__all__ = ["compiled_later", "dataclass", "standard_dataclass"]


@contextmanager
def compiled_later() -> Iterator[None]:
    """Standard dataclasses that are defined within this compile each of their methods when it is first called.

    From Python 3.13 on, where the methods of a class are compiled together, it does nothing.
    """
    standard = getattr(dataclasses, "_create_fn", None)
    if standard is None:
        yield
        return

    def create(name: str, *words: Any, **named: Any) -> Callable[..., Any]:
        return _compiled_at_call(name, partial(standard, name, *words, **named))

    dataclasses._create_fn = create  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dataclasses._create_fn = standard  # type: ignore[attr-defined]


def _compiled_at_call(name: str, compile_it: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    def method(self: Any, /, *values: Any, **named: Any) -> Any:
        made = compile_it()
        made.__qualname__ = method.__qualname__
        for cls in type(self).__mro__:
            if cls.__dict__.get(name) is method:
                setattr(cls, name, made)
        return made(self, *values, **named)

    method.__name__ = name
    return method


def _equipped(cls: type[Any], eq: bool, own: frozenset[str]) -> type[Any]:
    """The class with all methods but its `own`."""
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    write = {name: cls.__dict__[name].__set__ for name in names}  # those of the slots, which know no freezing
    factories = {field.name: field.default_factory for field in fields if field.default_factory is not MISSING}
    defaults = {field.name: field.default for field in fields if field.default is not MISSING}
    shown = tuple(field.name for field in fields if field.repr)  # a key is not
    compared = tuple(field.name for field in fields if field.compare)
    places: tuple[str, ...] = cls.__match_args__

    def init(self: Any, /, *values: Any, **named: Any) -> None:
        if len(values) > len(places):
            raise TypeError(f"{cls.__name__} takes {len(places)} values, not {len(values)}")
        for name, value in zip(places, values, strict=False):
            if name in named:
                raise TypeError(f"{cls.__name__} was given two values for {name!r}")
            named[name] = value
        for name in names:
            if name in named:
                write[name](self, named.pop(name))
            elif name in defaults:
                write[name](self, defaults[name])
            elif name in factories:
                write[name](self, factories[name]())
            else:
                raise TypeError(f"{cls.__name__} was given no value for {name!r}")
        if named:
            raise TypeError(f"{cls.__name__} has no field {sorted(named)}")

    def values_of(self: Any, of: tuple[str, ...] = names) -> Iterator[Any]:
        return (getattr(self, name) for name in of)

    def show(self: Any) -> str:
        return f"{cls.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not cls:
            return NotImplemented
        return tuple(values_of(self, compared)) == tuple(values_of(other, compared))

    def number(self: Any) -> int:
        return hash(tuple(values_of(self, compared)))

    def refuse_set(self: Any, name: str, value: object) -> Never:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def refuse_delete(self: Any, name: str) -> Never:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def state_of(self: Any) -> list[Any]:
        return list(values_of(self))

    def restore(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            write[name](self, value)

    methods: dict[str, Callable[..., Any]] = {
        "__init__": init,
        "__repr__": show,
        "__setattr__": refuse_set,
        "__delattr__": refuse_delete,
        "__getstate__": state_of,
        "__setstate__": restore,
    }
    if eq:
        methods |= {"__eq__": equal, "__hash__": number}
    for name, method in methods.items():
        if name not in own:
            method.__name__ = name
            setattr(cls, name, method)
    return cls
