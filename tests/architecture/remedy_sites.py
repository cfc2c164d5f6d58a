"""Every place of the product that tells a user what to do, with all texts that it can give.

Texts are worked out from the source: constants, f-strings, conditional expressions, local names, parameters (from the
calls), constants of other modules and functions that return texts. What only a run knows stays `{expression}`.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from remedies.recording import KEYWORDS, calls_of
from source_tree import Source, sources

CARRIED = frozenset({"remedy", "_remedy", "fix"})
"""Attributes and keys of an error or check that already has its remedy: that one is another site."""

MOST = 96
DEPTH = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Unknown(Exception):
    """An expression whose texts cannot be worked out."""


@dataclass(frozen=True)
class Site:
    """One `remedy=` or `fix=`.

    Attributes:
        place: `path:line`.
        key: Its name, which stays when lines move; see remedies/recording.py.
        texts: What it can print; empty where it passes on the remedy of another error.
        problem: Why its texts cannot be worked out; empty when they can.
    """

    place: str
    texts: frozenset[str]
    problem: str = ""
    key: str = ""


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its module, and the functions around it, the innermost first."""

    source: Source
    functions: tuple[Function, ...] = ()
    owner: str = ""


@cache
def product() -> tuple[Source, ...]:
    """Return the modules whose remedies users read; plugin templates and servers for tests have other readers."""
    found = (*sources("finqa"), *sources("finqa_cli"), *sources("plugins/finqa_plugins"))
    return tuple(source for source in found if "/testing/" not in source.name and "/templates/" not in source.name)


@cache
def remedies() -> tuple[Site, ...]:
    """Return all sites, in the order of the source."""
    return tuple(site for source in product() for site in _sites(source))


