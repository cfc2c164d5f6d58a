from __future__ import annotations

from pathlib import Path

import pytest
from daytona import Image

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import server_command, write_context
from finqa_plugins.sandboxes._images.own_dockerfile import read_dockerfile
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name, make_recipe

STOCK = """# as OpenEnv's template has it
ARG BASE_IMAGE=ghcr.io/meta-pytorch/openenv-base:latest
FROM ${BASE_IMAGE} AS builder
WORKDIR /app
COPY . /app/env
WORKDIR /app/env
RUN --mount=type=cache,target=/var/cache/uv \\
    if [ -f uv.lock ]; then \\
        uv sync --frozen; \\
    fi
FROM ${BASE_IMAGE}
WORKDIR /app
COPY --from=builder /app/env/.venv /app/.venv
COPY --from=builder /app/env /app/env
ENV PATH="/app/.venv/bin:$PATH"
HEALTHCHECK --interval=30s CMD curl -f http://localhost:8000/health || exit 1
CMD ["sh", "-c", "cd /app/env && uvicorn server.app:app --host 0.0.0.0 --port 8000"]
"""
CONFIG = DaytonaSandboxConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an environment with the Dockerfile of OpenEnv's template."""
    folder = tmp_path / "maze_env"
    (folder / "server").mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("server/app.py", "app = 1"), ("run.sh", "#!/bin/sh"), (".env", "KEY=x")):
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    (folder / "server" / "Dockerfile").write_text(STOCK)
    return folder


def spec_of(folder: Path) -> ServerSpec:
    source = ServerSource(
        folder=folder, app=f"{folder.name}.server.app:app", dockerfile=folder / "server" / "Dockerfile"
    )
    return ServerSpec(command=("serve", "it"), source=source)


def read(folder: Path, text: str) -> str:
    """Read another Dockerfile of the folder and return the command line of its server."""
    (folder / "server" / "Dockerfile").write_text(text)
    return read_dockerfile(folder / "server" / "Dockerfile", folder).command


def test_a_dockerfile_of_openenv_is_sent_with_the_folder_as_its_context(folder: Path, tmp_path: Path) -> None:
    recipe = make_recipe(spec_of(folder), CONFIG)
    assert recipe.dockerfile.startswith(STOCK.rstrip()), "unmodified"
    assert recipe.dockerfile.rstrip().endswith('ENTRYPOINT ["sleep", "infinity"]\nCMD []')
    context = tmp_path / "context"
    context.mkdir()
    image = Image.from_dockerfile(write_context(recipe, context), strict_context=True)
    assert [each.archive_path for each in image._context_list] == ["."], "COPY --from is not sent"
    sent = {path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()}
    assert sent == {"Dockerfile", "__init__.py", "run.sh", "server/Dockerfile", "server/app.py"}
    assert (context / "run.sh").stat().st_mode & 0o777 == 0o755
    command = "cd /app && exec sh -c 'cd /app/env && uvicorn server.app:app --host 0.0.0.0 --port 8000'"
    assert server_command(spec_of(folder)) == ("sh", "-c", command)
    assert recipe.command.endswith("--set environment.options.recipe=dockerfile")


def test_a_change_of_the_dockerfile_makes_another_image(folder: Path) -> None:
    before = image_name(spec_of(folder), CONFIG)
    (folder / "server" / "Dockerfile").write_text(STOCK + "# changed\n")
    assert image_name(spec_of(folder), CONFIG) != before


def test_another_base_image_takes_the_place_of_the_build_argument(folder: Path) -> None:
    recipe = make_recipe(spec_of(folder), DaytonaSandboxConfig(base_image="mirror/openenv-base:1"))
    assert "ARG BASE_IMAGE=mirror/openenv-base:1\n" in recipe.dockerfile
    (folder / "server" / "Dockerfile").write_text("FROM python\nCMD serve\n")
    with pytest.raises(ConfigError, match="no effect on"):
        make_recipe(spec_of(folder), DaytonaSandboxConfig(base_image="mirror/openenv-base:1"))


def test_a_dockerfile_written_for_the_repository_gets_its_layout(folder: Path) -> None:
    text = "FROM python\nWORKDIR /app\nCOPY envs/maze_env/ ./envs/maze_env/\nCMD uvicorn maze_env.server.app:app\n"
    assert read(folder, text) == "cd /app && exec sh -c 'uvicorn maze_env.server.app:app'"
    files = make_recipe(spec_of(folder), CONFIG).files
    assert "envs/maze_env/server/app.py" in files and all(name.startswith("envs/maze_env/") for name in files)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('FROM x\nENTRYPOINT ["serve"]\nCMD ["--port", "8000"]', "exec serve --port 8000"),
        ('FROM x\nCMD ["old"]\nFROM x\nWORKDIR /a\nWORKDIR b\nCMD ["new one"]', "cd /a/b && exec 'new one'"),
        ("FROM x\nADD https://example.org/x /x\nCMD serve", "exec sh -c serve"),
        ('FROM x\nCOPY server/*.py run.sh /x/\nCMD ["serve"]', "exec serve"),
    ],
)
def test_the_server_is_started_as_the_last_stage_says(folder: Path, text: str, command: str) -> None:
    assert read(folder, text) == command


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("COPY src/openenv/core/ /app/src/", "has no src/openenv/core/"),
        ("COPY envs/maze_env /x\nCOPY src/openenv/core/ /app/src/", "has no src/openenv/core/"),
        ("COPY ../secret /x", "outside of the build's folder"),
        ("COPY /etc/passwd /x", "outside of the build's folder"),
        ("COPY .env /x", "has no .env"),
        ("COPY envs/other_env/ /x", "has no envs/other_env/"),
        ("COPY $NAME /x", "does not expand"),
        ("ADD run.sh /x", "but not of ADD"),
        ("RUN --mount=type=secret,id=key cat /run/secrets/key", "mount of type secret"),
        ("WORKDIR $HOME", "depends on a variable"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(folder: Path, instruction: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(folder, f"FROM python\n{instruction}\nCMD serve\n")
    assert instruction.splitlines()[-1] in str(refused.value) and why in str(refused.value)
    assert "recipe=packages" in refused.value.remedy


def test_a_dockerfile_without_a_server_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="neither CMD nor ENTRYPOINT"):
        read(folder, "FROM python\n")
