"""Finds uses of banned names, operators and modules in the syntax tree of code.

A ban is written as in the embedded tasks: `sorted(`, `.sort(`, `heapq`, `import `, `__import__`. Its meaning is banned,
not its text: a comment, a string or a longer name is not a violation, but an alias or a detour is.

| written as         | means                                                                         |
| ------------------ | ----------------------------------------------------------------------------- |
| `sorted(`, `heapq` | the name, also as attribute (`builtins.sorted`), imported, or merely passed on |
| `.sort(`           | the attribute of anything, also unbound (`list.sort`)                         |
| `import `          | any import                                                                    |
| `while `, `lambda` | a keyword: the statement or expression                                        |
| `math.prod(`       | the name of this module, under any name by which the module or it is imported     |
| `list.sort(`       | of a builtin: the attribute of anything                                       |
| `*`                | the operator, also as `*=` or `__mul__`                                       |
| anything else      | these tokens one after the other, such as `[::-1]`                            |

A task that bans anything also bans detours: ways to reach a banned name without writing it, by text at run time,
through frames, modules or class internals.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from unicodedata import normalize

MAX_CHARACTERS = 64_000
_NAME = re.compile(r"(\.?)\s*([^\W\d]\w*)\s*\(?\s*\)?\s*")
_DOTTED_NAME = re.compile(r"([^\W\d][\w.]*)\.([^\W\d]\w*)\s*\(?\s*\)?\s*")
_BINARY = {
    **{"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul"},
    **{"&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift"},
}
_COMPARING = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_LINE_END = re.compile(r"\r\n?")
_LAYOUT = {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
_BETWEEN = {tokenize.NEWLINE: "\n", tokenize.STRING: "''"}
"""Type of tokens that separate others -> one text for all of them."""


class UnreadableError(ValueError):
    """The text is not Python; the message states why in one line."""


def parse(code: str) -> ast.Module:
    """Return the syntax tree.

    Raises:
        UnreadableError: The code is not Python, or too long.
    """
    if len(code) > MAX_CHARACTERS:
        raise UnreadableError(f"longer than {MAX_CHARACTERS} characters")
    try:
        return ast.parse(code)
    except SyntaxError as error:
        raise UnreadableError(f"SyntaxError: {error.msg} (line {error.lineno})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{type(error).__name__}: cannot be parsed") from error


def violations(code: str, banned: Sequence[str]) -> tuple[str, ...]:
    """Return the bans and detours that the code uses, each with its line; empty if there are none or no bans.

    Raises:
        UnreadableError: The code is not Python, or too deeply nested.
    """
    if not banned:
        return ()
    tree = parse(code)
    try:
        found = [(line, pattern.strip()) for pattern in banned for line in _uses(tree, code, pattern)]
    # `ast.unparse` goes deeper than `ast.parse` did, and writes numbers that it cannot: 0xfff... has no decimal form.
    except (RecursionError, ValueError, MemoryError) as error:
        raise UnreadableError(f"{type(error).__name__}: cannot be searched") from error
    found += find_detours(tree)
    return tuple(dict.fromkeys(f"{what} (line {line})" for line, what in sorted(found)))


def _uses(tree: ast.Module, code: str, pattern: str) -> Iterator[int]:
    """Yield the lines on which a banned pattern is used."""
    written = _NAME.fullmatch(pattern)
    if written is None:
        yield from _token_uses(tree, code, pattern)
        if dotted := _DOTTED_NAME.fullmatch(pattern):
            yield from _dotted_uses(tree, dotted[1], dotted[2])
        yield from _operator_uses(tree, code, pattern.strip())
    elif written[2] in ("import", "from"):
        yield from (node.lineno for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    elif keyword.iskeyword(written[2]):
        yield from _token_uses(tree, code, written[2])
    else:
        yield from _name_uses(tree, {written[2]}, attributes_only=bool(written[1]))


def _name_uses(tree: ast.Module, wanted: Collection[str], *, attributes_only: bool) -> Iterator[int]:
    for node in ast.walk(tree):
        if any(name in wanted for name in _names(node, attributes_only=attributes_only)):
            yield getattr(node, "lineno", 1)


def _dotted_uses(tree: ast.Module, owner: str, name: str) -> Iterator[int]:
    """Yield the lines with uses of `owner.name` that are written in another way.

    If the module is imported, every attribute of this name counts, under any name of the module. Attributes of texts do
    not, so that `", ".join` is not `os.path.join`.
    """
    of_builtin = hasattr(builtins, owner)
    if not of_builtin and owner.split(".")[0] not in _imported(tree):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Constant() | ast.JoinedStr()) if not of_builtin:
                pass
            case ast.Attribute() if node.attr == name:
                yield node.lineno
            case ast.ImportFrom() if node.module == owner and name in {alias.name for alias in node.names}:
                yield node.lineno


def _imported(tree: ast.Module) -> set[str]:
    """Return the imported modules, each by the first part of its name."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def _operator_uses(tree: ast.Module, code: str, operator: str) -> Iterator[int]:
    """Yield the lines with uses of an operator in an augmented assignment or by the name of its method."""
    if method := _BINARY.get(operator):
        yield from _token_uses(tree, code, f"{operator}=")
        yield from _name_uses(tree, {f"__{way}{method}__" for way in ("", "r", "i")}, attributes_only=True)
    elif method := _COMPARING.get(operator):
        yield from _name_uses(tree, {f"__{method}__"}, attributes_only=True)


