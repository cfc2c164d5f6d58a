"""Completion of words for shells.

A request is an environment variable, which Typer's scripts set (`finqa --install-completion`). Only the standard
library is imported, because the user waits for the result.

Commands, options and components, also those of plugins, are in an index in FINQA_HOME. The first request after finqa,
a plugin or a checkout's source changed makes it again, which takes one to two seconds.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

REQUEST = "_FINQA_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

Candidate = tuple[str, str]
"""A completed word, and its help."""

Index = dict[str, Any]
"""`commands` by their full name, and `lists` of names with their help; see `completion_index.index`."""

_MOST_RUNS = 200
_EMPTY: Index = {"commands": {"": {"commands": {}}}, "lists": {}}
_PACKAGE = Path(__file__).parent


def is_asked() -> bool:
    """Return whether this process was started to complete a word, for one of `SHELLS`."""
    return os.environ.get(REQUEST, "") in {f"complete_{shell}" for shell in SHELLS}


def main(make_index: Callable[[], Index]) -> int:
    """Print the completions of the request, and return the exit status.

    Args:
        make_index: Makes the index; called only if the one in FINQA_HOME is missing or out of date.
    """
    shell = os.environ[REQUEST].removeprefix("complete_")
    words, incomplete = read_words(shell, os.environ)
    found = list(complete(read_index(os.environ, make_index), words, incomplete))
    if shell == "fish" and os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    print(format_candidates(shell, found))
    return 0


def read_index(environment: Mapping[str, str], make_index: Callable[[], Index]) -> Index:
    """Return the index in FINQA_HOME; if it is missing or out of date, make it and store it.

    A failure, such as a syntax error in a checkout, leads to the old index or an empty one, because what a completion
    prints to stderr appears in the line that the user types.
    """
    known, stamp = _read_file(environment), _stamp(environment)
    old = known.get("index")
    if known.get("stamp") == stamp and isinstance(old, dict):
        return old
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # plugins may print when imported
            made = make_index()
    except Exception:
        return old if isinstance(old, dict) else _EMPTY
    _write_file(environment, json.dumps({"stamp": stamp, "index": made}, ensure_ascii=False))
    return made


def read_words(shell: str, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the complete words after the program's name, and the beginning of the word to complete."""
    if shell == "bash":
        words, place = _split(environment.get("COMP_WORDS", "")), int(environment.get("COMP_CWORD") or 0)
        before, incomplete = words[1:place], words[place] if place < len(words) else ""
        if incomplete == "=":  # bash splits `--engine=t` into three words
            incomplete = ""
        return before[:-1] if before[-1:] == ["="] else before, incomplete
    typed = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(typed)[1:]
    return (words[:-1], words[-1]) if words and not typed.endswith(" ") else (words, "")


def complete(index: Mapping[str, Any], words: Sequence[str], incomplete: str) -> Iterator[Candidate]:
    """Yield the completions of a word.

    Args:
        index: Result of `read_index`.
        words: The words before it.
        incomplete: The beginning of the word.
    """
    name, given = _find_command(index["commands"], words)
    command = index["commands"][name]
    if "commands" in command:
        yield from _starting(incomplete, command["commands"].items())
        return
    options = {flag: option for option in command["options"] for flag in option["flags"]}
    flag, equals, value = incomplete.partition("=")
    if equals and flag in options:
        for text, about in _values(index, options[flag]["kind"], value):
            yield f"{flag}={text}", about
        return
    if given and given[-1] in options and options[given[-1]]["kind"] != "switch":
        yield from _values(index, options[given[-1]]["kind"], incomplete)
        return
    if incomplete.startswith("-"):
        yield from _starting(incomplete, [(flag, option["help"]) for flag, option in options.items()])
        return
    for kind in command["arguments"]:
        yield from _values(index, kind, incomplete)


def format_candidates(shell: str, found: Sequence[Candidate]) -> str:
    """Return the completions in the format of the shell's script. Without any, zsh completes file names."""
    if shell == "bash":
        return "\n".join(text for text, _ in found)
    if shell == "fish":
        return "\n".join(f"{text}\t{about}" if about else text for text, about in found)
    if not found:
        return "_files"
    shown = [f'"{_escape(text)}"' + (f':"{_escape(about)}"' if about else "") for text, about in found]
    return "_arguments '*: :((" + "\n".join(shown) + "))'"


