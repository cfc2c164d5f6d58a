"""Reads the part of the Dockerfile language that a loopback build supports."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

LOGGED = ("ARG", "CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "SHELL", "STOPSIGNAL", "USER", "VOLUME")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class BuildError(ValueError):
    """The image cannot be built; the message is the last line of the build's log."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile.

    Attributes:
        text: The instruction as it is written in the file.
        sources: For COPY and ADD, paths in the build context or in the stage `origin`.
        target: For COPY and ADD, absolute path inside the image; it ends with a slash if it must be a folder.
        command: For RUN, the shell command.
        origin: For COPY and ADD, the stage or image of the sources; empty for the build context.
        stage: For FROM, the name or number of the stage that the instruction begins.
    """

    text: str
    sources: tuple[str, ...] = ()
    target: str = ""
    command: str = ""
    origin: str = ""
    stage: str = ""


@dataclass(slots=True)
class Recipe:
    """A whole Dockerfile.

    Attributes:
        steps: Its instructions.
        environment: Variables of the last stage; those of a base image are unknown.
    """

    steps: list[Step] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Recipe:
    """Reads a Dockerfile (docs.docker.com/reference/dockerfile).

    Raises:
        BuildError: An instruction is unknown, malformed or not supported here.
    """
    recipe, folder, stages = Recipe(), "/", 0
    for line in _lines(text):
        name, _, rest = line.partition(" ")
        keyword, rest = name.upper(), rest.strip()
        if not recipe.steps and keyword not in ("FROM", "ARG"):
            raise BuildError("dockerfile parse error: no build stage in current context")
        if keyword in ("COPY", "ADD"):
            recipe.steps.append(_copy(line, rest, folder))
        elif keyword == "ENV":
            recipe.environment.update(_variables(rest, recipe.environment))
            recipe.steps.append(Step(line))
        elif keyword == "WORKDIR":
            folder = posixpath.join(folder, rest)
            recipe.steps.append(Step(line))
        elif keyword == "RUN":
            recipe.steps.append(Step(line, command=rest))
        elif keyword == "FROM":
            named = re.search(r"\s+AS\s+(\S+)\s*$", rest, re.IGNORECASE)
            recipe.steps.append(Step(line, stage=named[1].lower() if named else str(stages)))
            recipe.environment, folder, stages = {}, "/", stages + 1
        elif keyword in LOGGED:
            recipe.steps.append(Step(line))
        else:
            raise BuildError(f"dockerfile parse error: unknown instruction: {name[:64]}")
    if not recipe.steps:
        raise BuildError("the Dockerfile is empty")
    return recipe


def _lines(text: str) -> Iterator[str]:
    """Yields the instructions without comments and with continued lines joined."""
    held = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and held):
            continue
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        if whole := (held + line).strip():
            yield whole
        held = ""
    if held.strip():
        yield held.strip()


def _copy(line: str, rest: str, folder: str) -> Step:
    options, rest = _without_options(rest)
    origin = next((option.partition("=")[2].lower() for option in options if option.startswith("--from=")), "")
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        raise BuildError(f"dockerfile parse error: {line}") from None
    if len(words) < 2 or not all(isinstance(word, str) for word in words):
        raise BuildError(f"COPY requires at least two arguments: {line}")
    *sources, target = words
    if target in (".", "./"):
        target = "./"
    absolute = posixpath.normpath(posixpath.join(folder, target))
    must_be_folder = target.endswith("/") or len(sources) > 1
    return Step(line, tuple(sources), absolute + ("/" if must_be_folder else ""), origin=origin)


def _without_options(rest: str) -> tuple[list[str], str]:
    options = []
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        options.append(option)
        rest = rest.strip()
    return options, rest


def _variables(rest: str, known: dict[str, str]) -> dict[str, str]:
    """Returns the variables of `ENV A=1 B="two words"`, or of the older form `ENV A one value`."""
    first = rest.split(maxsplit=1)
    if first and "=" not in first[0]:
        pairs = {first[0]: first[1] if len(first) > 1 else ""}
    else:
        try:
            pairs = dict(word.partition("=")[::2] for word in shlex.split(rest))
        except ValueError:
            raise BuildError(f"dockerfile parse error: ENV {rest}") from None
    return {
        name: _VARIABLE.sub(lambda found: known.get(found[1] or found[2], ""), value) for name, value in pairs.items()
    }
