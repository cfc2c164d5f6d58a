"""Ways to reach a banned name without writing it: by text at run time, through frames, modules or class internals."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _words("getattr setattr delattr globals locals vars eval exec compile breakpoint open memoryview")
_HARMLESS_MODULES = _words(
    "math cmath itertools functools collections collections.abc random string re decimal fractions statistics "
    "bisect heapq copy abc numbers array time datetime json json.decoder __future__"
)
"""What may be imported beside a ban on something else; other modules hold ways to everything."""

_HARMLESS_PARTS = {
    "dataclasses": _words("dataclass field KW_ONLY"),
    "enum": _words("Enum IntEnum Flag IntFlag StrEnum auto unique"),
    "typing": _words(
        "Annotated Any AnyStr Awaitable Callable ClassVar Collection Container Counter DefaultDict Deque Dict Final "
        "FrozenSet Generator Generic Hashable ItemsView Iterable Iterator KeysView List Literal Mapping MutableMapping "
        "MutableSequence MutableSet NamedTuple Never NewType NoReturn Optional OrderedDict ParamSpec Protocol "
        "Reversible Self Sequence Set Sized SupportsAbs SupportsFloat SupportsIndex SupportsInt SupportsRound Text "
        "Tuple Type TypeAlias TypeVar TypedDict Union ValuesView cast final overload override runtime_checkable"
    ),
}
"""What may be imported from modules that also read attributes by name (`astuple`, `fields`, `_convert_`), evaluate
texts, or hold modules that do: `typing` has `warnings._getcategory` and, from Python 3.12 on, `getattr_static`."""

_INNER_MODULES = _words(
    "builtins bltns sys os importlib operator inspect gc ctypes modules subprocess codecs marshal pickle contextlib "
    "dataclasses enum"
)
"""Names under which harmless modules hold such modules: `collections._sys`, `typing.sys`, `re.enum`."""

_FRAMES = _words(
    "gi_frame gi_code cr_frame cr_code ag_frame ag_code tb_frame tb_next f_back f_builtins f_globals f_locals f_code "
    "co_consts co_names CodeType mro attrgetter methodcaller"
)
_READERS = _words(
    "get_type_hints ForwardRef evaluate_forward_ref _eval_type _evaluate Formatter get_field _create_fn _convert_ "
    "singledispatch singledispatchmethod wraps update_wrapper"
)
"""What evaluates a text, or gets an attribute by its name, in harmless modules: `singledispatch` evaluates annotations,
`wraps` hands over the attributes that it is told to, or a whole `__dict__`.
"""

_DUNDERS = _words(
    "init name len getitem setitem delitem contains iter next call str repr hash bool eq ne lt le gt ge add radd iadd "
    "sub rsub mul rmul truediv floordiv mod pow neg abs enter exit post_init doc annotations slots main "
    "version future"
)


def detours(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of each."""
    plain = _plain_dataclasses(tree)
    found = [(getattr(node, "lineno", 1), name) for node in ast.walk(tree) for name in _detours_of(node)]
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "dataclass")
    return found + [(node.lineno, node.id) for node in names if node not in plain]


def _plain_dataclasses(tree: ast.Module) -> set[ast.expr]:
    """Decorators that are next to a class without bases.

    Of another class `dataclass` takes what it inherits under a field's name for the field's default.
    """
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.decorator_list)
    nearest = [node.decorator_list[-1] for node in classes if not node.bases and not node.keywords]
    return {node.func if isinstance(node, ast.Call) else node for node in nearest}


def _detours_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name() if node.id in _BUILTINS or _is_inner_dunder(node.id):
            yield node.id
        case ast.Attribute() if _is_detour(node.attr):
            yield node.attr
        case ast.MatchClass():
            yield from filter(_is_detour, node.kwd_attrs)
            if node.patterns:  # reads the attributes that `__match_args__` names, which a text may have set
                yield "a positional class pattern"
        case ast.Import():
            yield from (alias.name for alias in node.names if alias.name not in _HARMLESS_MODULES)
        case ast.ImportFrom():
            yield from _imported_detours(node)


def _imported_detours(node: ast.ImportFrom) -> Iterator[str]:
    module = node.module or ""
    if not node.level and module in _HARMLESS_PARTS:
        known = _HARMLESS_PARTS[module]
        yield from (f"{module}.{alias.name}" for alias in node.names if alias.asname or alias.name not in known)
        return
    if node.level or module not in _HARMLESS_MODULES:
        yield module or "."
    yield from (alias.name for alias in node.names if alias.name == "*" or _is_detour(alias.name))


def _is_detour(name: str) -> bool:
    return name.strip("_") in _INNER_MODULES or name in _FRAMES | _READERS or _is_inner_dunder(name)


def _is_inner_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name.strip("_") not in _DUNDERS
