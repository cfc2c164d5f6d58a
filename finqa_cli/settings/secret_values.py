"""Refusal of secrets in settings and on the command line, with the right way to pass each of them.

Settings are written into run folders and sent to trackers, and every user of a machine can read command lines.
Therefore a component reads its secret from an environment variable, which an option such as `token_env` may name. An
option of a component whose name is that of a secret (`api_key`) may also be set by a file, `.env` or a FINQA_ variable:
it is masked wherever settings are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.masking import MASK, find_secret, is_secret, masked
from finqa_cli.settings.layers import Layer, Value
from finqa_cli.settings.schema import DECLARATIONS

_TYPED = ("flag", "--set")
"""Origins of values from the command line."""

_WAYS: Mapping[str, str] = {
    "environment.options.url": "export SERVER_TOKEN=..., --set environment.options.token_env=SERVER_TOKEN, and an "
    "address without secrets in environment.options.url",
    "environment.options.variables": "set it where you run the server yourself, and name that server by "
    "--set environment.options.url=http://HOST:PORT",
    "environment.options": "export MY_VALUE=..., and read os.environ['MY_VALUE'] in the code of the environment",
    "reward.options": "export MY_VALUE=..., and read os.environ['MY_VALUE'] in the code of the reward",
    "engine.options.env": "hf auth login for models that need an account; the server reads the stored token",
    "engine.options": "export SERVER_KEY=... and --set engine.options.api_key_env=SERVER_KEY",
    "grader.options": "export JUDGE_KEY=... and --set grader.options.api_key_env=JUDGE_KEY",
    "sandbox.options": "export the key of the service: DAYTONA_API_KEY=... or CWSANDBOX_API_KEY=...",
    "trackers": "export the variable of the tracker, such as WANDB_API_KEY=...",
    "model": "export HF_TOKEN=..., and name the model without it",
    "data": "export HF_TOKEN=... for a data set that needs an account, and name it without secrets",
}
"""Setting, or first part of its name -> the right way to pass a secret; the first match is used."""

_OTHER_WAY = "leave it out, and export the variable of the service, such as HF_TOKEN=... or GITHUB_TOKEN=..."

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)?")
_PATH = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)+")


def refuse_secrets(layers: Sequence[Layer]) -> None:
    """Check every value of every layer, also values that a later layer replaces.

    Raises:
        ConfigError: A value is or contains a secret, or the value of a setting `..._env` is not the name of a variable.
            The message names the setting and its origin, but not the value.
    """
    for layer in layers:
        for path, value in layer.items():
            if path.endswith("_env") and isinstance(value.raw, str) and not _VARIABLE.fullmatch(value.raw):
                raise ConfigError(
                    f"{path} ({value.origin}) must be the name of an environment variable. Its value "
                    "is not shown, because it may be the secret itself.",
                    remedy=f"export SERVER_KEY=... and --set {path}=SERVER_KEY",
                )
            if what := _secret_in(path, value):
                typed = value.origin.startswith(_TYPED)
                raise _refusal(f"{path} ({value.origin})", what, path, typed=typed)


def refuse_arguments(words: Sequence[str]) -> None:
    """Check a command line, before a command or the processes that it starts could show it to other users.

    Raises:
        ConfigError: A word contains a secret. The message names the flag and the setting, but not the value.
    """
    for position, word in enumerate(words):
        if (what := find_secret(word)) is None:
            continue
        before = words[position - 1] if position else ""
        flag, equals, rest = word.partition("=") if word.startswith("--") else ("", "", word)
        if not equals:
            flag, rest = before if before.startswith("-") and "=" not in before else "", word
        named = _PATH.match(rest.partition("=")[0]) if flag == "--set" and "=" in rest else None
        path = named[0] if named else _setting_of(flag)
        place = f"{flag} {path}" if named else flag or "An argument"
        raise _refusal(place, "a secret" if _is_own(path) else what, path, typed=True)


def shown(path: str, raw: Any) -> str:
    """Return a value of a setting as messages show it, without secrets."""
    return repr(masked(raw, path.rpartition(".")[2]))


def way_to_give(path: str) -> str:
    """Return the right way to pass a secret that a setting must not contain."""
    return next((way for start, way in _WAYS.items() if path == start or path.startswith(f"{start}.")), _OTHER_WAY)


def _secret_in(path: str, value: Value) -> str | None:
    if not _is_own(path) or not isinstance(value.raw, str):
        return find_secret(value.raw, path.rpartition(".")[2])
    typed = value.origin.startswith(_TYPED) and value.raw not in ("", MASK)
    return "a secret" if typed else None


def _is_own(path: str) -> bool:
    """Return whether a setting is an option of a component whose name is that of a secret, such as `api_key`."""
    _, _, option = path.partition(".options.")
    return bool(option) and "." not in option and is_secret(option)


def _refusal(place: str, what: str, path: str, *, typed: bool) -> ConfigError:
    verb = "is" if what == "a secret" else "contains"
    reason = (
        "Other users of this machine can read command lines"
        if typed
        else "Settings are written into the files of a run"
    )
    remedy = f"export FINQA_{path.upper().replace('.', '__')}=..." if _is_own(path) else way_to_give(path)
    return ConfigError(f"{place} {verb} {what}. {reason}.", remedy=remedy)


def _setting_of(flag: str) -> str:
    """Return the path of the setting that a flag sets; empty if it sets none."""
    return next((path for path, each in DECLARATIONS.items() if flag in each.about.flags.replace("/", " ").split()), "")
