"""The product's source as syntax trees, and the floor of each part."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

FLOORS = {
    "types": 0,
    "errors": 0,
    "documents": 0,
    "masking": 0,
    "venvs": 0,
    "backoff": 0,
    "completion": 0,
    "help_order": 0,
    "grading": 0,
    "contracts": 1,
    "processes": 1,
    "deletion": 1,
    "local_models": 1,
    "placement": 1,
    "algorithms": 2,
    "extend": 2,
    "settings": 2,
    "logs": 2,
    "statistics": 2,
    "data": 3,
    "rollout": 3,
    "runs": 4,
    "wiring": 5,
    "evaluation": 6,
    "training": 7,
    "experiments": 8,
    "publishing": 8,
    "diagnostics": 8,
    "provisioning": 8,
    "launching": 8,
    "commands": 9,
    "app": 9,
    "boundary": 9,
    "completion_index": 9,
    "start": 9,
    "__main__": 9,
}
FOR_PLUGINS = (
    "types",
    "errors",
    "documents",
    "contracts",
    "extend",
    "placement",
    "algorithms",
    "grading",
    "backoff",
    "masking",
    "processes",
    "deletion",
    "venvs",
    "local_models",
)

DISTRIBUTIONS = ("finqa_interop", "finqa_ray", "finqa_testing")
"""Folders of `plugins` that are distributions of their own, which the main wheel never imports."""

KINDS_OF_PLUGINS = ("environments", "engines", "sandboxes", "learners")
"""Folders that hold one folder for each plugin; those that begin with `_` are libraries of several plugins."""


MODULE = re.compile(r"(finqa_(?:cli|plugins|interop|ray|testing)(?:\.\w+)+)(?::\w+)?")
"""A module of finqa in a text, such as the target of a component."""


@dataclass(frozen=True)
class Source:
    path: Path
    tree: ast.Module
    lines: int

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """Dotted name, of a package without its `__init__`."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[parts[0] == "plugins" :]).removesuffix(".__init__")

    @property
    def part(self) -> str:
        """`finqa_cli/rollout/pool.py` -> `rollout`; of plugins the plugin's folder, such as `engines.vllm`."""
        return part_of(self.path.relative_to(ROOT).with_suffix("").parts)

    def imports(self) -> tuple[tuple[str, bool], ...]:
        """Dotted name of each import, and whether it runs when the module is imported.

        Those for types only, in functions, and of modules of finqa that a text names do not.
        """
        return self._imports

    @cached_property
    def _imports(self) -> tuple[tuple[str, bool], ...]:
        return tuple(self._found())

    def _found(self) -> Iterator[tuple[str, bool]]:
        later = [node for node in ast.walk(self.tree) if _is_function(node) or _is_type_checking(node)]
        inner = {id(node) for part in later for node in ast.walk(part)}
        for node in ast.walk(self.tree):
            at_start = id(node) not in inner
            if isinstance(node, ast.Import):
                yield from ((alias.name, at_start) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module, at_start
                yield from ((f"{node.module}.{alias.name}", at_start) for alias in node.names)
            elif named := MODULE.fullmatch(str(node.value)) if isinstance(node, ast.Constant) else None:
                yield named[1], False


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def part_of(parts: tuple[str, ...]) -> str:
    """`("finqa_cli", "rollout", "pool")` -> `rollout`, `("finqa_plugins", "engines", "vllm")` -> `engines.vllm`."""
    inner = parts[parts[0] == "plugins" :][1:]
    return ".".join(inner[:2]) if inner[0] in KINDS_OF_PLUGINS else inner[0]


@lru_cache
def sources(folder: str) -> tuple[Source, ...]:
    found = sorted((ROOT / folder).rglob("*.py"))
    texts = [(path, path.read_text(encoding="utf-8")) for path in found]
    gc.disable()  # trees have no cycles, and stay: looking for garbage among them takes longer than making them
    try:
        return tuple(Source(path, ast.parse(text), text.count("\n")) for path, text in texts)
    finally:
        gc.freeze()
        gc.enable()


def distributions() -> tuple[Source, ...]:
    """Return the modules of the distributions beside the main wheel."""
    return tuple(source for name in DISTRIBUTIONS for source in sources(f"plugins/{name}"))


def reached(module: str) -> dict[str, Source]:
    """The modules of finqa that are imported when this one is, packages around them included."""
    product = (*sources("finqa_cli"), *sources("plugins/finqa_plugins"), *distributions())
    known = {source.module: source for source in product}
    found: dict[str, Source] = {}
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name in known and name not in found:
                found[name] = known[name]
                waiting += [imported for imported, at_start in known[name].imports() if at_start]
    return found
