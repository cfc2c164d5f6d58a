from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from daytona import Image
from fixtures.tiny_snapshot import write_tiny_snapshot
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec, Snapshot
from finqa_plugins.sandboxes._images import image_recipe as module
from finqa_plugins.sandboxes._images.image_recipe import (
    REQUIREMENTS,
    parse_name,
    requirements,
    server_command,
    write_context,
)
from finqa_plugins.sandboxes._images.package_wheel import Wheel, package_wheel
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name, make_recipe

SERVER = "finqa_plugins.environments.openenv_finqa.server.run_server"
LINUX_312 = {"python_version": "3.12", "python_full_version": "3.12.14", "sys_platform": "linux", "os_name": "posix"}
MINE = Snapshot(name="mine", digest="sha256:" + "a" * 64, path=Path("/nowhere"))
SPEC = ServerSpec(snapshot=MINE, module=SERVER)
CONFIG = DaytonaSandboxConfig()


def test_the_name_says_which_snapshot_and_ends_in_a_digest() -> None:
    name = image_name(SPEC, CONFIG)
    assert re.fullmatch(r"finqa-mine-[0-9a-f]{12}", name) and name == image_name(SPEC, CONFIG)
    assert parse_name(name) == ("mine", name[-12:])


@pytest.mark.parametrize(
    "change",
    [{"cpu": 2}, {"memory_gib": 2}, {"disk_gib": 4}, {"base_image": "python:3.13-slim"}, {"target": "eu"}],
    ids=lambda change: next(iter(change)),
)
def test_other_resources_or_another_base_make_another_image(change: dict[str, Any]) -> None:
    assert image_name(SPEC, DaytonaSandboxConfig(**change)) != image_name(SPEC, CONFIG)


def test_other_data_or_code_or_dependencies_make_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image_name(SPEC, CONFIG)
    data = replace(SPEC, snapshot=replace(MINE, digest="sha256:" + "b" * 64))
    assert image_name(data, CONFIG) != before
    with monkeypatch.context() as patch:
        patch.setattr(module, "requirements", lambda: b"finqa\n")
        assert image_name(SPEC, CONFIG) != before
    ours = package_wheel()
    monkeypatch.setattr(module, "package_wheel", lambda: Wheel(ours.name, ours.content + b" ", ours.modules))
    assert image_name(SPEC, CONFIG) != before


def test_a_folder_with_a_server_of_another_maker_becomes_an_image(tmp_path: Path) -> None:
    folder = tmp_path / "maze_env"
    (folder / "server" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "server/app.py", "server/__pycache__/app.pyc", ".env"):
        (folder / name).write_text("x = 1")
    source = ServerSource(folder=folder, app="maze_env.server.app:app", requirements=("openenv-core[core]>=0.2.2",))
    spec = ServerSpec(command=("serve", "it"), source=source)
    recipe = make_recipe(spec, CONFIG)
    assert set(recipe.files) == {REQUIREMENTS, "server/maze_env/__init__.py", "server/maze_env/server/app.py"}
    assert re.fullmatch(r"finqa-maze_env-[0-9a-f]{12}", recipe.name)
    lines = recipe.dockerfile.splitlines()
    assert lines.index("COPY server ./server") < lines.index("USER finqa")
    assert "finqa snapshot build" in recipe.command and str(folder) in recipe.command
    command = "python -m uvicorn maze_env.server.app:app --app-dir /opt/finqa/server"
    assert server_command(spec)[:6] == tuple(command.split())
    (folder / "server" / "app.py").write_text("x = 2")
    assert make_recipe(spec, CONFIG).name != recipe.name
    assert image_name(replace(spec, source=replace(source, requirements=("openenv",))), CONFIG) != image_name(
        spec, CONFIG
    )


@pytest.mark.parametrize(
    "spec", [ServerSpec(image="ghcr.io/stock:1"), ServerSpec(command=("serve", "it")), ServerSpec(module=SERVER)]
)
def test_only_our_modules_with_a_snapshot_are_served(spec: ServerSpec) -> None:
    with pytest.raises(ConfigError, match=f"they cannot start {spec.server}") as caught:
        image_name(spec, CONFIG)
    assert ("--sandbox docker" in caught.value.remedy) == bool(spec.image), "which starts images"


