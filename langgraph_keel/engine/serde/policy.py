"""Policy of the classes that a stored name may refer to.

A stored value names its class as `(module, qualname)`. The name is looked up among modules that the program has
imported. It never causes an import, except for plain data classes of Python, LangGraph, LangChain and Keel. It must
refer to an allowed class, and to a data class of the kind that was stored. Allowed are

* these plain data classes;
* classes listed by the program (`types=`), or passed by LangGraph (`with_allowlist`, in its strict mode);
* classes in the state annotations of any graph of this process (`schemas`);
* classes whose values this process has stored, with any saver.

The last two are ignored by a strict serializer, and the last one also if there is a list. The store itself never
defines which classes are allowed, because an attacker with write access to the store could change that, too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from itertools import chain
from threading import Lock
from types import FrameType, ModuleType
from typing import Any, TypeAlias
from warnings import warn_explicit
from weakref import WeakValueDictionary

from langgraph_keel._langgraph import DELTA_SNAPSHOT, SAFE_MSGPACK_TYPES
from langgraph_keel.engine.serde.moved import OWN, PACKAGE
from langgraph_keel.engine.serde.schemas import find_schema_class, is_unnamed
from langgraph_keel.engine.serde.types import Leaf, Record, Shape, shape_of
from langgraph_keel.engine.serde.unread import LOST, Unread, refuse_placeholder
from langgraph_keel.errors import RefusedType, TypeWarning, UnstorableValue

Named: TypeAlias = type | tuple[str, ...]
"""An entry of a list of classes: the class, or its module and name."""
OnUnread: TypeAlias = Callable[[Unread], Any]

# Modules with plain data classes, in addition to the classes that LangGraph lists. Of `builtins`, only exceptions are
# stored by name.
_DATA_MODULES = frozenset(
    {
        "builtins",
        "langgraph.errors",
        "langgraph.store.base",
        "langgraph.types",
        "langchain_core.agents",
        "langchain_core.documents.base",
        "langchain_core.outputs.chat_generation",
        "langchain_core.outputs.generation",
        "langchain_core.outputs.llm_result",
        "langchain_core.outputs.run_info",
        "langchain_core.prompt_values",
    }
)
_DATA = SAFE_MSGPACK_TYPES | {DELTA_SNAPSHOT, ("langchain_core.messages.base", "TextAccessor")}

# Values of these are stored without a class.
_NAMELESS = frozenset({None, Record.NDARRAY, Record.SCALAR, Record.SECRET})

_UNNAMED = (
    "not allowed here, as it is neither annotated nor listed: annotate the graph's state with it, or add it to the "
    "serializer's types=[...], as {}"
)
_ABSENT = "this program has no such class: import its module before reading, or add it to types=[...]"
_ABSENT_IN_MAIN = (
    "it was defined in the script or notebook that stored it, and this program has no such class: define it in a "
    "module that both import, and store the thread again; or pass it in types=[...]"
)
_LOST = "the object that contained it is gone or not accessible here: restore the object to read it"
_SECRET = (
    "a secret, which would be stored in plain text: keep it out of the state, and pass it through context=. "
    "To store secrets anyway, pass types=[{0}] to the saver"
)
_LOCAL = (
    "it is defined inside a function, where no other process finds it: define it in a module. (It is also accepted in "
    "annotations of the graph's state and in types=[...])"
)
_MAIN = (
    "{0} is stored, a class of the running script or notebook. Other programs cannot read it: define {0} in a module "
    "that both import"
)

_NAMED_BY_NOTHING = (
    "{0} is stored, but is not on the allow-list: other processes, and this one after a restart, cannot read "
    "it. Annotate the graph's state with {1} itself (a base class is not enough), or add it to the saver's types=[...]"
)

_warning = Lock()
# The classes whose values this process has stored, by name.
_stored: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()

_NAMESPACES = tuple((kind, vars(kind)["__dict__"].__get__) for kind in (type, ModuleType))


class TypePolicy:
    """Decides which classes may be stored and revived.

    A strict policy allows only `types` and plain data.
    """

    __slots__ = ("_classes", "_is_strict", "_known", "_moved", "is_listed", "names", "note", "shows")

    def __init__(self, types: Iterable[Named] | None, strict: bool) -> None:
        self.is_listed = types is not None  # if so, no other classes may be stored
        self.shows = False  # whether a refused value is shown as an `Unread`
        self.note: OnUnread = _keep  # receives each `Unread`, and returns the value to show
        self._is_strict = strict
        self._moved: Mapping[tuple[str, str], tuple[str, str]] = {}
        self._classes: dict[tuple[str, str], type] = {}
        self._known: set[tuple[str, str]] = set()  # cache of allowed names
        # Allowed classes other than plain data, by module and name.
        self.names: frozenset[tuple[str, ...]] = frozenset(self._list(types or ()))

    def merge(self, extra: Iterable[Named]) -> TypePolicy:
        """Return a policy that also allows `extra`; itself if that changes nothing."""
        merged = TypePolicy(chain(self._classes.values(), self.names, extra), self._is_strict)
        merged.is_listed, merged.shows, merged.note, merged._moved = self.is_listed, self.shows, self.note, self._moved
        return self if merged.names == self.names else merged

    def showing(self, note: OnUnread | None) -> TypePolicy:
        """Return a policy that replaces refused values by placeholders."""
        shown = copy.copy(self)
        shown.shows, shown.note = True, note or _keep
        return shown

    def moving(self, moved: Mapping[tuple[str, str], Named]) -> TypePolicy:
        """Return a policy that maps stored names to other classes, which are allowed."""
        policy = copy.copy(self.merge(moved.values()))
        policy._moved = {**self._moved, **{old: _name_of(new) for old, new in moved.items()}}
        return policy

    def present_name(self, module: Any, qualname: Any) -> tuple[Any, Any]:
        """Return the current name of a class for its stored name."""
        return self._moved.get((module, qualname), (module, qualname))

    def _list(self, types: Iterable[Named]) -> Iterable[tuple[str, ...]]:
        for entry in types:
            if isinstance(entry, type):
                self._classes[entry.__module__, entry.__qualname__] = entry
                yield entry.__module__, entry.__qualname__
            else:
                yield tuple(entry)

    def admit(self, cls: type) -> None:
        """Register a class whose values are stored, or refuse it."""
        if cls is Unread:
            raise refuse_placeholder()
        name = module, qualname = cls.__module__, cls.__qualname__
        family = shape_of(cls).family
        if family is Record.SECRET and not self.allows_secrets(cls):
            raise UnstorableValue(f"{module}.{qualname}", _SECRET.format(qualname))
        if family in _NAMELESS:
            return
        if "<locals>" in qualname and name not in self._classes and find_schema_class(*name) is not cls:
            raise UnstorableValue(f"{module}.{qualname}", _LOCAL)
        if self.is_listed and not self._allows(*name):
            reason = "it is not in types=[...] of this saver and could not be read back: add it there"
            raise UnstorableValue(f"{module}.{qualname}", reason)
        if name not in _stored:
            with _warning:  # another thread may store its first value, too
                if name not in _stored:
                    self._warn(cls)
                _stored[name] = cls
        _stored[name] = cls

    def _warn(self, cls: type) -> None:
        """Warn about a class whose values other processes cannot read."""
        name = module, qualname = cls.__module__, cls.__qualname__
        if module == "__main__":
            _warn_at(_MAIN.format(qualname), cls)
        elif not self._lists(*name) and (self._is_strict or is_unnamed(*name)):
            _warn_at(_NAMED_BY_NOTHING.format(f"{module}.{qualname}", qualname), cls)

    def allows_secrets(self, cls: type) -> bool:
        """Return whether the program has listed this secret class."""
        return (cls.__module__, cls.__qualname__) in self.names

    def allows(self, module: str, qualname: str) -> bool:
        """Return whether a name refers to an allowed data class."""
        found = self._find(module, qualname) if self._allows(module, qualname) else None
        return found is not None and issubclass(type(found), type) and shape_of(found).family is not None

    def resolve(self, module: Any, qualname: Any, family: Record | Leaf) -> tuple[Any, Shape]:
        """Return the class that a stored name refers to, and its shape."""
        if type(module) is not str or type(qualname) is not str:
            raise TypeError("a class name must be text")
        name = self.present_name(module, qualname)
        is_allowed, found = name in self._known or self._allows(*name), self._find(*name)
        if found is None:
            reason = _LOST if name == LOST else _ABSENT_IN_MAIN if name[0] == "__main__" else _ABSENT
            raise RefusedType(".".join(name), reason)
        if not is_allowed:
            raise RefusedType(".".join(name), _UNNAMED.format(".".join(name)))
        self._known.add(name)
        # Check the type, because another object may compute its `__class__` with its own code.
        shape = shape_of(found) if issubclass(type(found), type) else None
        if shape is None or shape.family is not family:
            raise RefusedType(".".join(name), "it is not (or no longer) a data class of the kind that was stored")
        return found, shape

    def revives(self, cls: type, shape: Shape) -> bool:
        """Return whether stored values of a class would be revived as this same class."""
        if shape.family is None:
            return False
        try:
            return self.resolve(shape.module, shape.qualname, shape.family)[0] is cls
        except RefusedType:
            return False

    def _allows(self, module: str, qualname: str) -> bool:
        if self._lists(module, qualname):
            return True
        if self._is_strict:
            return False
        name = module, qualname
        return (not self.is_listed and name in _stored) or find_schema_class(*name) is not None

    def _lists(self, module: str, qualname: str) -> bool:
        if module in _DATA_MODULES or module == PACKAGE or (module, qualname) in OWN:
            return True
        # LangGraph's allowlists contain the bare name of a nested class.
        names = ((module, qualname), (module, qualname.rpartition(".")[2]))
        return any(name in _DATA or name in self.names for name in names)

    def _find(self, module: str, qualname: str) -> Any:
        found = self._classes.get((module, qualname))
        if found is None:
            found = _walk(sys.modules.get(module), qualname)
        if found is None:
            found = _stored.get((module, qualname))
        if found is None:
            found = _import(module, qualname)
        return find_schema_class(module, qualname) if found is None else found


def _name_of(named: Named) -> tuple[str, str]:
    return (named.__module__, named.__qualname__) if isinstance(named, type) else (named[0], named[1])


def _keep(unread: Unread) -> Unread:
    return unread


def _warn_at(text: str, cls: type) -> None:
    """Warn at the current line of the script, or at the class in a library's thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    if frame is not None:
        place = frame.f_code.co_filename, frame.f_lineno
    else:
        module = sys.modules.get(cls.__module__)
        place = getattr(module, "__file__", None) or "<stdin>", getattr(cls, "__firstlineno__", 1)
    warn_explicit(text, TypeWarning, *place, module=cls.__module__)


def _import(module: str, qualname: str) -> Any:
    """Import a plain data class. Importing all in advance takes longer than a `keel` command."""
    try:
        if (module, qualname) in OWN:
            return getattr(import_module(module), qualname, None)
        if module in _DATA_MODULES or (module, qualname) in _DATA:
            return _walk(import_module(module), qualname)
    except ImportError:  # another version of a library, or a library that is not installed
        pass
    return None


def _walk(holder: Any, qualname: str) -> Any:
    # Not `getattr`: a module's `__getattr__` may import, and a descriptor may run code.
    read_names = next((read for kind, read in _NAMESPACES if issubclass(type(holder), kind)), None)
    if read_names is None:
        return None
    names = read_names(holder)
    if qualname in names:  # first, because pydantic's `Model[a.B]` contains dots
        return names[qualname]
    head, _, rest = qualname.partition(".")
    return _walk(names.get(head), rest) if rest else None
