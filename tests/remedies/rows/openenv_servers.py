"""Servers of OpenEnv: their addresses, tokens, folders and lists of tasks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from fixtures.openenv_faces import FIXTURES, TOKEN, openenv_faces
from remedies.faults import Fault, new, text

PLAY = "eval random --limit 1 --sandboxes 1 --max-steps 2"
OPENENV = f"{PLAY} --environment openenv"
URL = "--set environment.options.url={url}"
SEEDS = "--set environment.options.tasks=1"
LISTED = "--set environment.options.tasks=server"
GOOD = f"{OPENENV} {SEEDS} {URL}/guess"
GOOD_LIST = f"{OPENENV} {LISTED} {URL}/listed --split train"
NOWHERE = "--set environment.options.url=http://127.0.0.1:9"


def at(address: str, tasks: str = SEEDS, **more: object) -> Fault:
    """A server that is asked by its address."""
    return Fault(f"{OPENENV} {tasks} {address}", server=openenv_faces, **more)  # type: ignore[arg-type]


def token(value: str) -> Callable[[], object]:
    def put() -> None:
        os.environ["SERVER_TOKEN"] = value

    return put


def folder(name: str = "", content: str = "") -> Callable[[], object]:
    """An environment in the folder `guess`, with one more file."""

    def write() -> None:
        shutil.copytree(FIXTURES / "openenv_guess", "guess", ignore=shutil.ignore_patterns("__pycache__"))
        if name:
            Path("guess", name).write_text(content, encoding="latin-1")

    return write


FOLDER = f"{OPENENV} {SEEDS} --set environment.options.module=guess"
TOKEN_ENV = "--set environment.options.token_env=SERVER_TOKEN"

OPENENV_SERVERS = {
    "no server at an address": at(NOWHERE, by_hand=new(GOOD)),
    "no OpenEnv server": at(f"{URL}/text", by_hand=new(GOOD)),
    "a token that is not set": at(f"{URL}/locked {TOKEN_ENV}", by_hand=token(TOKEN)),
    "a token with spaces": at(f"{URL}/locked {TOKEN_ENV}", env={"SERVER_TOKEN": "a b"}, by_hand=token(TOKEN)),
    "another token": at(f"{URL}/locked {TOKEN_ENV}", env={"SERVER_TOKEN": "wrong"}, by_hand=token(TOKEN)),
    "no token": at(f"{URL}/locked", by_hand=lambda: token(TOKEN)() or f"{OPENENV} {SEEDS} {URL}/locked {TOKEN_ENV}"),
    "another environment": Fault(f"{PLAY} {URL}/guess", server=openenv_faces),
    "a reward beside the server's": at(f"{URL}/guess --reward graded"),
    "resets that are no JSON": at(
        f"{URL}/guess --data x.jsonl",
        tasks="",
        write=text("x.jsonl", "{"),
        by_hand=text("x.jsonl", '{"seed": 1}\n'),
    ),
    "a server without a list": at(f"{URL}/guess", LISTED, by_hand=new(GOOD_LIST)),
    "a list that is none": at(f"{URL}/odd", LISTED, by_hand=new(GOOD_LIST)),
    "too long a list": at(f"{URL}/many", LISTED, by_hand=new(GOOD_LIST)),
    "no server with a list": at(NOWHERE, LISTED, by_hand=new(GOOD_LIST)),
    "a list of an image": Fault(f"{OPENENV} {LISTED} --set environment.options.image=x", then=(69, 78)),
    "no Dockerfile": Fault(f"{FOLDER} --set environment.options.recipe=dockerfile", folder()),
    "a project that is no TOML": Fault(FOLDER, folder("pyproject.toml", "["), by_hand=text("guess/pyproject.toml", "")),
    "requirements that are no text": Fault(
        FOLDER, folder("server/requirements.txt", "\xe4"), by_hand=text("guess/server/requirements.txt", "")
    ),
    "a Python without OpenEnv": Fault(
        f"{OPENENV} {LISTED} --set environment.options.module={FIXTURES / 'openenv_listed'} "
        "--set environment.options.python=/bin/false",
        fill={"VENV/bin/python": sys.executable},
        then=(0, 69),
    ),
}
