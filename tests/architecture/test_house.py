"""What can be held by a machine so that the product stays easy to find one's way in."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from source_tree import ROOT, Source, distributions, sources

MAX_FILES_IN_A_FOLDER = 25
MAX_LINES = 700
MAX_FUNCTION_LINES = 80

STARTS = re.compile(
    r"subprocess\.(run|Popen|call|check_call|check_output)|asyncio\.create_subprocess_(exec|shell)|os\.posix_spawnp?"
)
INHERITING = {
    "finqa_cli/experiments/step_runner.py": "finqa itself, which needs the keys",
    "plugins/finqa_plugins/engines/vllm/vllm_guard.py": "its own environment was chosen for the server",
    "plugins/finqa_ray/node_probe.py": "nvidia-smi, asked on nodes that may have an older finqa",
}
"""Modules that start a program with their own environment, and why this gives no secret to a stranger."""


DELETING = {
    "finqa_cli/deletion.py": "it is the one way to delete folders",
    "plugins/finqa_testing/coreweave/coreweave_service.py": "its own temporary folder",
    "plugins/finqa_testing/daytona/account.py": "its own temporary folder",
    "plugins/finqa_testing/daytona/loopback.py": "its own temporary folder",
    "plugins/finqa_plugins/engines/vllm/supervisor.py": "its own temporary folder",
    "plugins/finqa_plugins/engines/vllm/vllm_guard.py": "its own temporary folder, in a process without finqa",
    "plugins/finqa_plugins/engines/vllm/vllm_process.py": "its own temporary folder",
    "plugins/finqa_plugins/learners/torch/distributed/distributed_learner.py": "its own temporary folder",
    "plugins/finqa_plugins/learners/torch/distributed/serving.py": "its own temporary folder",
    "plugins/finqa_ray/folder_files.py": "its own temporary folder",
    "plugins/finqa_ray/node_folder.py": "its own temporary folder",
    "plugins/finqa_ray/rank_actor.py": "its own temporary folder",
    "plugins/finqa_plugins/sandboxes/local/launches.py": "its own temporary folder",
}
"""Modules that delete folders themselves, and which."""


def product() -> tuple[Source, ...]:
    return (*sources("finqa"), *sources("finqa_cli"), *sources("plugins/finqa_plugins"), *distributions())


def test_folders_stay_small() -> None:
    counted = Counter(source.path.parent for source in product())
    assert not {str(folder): count for folder, count in counted.items() if count > MAX_FILES_IN_A_FOLDER}


def test_modules_and_functions_stay_readable() -> None:
    wrong = []
    for source in (*product(), *sources("benchmarks")):
        if source.lines > MAX_LINES:
            wrong.append(f"{source.name}: {source.lines} lines, at most {MAX_LINES}")
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if size > MAX_FUNCTION_LINES:
                    wrong.append(f"{source.name}:{node.lineno} {node.name}: {size} lines, at most {MAX_FUNCTION_LINES}")
    assert not wrong, "\n".join(wrong)


def test_no_imports_go_round_in_circles() -> None:
    circles = [part for part in _strong_components(_imports()) if len(part) > 1]
    assert not circles, "\n".join(" <-> ".join(sorted(part)) for part in circles)


def _imports() -> dict[str, set[str]]:
    """Each module and the modules of ours that its import statements name, also those inside functions."""
    known = {source.module for source in product()}
    return {source.module: {name for name in _named(source.tree) if name in known} for source in product()}


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _strong_components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Kosaraju's algorithm, without recursion."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        stack = [(start, iter(graph[start]))] if start not in seen else []
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            following = next((name for name in rest if name not in seen), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(graph[following])))
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph.items():
        for other in imported:
            importers[other].add(name)
    parts: list[set[str]] = []
    placed: set[str] = set()
    for start in reversed(order):
        part, waiting = set(), [start]
        while waiting:
            node = waiting.pop()
            if node not in placed:
                placed.add(node)
                part.add(node)
                waiting += importers[node]
        if part:
            parts.append(part)
    return parts


GRPO = (
    "plugins/finqa_plugins/optimizers/grpo.py",
    "finqa_cli/algorithms/losses.py",
    "plugins/finqa_plugins/learners/torch/policy_loss.py",
)
MAX_GRPO_CODE = 300
"""Lines without blanks, comments and docstrings."""


def test_grpo_with_all_variants_is_read_in_three_short_files() -> None:
    chosen = [source for source in product() if source.name in GRPO]
    assert len(chosen) == len(GRPO)
    assert sum(_code_lines(source) for source in chosen) <= MAX_GRPO_CODE


def _code_lines(source: Source) -> int:
    texts = [
        node for node in ast.walk(source.tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    documented = {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = source.path.read_text(encoding="utf-8").splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(lines, start=1)
    )


def test_the_ways_through_the_code_name_what_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+\.py)\)", page)
    assert len(links) > 30
    missing = [
        f"{name} in {file}" for name, file in links if name not in _defined(ast.parse((ROOT / file).read_text()))
    ]
    assert not missing, "\n".join(missing)


def _defined(tree: ast.Module) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_a_started_program_gets_an_environment_that_was_chosen() -> None:
    inheriting = {
        source.name
        for source in product()
        if not source.name.startswith("plugins/finqa_testing/")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and STARTS.fullmatch(ast.unparse(node.func))
        if all(keyword.arg != "env" for keyword in node.keywords)
    }
    assert inheriting == set(INHERITING)


def test_folders_are_deleted_by_one_module() -> None:
    deleting = {
        source.name
        for source in product()
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("rmtree", "removedirs"))
        or (isinstance(node, ast.alias) and node.name == "rmtree")
    }
    assert deleting == set(DELETING)
