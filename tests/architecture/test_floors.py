from __future__ import annotations

import ast

from source_tree import DISTRIBUTIONS, FLOORS, FOR_PLUGINS, KINDS_OF_PLUGINS, distributions, part_of, reached, sources

HEAVY = {
    *("torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "vllm", "ray", "openai"),
    *("daytona", "cwsandbox", "openenv", "fastmcp", "wandb", "trackio", "tensorboard"),
}
PLAYING = "plugins/finqa_ray/workers/"
"""Plays episodes in other processes (hook `make_players`), with the parts that play them in this one."""
FOR_PLAYING = ("rollout", "runs", "settings", "wiring")
ENTRY = ("app", "boundary", "completion_index", "start", "__main__")
PURE = {
    *("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "math", "random", "statistics"),
    *("types", "typing", "finqa_cli", "numpy", "pydantic"),
}


def test_every_part_of_the_product_has_a_floor() -> None:
    parts = {source.part for source in sources("finqa_cli") if source.name != "finqa_cli/__init__.py"}
    missing = sorted(parts - set(FLOORS))
    assert not missing, f"no floor for {missing}: add it to FLOORS and docs/contributing/floors.md"


def test_files_import_lower_floors_or_their_own_folder_only() -> None:
    wrong = []
    for source in sources("finqa_cli"):
        for name, _ in source.imports():
            target = name.split(".")[1:2]
            if not name.startswith("finqa_cli.") or target[0] not in FLOORS:
                continue
            same = target[0] == source.part or (source.part in ENTRY and target[0] in (*ENTRY, "commands"))
            floor = FLOORS.get(source.part, -1)  # finqa_cli/__init__.py lies below all of them
            if not same and FLOORS[target[0]] >= floor:
                wrong.append(f"{source.name} (floor {floor}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_algorithms_and_the_optimizers_are_pure() -> None:
    algorithms = [(source, PURE) for source in sources("finqa_cli") if source.part == "algorithms"]
    plugins = sources("plugins/finqa_plugins")
    optimizers = [(source, PURE | {"finqa_plugins"}) for source in plugins if source.part == "optimizers"]
    assert algorithms and optimizers
    wrong = [
        f"{source.name} imports {name}"
        for source, allowed in (*algorithms, *optimizers)
        for name, _ in source.imports()
        if name.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_components_are_built_by_the_wiring_only() -> None:
    building = {
        source.name
        for source in sources("finqa_cli")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "create" and ast.unparse(node.value) == "registry()"
    }
    assert building == {"finqa_cli/wiring/build.py"}


def test_plugins_import_the_lower_floors_and_themselves_only() -> None:
    wrong = []
    for source in sources("plugins/finqa_plugins"):
        for name, _ in source.imports():
            parts = name.split(".")
            outside = parts[0] == "finqa_cli" and len(parts) > 1 and parts[1] not in (*FOR_PLUGINS, "__version__")
            part = part_of(tuple(parts)) if parts[0] == "finqa_plugins" and len(parts) > 1 else source.part
            other = part != source.part and "." in part and not part.split(".")[1].startswith("_")
            if outside or other:
                wrong.append(f"{source.name} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_distributions_import_what_plugins_of_other_authors_may_import() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in distributions()
        for name, _ in source.imports()
        if name.startswith("finqa_cli.") and name.split(".")[1] not in (*FOR_PLUGINS, "__version__")
        if not (source.name.startswith(PLAYING) and name.split(".")[1] in FOR_PLAYING)
    ]
    assert distributions() and not wrong, "\n".join(wrong)


def test_the_main_wheel_never_imports_another_distribution() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for folder in ("finqa", "finqa_cli", "plugins/finqa_plugins")
        for source in sources(folder)
        for name, _ in source.imports()
        if name.split(".")[0] in DISTRIBUTIONS
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_plugins_registers_one_or_is_a_library() -> None:
    inside = {source.part for source in sources("plugins/finqa_plugins") if source.name.count("/") > 2}
    registering = {source.part for source in sources("plugins/finqa_plugins") if source.path.name == "plugin.py"}
    others = {part for part in inside - registering if part not in KINDS_OF_PLUGINS}
    assert all(part.split(".")[-1].startswith("_") for part in others), sorted(others)


def test_the_product_itself_never_imports_plugins() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in sources("finqa_cli")
        for name, _ in source.imports()
        if name.split(".")[0] == "finqa_plugins"
    ]
    assert not wrong, "\n".join(wrong)


def test_the_python_interface_is_above_everything_and_shares_no_more_than_texts_with_the_commands() -> None:
    below = (*sources("finqa_cli"), *sources("plugins/finqa_plugins"))
    wrong = [
        f"{source.name} imports {name}"
        for source in below
        for name, _ in source.imports()
        if name.split(".")[0] == "finqa"
    ]
    shared = ("finqa_cli.commands.shared.", "finqa_cli.commands.recorded.list_runs")
    wrong += [
        f"{source.name} imports {name}"
        for source in sources("finqa")
        for name, _ in source.imports()
        if name.startswith(("finqa_cli.commands.", "finqa_cli.app", "finqa_plugins")) and not name.startswith(shared)
    ]
    assert sources("finqa") and not wrong, "\n".join(wrong)


def test_importing_the_python_interface_imports_errors_only() -> None:
    (start,) = (source for source in sources("finqa") if source.name == "finqa/__init__.py")
    imported = {name for name, at_start in start.imports() if at_start and name.startswith("finqa_cli")}
    assert all(
        name.startswith(("finqa_cli.errors", "finqa_cli.__version__")) or name == "finqa_cli" for name in imported
    )


def test_heavy_packages_are_imported_by_plugins_only() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in (*sources("finqa"), *sources("finqa_cli"))
        for name, _ in source.imports()
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_that_are_slow_to_import_are_imported_where_they_are_used() -> None:
    wrong = [
        f"{source.name} imports {name} at start"
        for source in (*sources("finqa"), *sources("finqa_cli"))
        for name, at_start in source.imports()
        if at_start and name.split(".")[0] in {"scipy", "jinja2", "markupsafe", "matplotlib", "pandas"}
    ]
    assert not wrong, "\n".join(wrong)


def test_neither_registering_nor_options_need_a_heavy_package() -> None:
    plugins = (*sources("plugins/finqa_plugins"), *distributions())
    registering = [source for source in plugins if source.path.name == "plugin.py"]
    configs = {
        node.value.value.partition(":")[0]
        for source in registering
        for node in ast.walk(source.tree)
        if isinstance(node, ast.keyword) and node.arg == "config" and isinstance(node.value, ast.Constant)
    }
    assert len(configs) > 10 and all(reached(module) for module in configs)
    wrong = {
        f"{module} imports {name} through {source.name}"
        for module in (*(source.module for source in registering), *configs)
        for source in reached(module).values()
        for name, at_start in source.imports()
        if at_start and name.split(".")[0] in HEAVY
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_nobody_imports_click() -> None:
    every = (*sources("finqa_cli"), *sources("plugins/finqa_plugins"), *distributions(), *sources("benchmarks"))
    wrong = [source.name for source in every for name, _ in source.imports() if name.split(".")[0] == "click"]
    assert not wrong


def test_the_application_imports_nothing_but_typer_at_start() -> None:
    allowed = {
        "typer",
        "finqa_cli",
        "__future__",
        "collections",
        "importlib",
        "gc",
        "io",
        "os",
        "signal",
        "sys",
        "types",
        "typing",
    }
    (app,) = (source for source in sources("finqa_cli") if source.name == "finqa_cli/app.py")
    assert {name.split(".")[0] for name, at_start in app.imports() if at_start} <= allowed
