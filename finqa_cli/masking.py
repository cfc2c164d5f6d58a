"""The rules for what is a secret: by its name, by the form of a value, and by the variables of this process.

A secret by its form is a URL with user info or with a parameter such as `token`, an authorization header, a bearer
token, `password=...` in a text, or a key with the prefix of a well-known service. Settings refuse such values
(`settings/secret_values.py`); everything that is written or shown is masked. This module imports nothing heavy, because
the error boundary uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

MASK = "**********"
SHORTEST_SECRET = 8
"""Smallest length of a secret variable's value that is masked in texts; a shorter value may be an ordinary word."""

_SECRET = re.compile(
    r"(^|[_-])(api[_-]?key|(access|private|secret|account|signing)[_-]?key|secret|password|passwd|passphrase|token"
    r"|credentials?|authorization|cookie)$",
    re.I,
)
_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION|COOKIE)$", re.I)
_PARAMETER = re.compile(
    r"(^|[_.-])(token|(api|access|auth|private|secret|subscription)?key|sig|signature|auth|authorization|password|passwd|passphrase|pass|pwd|secret"
    r"|credentials?|jwt)$|^(access|auth|id|refresh|session)token$|^(client|app)secret$",
    re.I,
)
_TEXT = r"[^\s\"'<>\\]"
"""A character of a word in a text: values end at white space and quotes."""

Replacement = str | Callable[[re.Match[str]], str]


def _parameter(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}={MASK}" if _PARAMETER.search(unquote(match[2])) else match[0]


@dataclass(frozen=True, slots=True)
class _Rule:
    """One form of a secret.

    Attributes:
        what: Description of a value of this form, for messages.
        pattern: Pattern that finds the form in a text.
        replacement: Replacement for `re.sub` that masks it.
    """

    what: str
    pattern: re.Pattern[str]
    replacement: Replacement


_RULES = (
    _Rule(
        "a URL with a user name or password",
        # A password that was not encoded may contain "/" and "@". Digits after the colon are a port.
        re.compile(
            r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)"
            rf"(?:[^\s/?#@:\"'<>\\]{{0,300}}:(?!\d+(?:[/?#]|$)){_TEXT}{{0,300}}|[^\s/?#\"'<>\\]*)@"
        ),
        rf"\g<1>{MASK}@",
    ),
    _Rule(
        "a URL with a secret parameter",
        re.compile(r"([?&;#])([\w.%~+-]{1,64})=([^\s&#;\"'<>\\)\]},]+)"),
        _parameter,
    ),
    _Rule(
        "a header that authorizes",
        re.compile(
            r"(?i)(\b(?:proxy-)?authorization|\bx-api-key|\bapi-key|\bx-auth-token|\bx-access-token|\b(?:set-)?cookie)"
            r"(\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:(?:basic|bearer|digest|token|negotiate)\s+)?[^\s\"'\\,;}\])]{4,}"
        ),
        rf"\g<1>\g<2>{MASK}",
    ),
    _Rule(
        "a bearer token",
        re.compile(r"(?i)\b(bearer\s+)(?:(?=[\w.~+/-]*\d)[\w.~+/-]{8,}|[\w.~+/-]{20,})=*"),
        rf"\g<1>{MASK}",
    ),
    _Rule(
        "a password",
        re.compile(
            r"(?i)(password|passwd|passphrase|secret|api[_-]?key|access[_-]?token|auth[_-]?token)"
            r"=(?!\.\.\.|\$|<)([^\s\"'<>\\,;&)\]}]+)"
        ),
        rf"\g<1>={MASK}",
    ),
    _Rule(
        "the key of a service",
        re.compile(
            r"(?<![A-Za-z0-9])(?:sk-(?:[A-Za-z0-9]+-){0,3}[A-Za-z0-9_]{16,}|hf_[A-Za-z0-9]{16,}|dtn_[A-Za-z0-9]{16,}"
            r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[A-Z0-9]{16})[\w-]*"
        ),
        MASK,
    ),
)


def is_secret(name: str) -> bool:
    """Return whether a name is usually that of a secret, such as `api_key` or `HF_TOKEN`, but not `token_ids`."""
    return bool(_SECRET.search(name))


def is_secret_variable(name: str, value: str = "") -> bool:
    """Return whether an environment variable usually contains a secret, by its name or by the form of its value.

    Other programs should not get it. The rule for names is wider than `is_secret`: `AWS_ACCESS_KEY` is a secret here.
    """
    return _VARIABLE.search(name) is not None or find_secret(value) is not None


def without_secrets(variables: Mapping[str, str], meant: re.Pattern[str] | None = None) -> dict[str, str]:
    """Return the variables that another program may get, because they usually contain no secret.

    Args:
        variables: Names with their values.
        meant: Matches names of variables that are meant for the program, which gets them even if they are secrets.
    """
    return {
        name: value
        for name, value in variables.items()
        if (meant and meant.fullmatch(name)) or not is_secret_variable(name, value)
    }


def find_secret(value: Any, name: str = "") -> str | None:
    """Return a description of the secret that a value is or contains, such as `a bearer token`; None if there is none.

    Args:
        value: A text, or nested mappings and lists of texts.
        name: Name of the value. A text whose name is that of a secret is a secret in any form.
    """
    if isinstance(value, Mapping):
        return next((what for key, item in value.items() if (what := find_secret(item, str(key)))), None)
    if isinstance(value, (list, tuple)):
        return next((what for item in value if (what := find_secret(item, name))), None)
    if not isinstance(value, str) or value == MASK:
        return None
    if value and is_secret(name):
        return f"a secret called {name}"
    return next((rule.what for rule in _RULES if rule.pattern.sub(rule.replacement, value) != value), None)


def mask_text(text: str) -> str:
    """Return a text in which every secret with a known form is replaced by a mask; addresses stay readable."""
    for rule in _RULES:
        text = rule.pattern.sub(rule.replacement, text)
    return text


def masked(value: Any, name: str = "", mask: Callable[[str], str] = mask_text) -> Any:
    """Return a copy of nested mappings and lists in which every secret, by name or by form, is replaced by a mask.

    Args:
        value: The mappings and lists; values of other types than text are not changed.
        name: Name of the value.
        mask: Masks the secrets in a text.
    """
    if isinstance(value, Mapping):
        return {key: masked(item, str(key), mask) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name, mask) for item in value]
    if value and is_secret(name):
        return MASK
    return mask(value) if isinstance(value, str) else value


class Masker:
    """Masks texts for users: secrets by their form, and the values of secret variables wherever they occur."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """Read the environment variables now; None: those of this process."""
        found = os.environ if variables is None else variables
        values = {value.strip() for name, value in found.items() if _VARIABLE.search(name)}
        self._values = sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with secrets masked."""
        for value in self._values:
            text = text.replace(value, MASK)
        return mask_text(text)