def _names(node: ast.AST, *, attributes_only: bool) -> Iterator[str]:
    """Yield the names that a node uses, normalized as Python normalizes identifiers (NFKC)."""
    match node:
        case ast.Attribute():
            yield node.attr
        case ast.MatchClass():
            yield from node.kwd_attrs
        case ast.ImportFrom():
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        case ast.Import():
            yield from (part for alias in node.names for part in alias.name.split("."))
        case ast.Name(ctx=ast.Load()) if not attributes_only:
            yield node.id
        case ast.AugAssign(target=ast.Name(id=name)) if not attributes_only:
            yield name  # `sorted |= mine` passes the builtin to `mine.__ror__`


def _token_uses(tree: ast.Module, code: str, pattern: str) -> Iterator[int]:
    """Yield the lines with this sequence of tokens, in the code or in the expressions of f-strings."""
    wanted = [text for text, _ in _tokens(pattern) if text != "\n"]
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.FormattedValue)]
    lines = [_tokens(code), *([(text, node.lineno) for text, _ in _tokens(ast.unparse(node.value))] for node in inner)]
    for tokens in lines:
        for place in range(len(tokens) - len(wanted) + 1 if wanted else 0):
            if [text for text, _ in tokens[place : place + len(wanted)]] == wanted:
                yield tokens[place][1]


def _tokens(source: str) -> list[tuple[str, int]]:
    """Return tokens with their lines; all strings become the same token, and names are normalized as in Python."""
    split = tokenize.generate_tokens(io.StringIO(_LINE_END.sub("\n", source)).readline)
    found: list[tuple[str, int]] = []
    # A pattern such as "(" is incomplete Python; its tokens come before the error.
    with suppress(tokenize.TokenError, SyntaxError):
        for token in split:
            if token.type not in _LAYOUT:
                text = _BETWEEN.get(token.type) or normalize("NFKC", token.string)
                found.append((text, token.start[0]))
    return found


def check_pattern(pattern: str) -> str:
    """Return what is wrong with a ban; empty if it can be searched for."""
    says = _NAME.fullmatch(pattern) or any(text not in _BETWEEN.values() for text, _ in _tokens(pattern))
    return "" if says else "says nothing that code could contain"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REACHING_BUILTINS = _words("getattr setattr delattr globals locals vars eval exec compile breakpoint open memoryview")
_HARMLESS_MODULES = _words(
    "math cmath itertools functools collections collections.abc random string re decimal fractions statistics "
    "bisect heapq copy abc numbers array time datetime json json.decoder __future__"
)
"""Modules that may be imported although something is banned; other modules give access to everything."""

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
"""Names that may be imported from modules that also read attributes by name (`astuple`, `fields`, `_convert_`),
evaluate texts, or contain modules that do: `typing` has `warnings._getcategory` and, from Python 3.12 on,
`getattr_static`."""

_INNER_MODULES = _words(
    "builtins bltns sys os importlib operator inspect gc ctypes modules subprocess codecs marshal pickle contextlib "
    "dataclasses enum"
)
"""Names under which harmless modules contain other modules: `collections._sys`, `typing.sys`, `re.enum`."""

_FRAMES = _words(
    "gi_frame gi_code cr_frame cr_code ag_frame ag_code tb_frame tb_next f_back f_builtins f_globals f_locals f_code "
    "co_consts co_names CodeType mro attrgetter methodcaller"
)
_READERS = _words(
    "get_type_hints ForwardRef evaluate_forward_ref _eval_type _evaluate Formatter get_field _create_fn _convert_ "
    "singledispatch singledispatchmethod wraps update_wrapper"
)
"""Parts of harmless modules that evaluate texts or read attributes by name: `singledispatch` evaluates annotations,
`wraps` copies attributes that are given by name, or a whole `__dict__`.
"""

_DUNDERS = _words(
    "init name len getitem setitem delitem contains iter next call str repr hash bool eq ne lt le gt ge add radd iadd "
    "sub rsub mul rmul truediv floordiv mod pow neg abs enter exit post_init doc annotations slots main "
    "version future"
)


def find_detours(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and name of each detour."""
    plain = _plain_dataclasses(tree)
    found = [(getattr(node, "lineno", 1), name) for node in ast.walk(tree) for name in _detours_of(node)]
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "dataclass")
    return found + [(node.lineno, node.id) for node in names if node not in plain]


def _plain_dataclasses(tree: ast.Module) -> set[ast.expr]:
    """The decorators directly above classes without bases.

    With bases, `dataclass` would use an inherited attribute with the name of a field as the field's default.
    """
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.decorator_list)
    nearest = [node.decorator_list[-1] for node in classes if not node.bases and not node.keywords]
    return {node.func if isinstance(node, ast.Call) else node for node in nearest}


def _detours_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name() if node.id in _REACHING_BUILTINS or _is_inner_dunder(node.id):
            yield node.id
        case ast.Attribute() if _is_detour(node.attr):
            yield node.attr
        case ast.MatchClass():
            yield from filter(_is_detour, node.kwd_attrs)
            if node.patterns:  # reads the attributes in `__match_args__`, which may come from a text
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
