from __future__ import annotations

import ast

from source_tree import FLOORS, FOR_PLUGINS, PLUGIN_LIBRARIES, ROOT, sources

HEAVY = ("torch", "transformers", "peft", "vllm", "openai", "daytona", "openenv", "fastmcp", "wandb")


def test_every_part_of_the_product_has_a_floor() -> None:
    parts = {source.part for source in sources("finqa_cli") if source.name != "finqa_cli/__init__.py"}
    assert parts <= set(FLOORS), f"no floor for {sorted(parts - set(FLOORS))}: add it to FLOORS and CONTRIBUTING.md"


def test_files_import_lower_floors_or_their_own_folder_only() -> None:
    wrong = []
    for source in sources("finqa_cli"):
        for name, _ in source.imports():
            target = name.split(".")[1:2]
            if not name.startswith("finqa_cli.") or target[0] not in FLOORS or source.part not in FLOORS:
                continue
            same = target[0] == source.part or {target[0], source.part} <= {"app", "boundary", "__main__"}
            if not same and FLOORS[target[0]] >= FLOORS[source.part]:
                wrong.append(f"{source.name} (floor {FLOORS[source.part]}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_plugins_import_the_lower_floors_and_themselves_only() -> None:
    wrong = []
    for source in sources("plugins/finqa_plugins"):
        for name, _ in source.imports():
            parts = name.split(".")
            outside = parts[0] == "finqa_cli" and len(parts) > 1 and parts[1] not in (*FOR_PLUGINS, "__version__")
            other = parts[0] == "finqa_plugins" and len(parts) > 1 and parts[1] not in (source.part, *PLUGIN_LIBRARIES)
            if outside or other:
                wrong.append(f"{source.name} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_libraries_of_plugins_register_nothing_and_use_no_plugin() -> None:
    folders = {source.part for source in sources("plugins/finqa_plugins") if source.name.count("/") > 2}
    registering = {source.part for source in sources("plugins/finqa_plugins") if source.path.name == "plugin.py"}
    assert folders - registering == set(PLUGIN_LIBRARIES)


def test_the_product_itself_never_imports_plugins() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in sources("finqa_cli")
        for name, _ in source.imports()
        if name.split(".")[0] == "finqa_plugins"
    ]
    assert not wrong, "\n".join(wrong)


def test_heavy_packages_are_imported_by_plugins_only_and_never_when_they_register() -> None:
    wrong = []
    for source in (*sources("finqa_cli"), *sources("plugins/finqa_plugins")):
        registers = source.path.name in ("plugin.py", "__init__.py")
        if source.name.startswith("plugins/") and not registers:
            continue
        wrong += [f"{source.name} imports {name}" for name, _ in source.imports() if name.split(".")[0] in HEAVY]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_click() -> None:
    every = (*sources("finqa_cli"), *sources("plugins"), *sources("benchmarks"))
    wrong = [source.name for source in every for name, _ in source.imports() if name.split(".")[0] == "click"]
    assert not wrong


def test_the_application_imports_nothing_but_typer_at_start() -> None:
    allowed = {"typer", "finqa_cli", "__future__", "collections", "importlib", "signal", "sys", "types", "typing"}
    (app,) = (source for source in sources("finqa_cli") if source.name == "finqa_cli/app.py")
    assert {name.split(".")[0] for name, at_start in app.imports() if at_start} <= allowed


def test_sizes_stay_readable() -> None:
    wrong = []
    for source in (*sources("finqa_cli"), *sources("plugins/finqa_plugins"), *sources("benchmarks")):
        if source.lines > 300:
            wrong.append(f"{source.name}: {source.lines} lines, at most 300")
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 80:
                    wrong.append(f"{source.name}:{node.lineno} {node.name}: {size} lines, at most 80")
    assert not wrong, "\n".join(wrong)


def test_no_two_test_files_share_a_name() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
