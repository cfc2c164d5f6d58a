"""Creation of a package for a new plugin, with a working component that meets the contract of its kind."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from finqa_cli.errors import ConfigError, StorageError
from finqa_cli.extend.contract_check import registered_kind

TEMPLATES = Path(__file__).parent / "templates"

_SUMMARIES = {
    "environment": "Sums of two numbers",
    "reward": "Falls with the distance from the right number",
    "call_format": "Calls as one line of JSON",
    "optimizer": "Reward minus the mean of the other members",
    "tracker": "Metrics in a file of its own",
    "sandbox": "Servers as plain processes",
    "engine": "A plain transformers model",
    "chat_engine": "The last number of the conversation",
    "codec": "ChatML with tools and calls as plain text",
    "learner": "LoRA with AdamW, one sequence at a time",
}
_COMMANDS = {
    "environment": "finqa play --environment {name} --engine scripted",
    "reward": "finqa play --reward {name} --engine scripted",
    "call_format": "finqa play --set codec.options.call_format={name}",
    "optimizer": "finqa train --optimizer {name}",
    "tracker": "finqa train --tracker {name}",
    "engine": "finqa play --engine {name}",
    "chat_engine": "finqa play --engine {name}",
    "codec": "finqa play --set codec.name={name}",
    "learner": "finqa train --set learner.name={name}",
    "sandbox": "finqa play --engine scripted --sandbox {name}",
}
_BASES = {"sandbox": "SandboxProvider", "engine": "TokenEngine", "codec": "ChatCodec"}
_CONTEXTS = {
    "environment": "EnvironmentContext",
    "tracker": "TrackerContext",
    "sandbox": "SandboxContext",
    "engine": "EngineContext",
    "chat_engine": "EngineContext",
    "codec": "CodecContext",
    "learner": "LearnerContext",
}


def command_of(kind: str, name: str) -> str:
    """Return the command that uses a component of this kind."""
    return _COMMANDS[kind].format(name=name)


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package of a new component.

    Args:
        kind: A kind with a contract suite.
        name: Name of the component, in lower case with hyphens.
        folder: Folder of the package; it is created if it is missing, and must be empty.

    Returns:
        The paths of the files.

    Raises:
        ConfigError: The name is not valid for a package and a component.
        StorageError: The folder is not empty, or cannot be written.
    """
    package = f"finqa_{name.replace('-', '_')}"
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is not a valid plugin name: lower-case letters, digits and hyphens, starting with a letter.",
            remedy=f"finqa plugins new {kind} my-{kind.replace('_', '-')}",
        )
    title = "".join(part.capitalize() for part in name.split("-"))
    base = "".join(part.capitalize() for part in kind.split("_"))
    facts = {
        **{"kind": kind, "name": name, "package": package, "summary": _SUMMARIES[kind], "base": _BASES.get(kind, base)},
        **{"class": title if title.endswith(base) else title + base, "configured": kind != "call_format"},
        "registered": registered_kind(kind),
        **{"context": _CONTEXTS.get(kind, ""), "command": command_of(kind, name)},
    }
    written = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{package}/plugin.py": "plugin.py",
        f"{package}/{kind}.py": f"{kind}.py",
        "tests/test_contract.py": "test_contract.py",
    }
    texts = {path: _render(template, facts) for path, template in written.items()}
    texts[f"{package}/__init__.py"] = f'"""{_SUMMARIES[kind]}."""\n'
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StorageError(
                f"{folder} already exists.", remedy=f"finqa plugins new {kind} {name} --out ANOTHER-FOLDER"
            )
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write the package to {folder}: {error}.") from error
    return [folder / path for path in sorted(texts)]


def _render(template: str, facts: dict[str, object]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(f"{template}.jinja").render(facts)
