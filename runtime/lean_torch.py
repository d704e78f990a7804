"""Torch without the parts that only compilers and statistics need: they are executed when somebody asks for them.

Much of what `import torch` executes registers what traced and compiled programs want to know of each operation
(`_meta_registrations` and, with the decompositions, `export`). Without that and `distributions` an import takes 1.1 s
of processor time in place of 2.0, and 20 MB less.

An attribute of one of them makes it whole, and so does the import of any part of torch that `import torch` leaves out,
such as its compilers: then all is as after a plain import. What lacks something until then is the `meta` device, in
operations beyond those of memory and shapes. One thing that these parts do is of use to all, and is done here: the
class of generators, which `torch._prims.rng_prims` completes.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime.machine import gpu_driver

_LATER = ("torch._meta_registrations", "torch.export", "torch.distributions")
_TESTED = "2.13."  # versions of torch; others are imported as they are


def load() -> None:
    """Import torch, without those parts where it is known how and no GPU may be used."""
    if "torch" in sys.modules or sys.platform != "linux" or gpu_driver() or not _version().startswith(_TESTED):
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import torch
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)
    except BaseException:
        sys.meta_path.remove(finder)
        raise
    finder.whole = False


def _version() -> str:
    """Of the torch that would be imported, without importing it."""
    with suppress(ImportError, OSError, ValueError):
        if (spec := find_spec("torch")) and spec.origin:
            found = re.search(r"__version__ = '(.*)'", Path(spec.origin).with_name("version.py").read_text())
            return found[1] if found else ""
    return ""


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.whole = True  # nothing has to be made whole, as torch is still being imported

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _LATER and fullname not in sys.modules:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec and spec.loader:
                spec.loader = _Loader(spec.loader)
            return spec
        if not self.whole and fullname.startswith("torch."):
            self.whole = True
            for name in _LATER:
                _make_whole(sys.modules.get(name))
            if (made := sys.modules.get(fullname)) and made.__spec__:  # as a part of those: the import goes by its spec
                made.__spec__ = ModuleSpec(fullname, _Made(made), is_package=hasattr(made, "__path__"))
                return made.__spec__
        return None


class _Loader(Loader):
    """Makes an empty module, and leaves it to that to execute its code."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__
        module.__spec__.loader = module.__loader__ = self._own


class _Made(Loader):
    """Finds that the module is there already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Later(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if self.__spec__ is None or isinstance(self.__spec__.loader, _Loader):  # it is still being made
            raise AttributeError(name)
        _make_whole(self)
        return getattr(self, name)


_lock = threading.RLock()


def _make_whole(module: ModuleType | None) -> None:
    with _lock:
        if isinstance(module, _Later):
            assert module.__spec__
            assert module.__spec__.loader
            later: ModuleType = module
            later.__class__ = ModuleType
            try:
                module.__spec__.loader.exec_module(module)
            except BaseException:
                later.__class__ = _Later
                raise