def test_what_only_a_running_sandbox_is_told_makes_no_other_image() -> None:
    told = replace(SPEC, environment={"FINQA_HINTS": "1"}, port=9000, health_path="/ready")
    more = DaytonaSandboxConfig(create_limit=600, api_key="dtn_secret", ttl_minutes=60)
    assert image_name(told, more) == image_name(SPEC, CONFIG)


def test_a_server_of_somebody_elses_package_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"toy\.server is not part of finqa"):
        make_recipe(replace(SPEC, module="toy.server"), CONFIG)
    assert make_recipe(replace(SPEC, module=SERVER.rpartition(".")[0] + ".server_app"), CONFIG).files[
        package_wheel().name
    ]


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"))
def test_every_name_that_a_snapshot_can_have_is_read_back(name: str) -> None:
    image = image_name(replace(SPEC, snapshot=replace(SPEC.snapshot, name=name)), CONFIG)
    assert (parse_name(image) or ("",))[0] == name


@pytest.mark.parametrize(
    "name",
    ["", "daytonaio/sandbox", "mine-0123456789ab", "finqa-mine", "finqa-mine-0123456789AB", "finqa--0123456789a"],
)
def test_images_of_others_are_not_ours(name: str) -> None:
    assert parse_name(name) is None


def test_the_build_folder_holds_what_the_image_needs_readable_for_all_and_nothing_else(tmp_path: Path) -> None:
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    (snapshot.path / ".env").write_text("DAYTONA_API_KEY=dtn_secret")
    (snapshot.path / "tasks.jsonl").chmod(0o600)
    snapshot.path.chmod(0o700)  # as the store makes it
    recipe = make_recipe(replace(SPEC, snapshot=snapshot), CONFIG)
    folder = tmp_path / "context"
    folder.mkdir()
    image = Image.from_dockerfile(write_context(recipe, folder), strict_context=True)
    found = {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    data = [f"snapshot/{name}" for name in ("manifest.json", "tables.sqlite", "tasks.jsonl", "truth.jsonl")]
    assert found == {
        "snapshot": 0o755,
        **dict.fromkeys(["Dockerfile", package_wheel().name, "requirements.txt", *data], 0o644),
    }
    assert (folder / "snapshot/truth.jsonl").read_bytes() == (snapshot.path / "truth.jsonl").read_bytes()
    sent = [context.archive_path for context in image._context_list]
    assert sent == ["requirements.txt", package_wheel().name, "snapshot"], "what the SDK uploads, by names without /tmp"
    assert image.dockerfile() == recipe.dockerfile and str(tmp_path) not in recipe.dockerfile


def test_the_dockerfile_is_pinned_and_runs_as_nobody_special() -> None:
    lines = make_recipe(SPEC, CONFIG).dockerfile.splitlines()
    assert re.fullmatch(r"FROM python:3\.12-slim\S*@sha256:[0-9a-f]{64}", lines[0])
    copied = [line for line in lines if line.startswith("COPY")]
    assert [line.split()[1] for line in copied] == ["requirements.txt", package_wheel().name, "snapshot"]
    assert lines.index("USER finqa") > lines.index(copied[-1]), "the server cannot change its own code and data"
    own = make_recipe(SPEC, DaytonaSandboxConfig(base_image="registry.example/python:3.12@sha256:" + "1" * 64))
    assert own.dockerfile.startswith("FROM registry.example/python:3.12@sha256:111")


def test_the_pins_of_the_image_are_those_of_constraints_and_complete() -> None:
    constraints = (Path(__file__).parents[4] / "constraints.txt").read_text().splitlines()
    pins = [line for line in requirements().decode().splitlines() if not line.startswith("#")]
    assert set(pins) <= set(constraints)
    assert {line.split("==")[0] for line in pins} == _closure("finqa", "openenv") - {"finqa"}


def _closure(name: str, *extras: str) -> set[str]:
    """Canonical names of everything that a distribution needs on Linux with Python 3.12, itself included."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        found.add(wanted[0])
        try:
            needed = distribution(wanted[0]).requires or []
        except PackageNotFoundError:  # for Python 3.12 only, and this is another one
            continue
        for requirement in map(Requirement, needed):
            if requirement.marker is None or requirement.marker.evaluate({**LINUX_312, "extra": wanted[1]}):
                child = canonicalize_name(requirement.name)
                waiting += [(child, extra) for extra in ("", *requirement.extras)]
    return found