def _read_file(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json.loads(_index_file(environment).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_file(environment: Mapping[str, str], text: str) -> None:
    """Write the index. In a folder that is not writable there is none, so each completion makes it."""
    file = _index_file(environment)
    part = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError:
        return


def _index_file(environment: Mapping[str, str]) -> Path:
    """Return the file of this Python environment and this finqa, because several may share one FINQA_HOME."""
    home = Path(environment.get("FINQA_HOME") or "~/.cache/finqa").expanduser()
    return home / f"completions-{zlib.crc32(f'{sys.prefix} {_PACKAGE}'.encode()):08x}.json"


def _stamp(environment: Mapping[str, str]) -> list[str]:
    """Return what changes with the index: modification times of installed distributions, and of a checkout's files."""
    further = environment.get("PYTHONPATH", "").split(os.pathsep)
    places = [each for each in sys.path[1:] if each.endswith(("site-packages", "dist-packages")) or each in further]
    found = []
    for place in dict.fromkeys(places):
        try:
            found.append(f"{place} {Path(place).stat().st_mtime_ns}")
        except OSError:
            continue
    if str(_PACKAGE.parent) not in places or (_PACKAGE.parent / "pyproject.toml").is_file():  # an editable installation
        times = [*_file_times(_PACKAGE), *_file_times(_PACKAGE.parent / "plugins")]
        found.append(f"{_PACKAGE} {len(times)} {max(times)}")
    return found


def _file_times(folder: Path) -> Iterator[int]:
    """Yield the modification times of all source and settings files below a folder, in nanoseconds."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # the folder was removed since it was listed
        return
    for entry in entries:
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _file_times(Path(entry.path))
        elif entry.name.endswith((".py", ".toml")):
            with suppress(OSError):
                yield entry.stat().st_mtime_ns


def _find_command(commands: Mapping[str, Any], words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that the words name, and the words after it."""
    name = ""
    for place, word in enumerate(words):
        longer = f"{name} {word}".strip()
        if "commands" not in commands[name] or (longer not in commands and not word.startswith("-")):
            return name, list(words[place:])
        name = longer if longer in commands else name
    return name, []


def _values(index: Mapping[str, Any], kind: Any, incomplete: str) -> Iterator[Candidate]:
    """Yield values of a kind: a list of choices, the name of a list of the index, `runs` or `snapshots`."""
    if isinstance(kind, list):
        yield from _starting(incomplete, [(choice, "") for choice in kind])
    elif kind == "runs":
        label, equals, name = incomplete.partition("=")
        named = f"{label}=" if equals else ""
        yield from _starting(incomplete, [(f"{named}{run}", about) for run, about in _runs(name if equals else label)])
    elif kind == "snapshots":
        yield from _starting(incomplete, _snapshots())
    elif kind == "settings":
        yield from _starting(incomplete, [(f"{name}=", about) for name, about in index["lists"][kind].items()])
    elif kind in index["lists"]:
        yield from _starting(incomplete, index["lists"][kind].items())


def _snapshots() -> list[Candidate]:
    """Return the names of the data sets in FINQA_HOME."""
    home = Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser()
    try:
        return [(entry.name, "") for entry in sorted(os.scandir(home / "snapshots"), key=lambda each: each.name)]
    except OSError:
        return []


def _runs(incomplete: str) -> list[Candidate]:
    """Return the newest runs below ./runs with their command: by their path, or by their name if that is typed."""
    try:
        folders = sorted((entry for entry in os.scandir("runs")), key=lambda entry: entry.stat().st_mtime, reverse=True)
    except OSError:
        return []
    found = []
    for folder in folders[:_MOST_RUNS]:
        try:
            facts = json.loads(Path(folder.path, "run.json").read_text(encoding="utf-8"))
            typed = folder.name if incomplete and folder.name.startswith(incomplete) else folder.path
            found.append((typed, f"{facts['command']}, {facts['status']}"))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _starting(incomplete: str, candidates: Any) -> Iterator[Candidate]:
    return ((text, about) for text, about in candidates if text.startswith(incomplete))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is not closed yet
        return text.split()


def _escape(text: str) -> str:
    plain = text.replace('"', '""').replace("'", "''").replace("$", "\\$").replace("`", "\\`")
    return re.sub(r"\s+", " ", plain.replace(":", "\\\\:"))