@cache
def all_texts() -> tuple[tuple[str, str], ...]:
    """Return place and text of every string of the product, docstrings and f-strings included."""
    found = []
    for source in product():
        inner = {id(part) for node in ast.walk(source.tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.JoinedStr):
                found.append((f"{source.name}:{node.lineno}", "".join(_parts_of(node))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                found.append((f"{source.name}:{node.lineno}", node.value))
    return tuple(found)


def _parts_of(node: ast.JoinedStr) -> Iterator[str]:
    for part in node.values:
        yield str(part.value) if isinstance(part, ast.Constant) else _placeholder(part)


def _placeholder(node: ast.AST) -> str:
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return "{" + ast.unparse(inner).replace("{", "(").replace("}", ")") + "}"


def _sites(source: Source) -> Iterator[Site]:
    keys = {call.value: call.key for call in calls_of(source.name)}
    for call, scope in _calls(source):
        for keyword in call.keywords:
            if keyword.arg not in KEYWORDS:
                continue
            key = keys[keyword.value.lineno, keyword.value.col_offset]
            place = f"{source.name}:{keyword.value.lineno}"
            try:
                yield Site(place, frozenset(text for text in resolve(keyword.value, scope) if text.strip()), key=key)
            except Unknown as error:
                yield Site(place, frozenset(), str(error), key)


@cache
def _scoped(source: Source) -> tuple[tuple[ast.AST, Scope], ...]:
    found: list[tuple[ast.AST, Scope]] = []

    def walk(node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            found.append((child, scope))
            inner = scope
            if isinstance(child, Function):
                inner = Scope(source, (child, *scope.functions), scope.owner)
            elif isinstance(child, ast.ClassDef):
                inner = Scope(source, scope.functions, child.name)
            walk(child, inner)

    walk(source.tree, Scope(source))
    return tuple(found)


def _calls(source: Source) -> Iterator[tuple[ast.Call, Scope]]:
    return ((node, scope) for node, scope in _scoped(source) if isinstance(node, ast.Call))


def resolve(node: ast.AST, scope: Scope, depth: int = DEPTH) -> set[str]:
    """Return all texts that an expression can have.

    Raises:
        Unknown: It is of a kind that this module does not follow.
    """
    if depth <= 0:
        raise Unknown(f"too far away: {ast.unparse(node)}")
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Constant(value=None):
            return set()
        case ast.JoinedStr(values=values):
            return _products([_part(part, scope, depth) for part in values])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _products([resolve(left, scope, depth), resolve(right, scope, depth)])
        case ast.IfExp(body=body, orelse=orelse):
            return resolve(body, scope, depth) | resolve(orelse, scope, depth)
        case ast.BoolOp(values=values):
            return _union(resolve(value, scope, depth) for value in values if not isinstance(value, ast.Compare))
        case ast.Name(id=name):
            return _named(name, scope, depth)
        case ast.Attribute(attr=attr) if attr in CARRIED:
            return _attribute(node, scope, depth, carried=True)
        case ast.Attribute():
            return _attribute(node, scope, depth)
        case ast.Subscript(slice=ast.Constant(value=str(key))) if key in CARRIED:
            return set()
        case ast.Subscript(value=value) if isinstance(value, (ast.Dict, ast.Name)):
            return _values(value, scope, depth)
        case ast.Call():
            return _called(node, scope, depth)
        case ast.Dict(values=values):
            return _union(resolve(value, scope, depth - 1) for value in values)
        case ast.NamedExpr(value=value) | ast.Await(value=value):
            return resolve(value, scope, depth)
    raise Unknown(f"not followed: {ast.unparse(node)}")


def _part(node: ast.AST, scope: Scope, depth: int) -> set[str]:
    """Return the texts of a part of an f-string; what is no text of the source is a placeholder."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    assert isinstance(node, ast.FormattedValue)
    try:
        return resolve(node.value, scope, depth - 1) - {""} or {_placeholder(node)}
    except Unknown:
        return {_placeholder(node)}


def _products(parts: list[set[str]]) -> set[str]:
    return {"".join(each) for each in itertools.islice(itertools.product(*(sorted(part) for part in parts)), MOST)}


def _union(parts: Iterable[set[str]]) -> set[str]:
    return set().union(*parts)


def _values(node: ast.AST, scope: Scope, depth: int) -> set[str]:
    """Return the texts among the values of a table, which a name or an expression is."""
    source = scope.source
    while isinstance(node, ast.Name):
        bodies: list[ast.AST] = [*scope.functions, source.tree]
        tables = [one for body in bodies for one in _assignments(body).get(node.id, [])]
        if not tables and (imported := _imports(source).get(node.id)):
            source, node = _modules().get(imported[0], source), ast.Name(id=imported[1])
            scope = Scope(source)
            continue
        if not tables:
            raise Unknown(f"no table {node.id}")
        node = tables[0]
    return resolve(node, Scope(source), depth - 1)


def _named(name: str, scope: Scope, depth: int) -> set[str]:
    for place, function in enumerate(scope.functions):
        inner = Scope(scope.source, scope.functions[place:], scope.owner)
        values = _assignments(function).get(name, [])
        if name in _parameters(function):
            values_of = _given(name, function, inner, depth)
            return values_of | _union(resolve(value, inner, depth - 1) for value in values)
        if values:
            return _union(resolve(value, inner, depth - 1) for value in values)
    if values := _assignments(scope.source.tree).get(name):
        return _union(resolve(value, Scope(scope.source), depth - 1) for value in values)
    if (found := _imported(name, scope.source)) and found[0] is not scope.source:
        return _named(found[1], Scope(found[0]), depth - 1)
    raise Unknown(f"no text of the source: {name}")


@cache
def _own_nodes(body: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a function or module without those of the functions inside it."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [body]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            found.append(child)
            if not isinstance(child, Function):
                waiting.append(child)
    return tuple(found)


@cache
def _assignments(body: ast.AST) -> dict[str, list[ast.AST]]:
    """Return what is assigned to each name of a function or module."""
    found: dict[str, list[ast.AST]] = defaultdict(list)
    for node in _own_nodes(body):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id].append(value)
                    elif isinstance(target, ast.Tuple):
                        for name, one in _unpacked(target, value):
                            found[name].append(one)
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.AST() as value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                found[name].append(value)
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=values)):
                found[name] += values
    return found


def _unpacked(target: ast.Tuple, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for choice in [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]:
        same = isinstance(choice, ast.Tuple) and len(choice.elts) == len(target.elts)
        for place, element in enumerate(target.elts):
            if isinstance(element, ast.Name):
                yield element.id, choice.elts[place] if same and isinstance(choice, ast.Tuple) else choice


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


@cache
def _called_by_name() -> dict[str, tuple[tuple[ast.Call, Scope], ...]]:
    found: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for source in product():
        for call, scope in _calls(source):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            found[name].append((call, scope))
    return {name: tuple(calls) for name, calls in found.items()}


def _given(name: str, function: Function, scope: Scope, depth: int) -> set[str]:
    """Return what the calls of a function pass for a parameter, and its default."""
    if isinstance(function, ast.Lambda):
        raise Unknown(f"parameter of a lambda: {name}")
    called = scope.owner if function.name == "__init__" else function.name
    names = _parameters(function)
    place = names.index(name) - (names[0] in ("self", "cls"))
    found = _default(name, function, scope, depth)
    for call, caller in _called_by_name().get(called, ()):
        given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
        if given is None and len(call.args) > place and not any(isinstance(one, ast.Starred) for one in call.args):
            given = call.args[place] if name in [one.arg for one in function.args.args] else None
        if given is not None:
            found |= resolve(given, caller, depth - 1)
    return found - {""}


def _default(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, depth: int) -> set[str]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    values = [value for one, value in pairs if one.arg == name and value is not None]
    return _union(resolve(value, scope, depth - 1) for value in values) - {""}


@cache
def _imports(source: Source) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name that is imported from a module."""
    found = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return found


def _imported(name: str, source: Source) -> tuple[Source, str] | None:
    """Return the module of finqa, and the name there, that a name was imported from."""
    module, original = _imports(source).get(name, ("", ""))
    return (_modules()[module], original) if module in _modules() else None


@cache
def _modules() -> dict[str, Source]:
    return {source.module: source for source in product()}


def _attribute(node: ast.Attribute, scope: Scope, depth: int, carried: bool = False) -> set[str]:
    """Return the texts of `module.NAME`, `self.name` or `CLASS.name`."""
    if isinstance(node.value, ast.Name):
        module = _module_named(node.value.id, scope.source)
        if module is not None:
            return _named(node.attr, Scope(module), depth - 1)
        if node.value.id == "self" and (found := list(_members(node.attr, scope))):
            return _union(resolve(value, inner, depth - 1) for value, inner in found)
    if carried:
        return set()
    found = [(value, inner) for _, value, inner in _index().get(node.attr, ())]
    if not found:  # a field of a dataclass: what its creations give
        found = _keywords().get(node.attr, [])
    if found and len(found) <= 8:
        return _union(resolve(value, inner, depth - 1) for value, inner in found) - {""}
    raise Unknown(f"attribute: {ast.unparse(node)}")


@cache
def _keywords() -> dict[str, list[tuple[ast.AST, Scope]]]:
    """Return what calls give as keyword arguments, by their names."""
    index: dict[str, list[tuple[ast.AST, Scope]]] = defaultdict(list)
    for pairs in _called_by_name().values():
        for call, inner in pairs:
            for one in call.keywords:
                index[one.arg or ""].append((one.value, inner))
    return index


def _module_named(name: str, source: Source) -> Source | None:
    module, original = _imports(source).get(name, ("", ""))
    return _modules().get(f"{module}.{original}")


def _members(name: str, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield what is assigned to a member of the class of the scope, and what its properties and methods return."""
    for owner, value, inner in _index().get(name, ()):
        if owner == scope.owner and inner.source is scope.source:
            yield value, inner


@cache
def _index() -> dict[str, list[tuple[str, ast.AST, Scope]]]:
    """Return class, value and scope of all members, by their names."""
    index: dict[str, list[tuple[str, ast.AST, Scope]]] = defaultdict(list)
    for source in product():
        for node, inner in _scoped(source):
            match node:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                    index[name].append((inner.owner, value, inner))
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if inner.owner and not inner.functions:
                    index[name].append((inner.owner, value, inner))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.AST() as value):
                    if inner.owner and not inner.functions:
                        index[name].append((inner.owner, value, inner))
                case ast.FunctionDef() | ast.AsyncFunctionDef() if inner.owner:
                    at = Scope(source, (node, *inner.functions), inner.owner)
                    index[node.name] += [(inner.owner, value, at) for value in _returned(node)]
    return index


def _returned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.AST]:
    found = [node.value for node in _own_nodes(function) if isinstance(node, ast.Return)]
    return [value for value in found if value is not None]


TRANSPARENT = {"str", "removeprefix", "removesuffix", "strip", "rstrip", "replace", "format", "capitalize", "with_stem"}


def _called(node: ast.Call, scope: Scope, depth: int) -> set[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name == "str" and node.args:
        return resolve(node.args[0], scope, depth)
    if name in TRANSPARENT and isinstance(node.func, ast.Attribute):
        return resolve(node.func.value, scope, depth)
    if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        return set() if node.args[1].value in CARRIED else resolve(node.args[-1], scope, depth - 1)
    if name == "get" and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value in CARRIED:
        return set()
    if name == "get" and isinstance(node.func, ast.Attribute):
        return _values(node.func.value, scope, depth) | _union(resolve(one, scope, depth - 1) for one in node.args[1:])
    if name == "join" and isinstance(node.func, ast.Attribute):
        return {_placeholder(node)}
    if name == "next" and node.args and isinstance(node.args[0], ast.GeneratorExp):
        return resolve(node.args[0].elt, scope, depth - 1)
    for function, inner in _functions(name, node, scope):
        found = list(_returned(function))
        if found:
            return _union(resolve(value, inner, depth - 1) for value in found)
    raise Unknown(f"call: {ast.unparse(node)}")


def _functions(
    name: str, node: ast.Call, scope: Scope
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]]:
    """Yield the functions of finqa that a call can mean: of the module, imported ones, or methods of this name."""
    place: tuple[Source, str] | None = (scope.source, name)
    if isinstance(node.func, ast.Name):
        place = _imported(name, scope.source) or place
    elif isinstance(node.func.value if isinstance(node.func, ast.Attribute) else None, ast.Name):
        assert isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if module := _module_named(node.func.value.id, scope.source):
            place = (module, name)
    assert place is not None
    named = _defined().get(place[1], ())
    yield from sorted(named, key=lambda pair: pair[1].source is not place[0])


@cache
def _defined() -> dict[str, list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]]]:
    """Return all functions by their names."""
    index: dict[str, list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]]] = defaultdict(list)
    for source in product():
        for found, inner in _scoped(source):
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
                index[found.name].append((found, Scope(source, (found, *inner.functions), inner.owner)))
    return index
