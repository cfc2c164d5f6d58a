"""Ways to reach a banned name without writing it: by text at run time, through frames, modules or class internals."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _words("getattr setattr delattr globals locals vars eval exec compile breakpoint open memoryview")
_HARMLESS_MODULES = _words(
    "math cmath itertools functools collections random string re typing dataclasses decimal fractions statistics "
    "bisect heapq copy enum abc numbers array time datetime json __future__"
)
"""What may be imported beside a ban on something else; other modules hold ways to everything."""

_INNER_MODULES = _words(
    "builtins bltns sys os importlib operator inspect gc ctypes modules subprocess codecs marshal pickle"
)
"""Names under which harmless modules hold such modules: `collections._sys`, `typing.sys`, `enum.bltns`."""

_FRAMES = _words(
    "gi_frame gi_code cr_frame cr_code ag_frame ag_code tb_frame tb_next f_back f_builtins f_globals f_locals f_code "
    "co_consts co_names mro attrgetter methodcaller"
)
_READERS = _words("get_type_hints ForwardRef Formatter get_field _create_fn _eval_type")
"""What evaluates a text, or gets an attribute by its name, in harmless modules."""

_DUNDERS = _words(
    "init name len getitem setitem delitem contains iter next call str repr hash bool eq ne lt le gt ge add radd iadd "
    "sub rsub mul rmul truediv floordiv mod pow neg abs enter exit post_init doc annotations slots main "
    "version future"
)


def detours(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of each."""
    return [(getattr(node, "lineno", 1), name) for node in ast.walk(tree) for name in _detours_of(node)]


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
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] not in _HARMLESS_MODULES)
        case ast.ImportFrom():
            module = node.module or ""
            if node.level or module.split(".")[0] not in _HARMLESS_MODULES:
                yield module or "."
            yield from (alias.name for alias in node.names if alias.name == "*" or _is_detour(alias.name))


def _is_detour(name: str) -> bool:
    return name.strip("_") in _INNER_MODULES or name in _FRAMES | _READERS or _is_inner_dunder(name)


def _is_inner_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name.strip("_") not in _DUNDERS
