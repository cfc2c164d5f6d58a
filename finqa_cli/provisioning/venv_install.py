"""Runs pip or uv for `finqa setup`: builds their command lines, and turns their output into an error."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from finqa_cli.errors import (
    ConfigError,
    DataError,
    FinqaError,
    MissingDependencyError,
    ServiceUnavailableError,
    StorageError,
)
from finqa_cli.masking import without_secrets
from finqa_cli.runs.durable_files import storage

InstallerName = Literal["auto", "pip", "uv"]

POLL_S = 0.25
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL of an installer that is interrupted."""
TAIL_LINES = 6
_TAIL_BYTES = 32 * 2**10

_NOT_OURS = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "VIRTUAL_ENV")
"""Environment variables that would make an installer write to another place than the environment."""

_INSTALLERS_OWN = re.compile(r"(PIP|UV)_.*|(HTTPS?|ALL|NO)_PROXY|GOOGLE_APPLICATION_CREDENTIALS", re.IGNORECASE)
"""Variables with secrets that an installer needs: those of its indexes, of proxies, and of keyrings."""

_NETWORK = re.compile(
    r"Failed to establish a new connection|Max retries exceeded|Name or service not known|name resolution"
    r"|Connection refused|Network is unreachable|ConnectTimeoutError|ReadTimeoutError|NewConnectionError"
    r"|error sending request|Could not connect|Failed to fetch|dns error|ProxyError",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|os error 28|Errno 28", re.IGNORECASE)
_NO_VENV = re.compile(r"ensurepip is not|No module named '?(venv|ensurepip)", re.IGNORECASE)
_SUBSTITUTED = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch for", re.IGNORECASE)
_WITH_DIGEST = re.compile(r"^ +(\S+==[^\s:]+)(?: from .*| \(.*)?:$", re.MULTILINE)
"""A package in pip's list of those with other digests; uv names it in its error."""
_PYTHON = re.compile(r"Requires-Python|requires a different Python|requires Python [<>=!~]", re.IGNORECASE)
_ERROR_LINE = re.compile(r"^\s*(ERROR|error|cause|hint)\b|^\s*[\u00d7\u2570\u251c]|\w+Error: ")


def find_installer(name: InstallerName) -> tuple[str, ...]:
    """Returns the command line of uv, or () for the pip of the new environment; `auto` is uv if it is installed.

    Raises:
        MissingDependencyError: The name is `uv`, and uv is not installed.
    """
    if name == "pip":
        return ()
    if found := shutil.which("uv"):
        return (found,)
    if importlib.util.find_spec("uv") is not None:
        return (sys.executable, "-m", "uv")
    if name == "uv":
        raise MissingDependencyError("uv is not installed.", remedy="pip install uv, or --installer pip")
    return ()


def install_command(uv: Sequence[str], python: Path, arguments: Sequence[str], index: str) -> list[str]:
    """Returns the command that installs into the environment of an interpreter.

    Args:
        uv: Command line of uv; empty for pip.
        python: Interpreter of the environment.
        arguments: Packages to install, in the form that both installers accept.
        index: Address of a package index, or a folder of wheels; empty: as the installer is configured.
    """
    source: list[str] = []
    if index:
        local = Path(index).expanduser()
        source = ["--no-index", "--find-links", str(local.absolute())] if local.is_dir() else ["--index-url", index]
    if uv:
        return [*uv, "pip", "install", "--python", str(python), "--no-progress", *source, *arguments]
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color", "--no-compile"]
    return [str(python), "-m", "pip", "install", *quiet, *source, *arguments]


def run_logged(command: Sequence[str], log: Path, tick: Callable[[str], None], *, hold: int) -> None:
    """Runs a command that writes to a log. On Linux it is killed if this process ends for any reason.

    Packages may run code while they are installed, so the command gets no secrets but those that are an installer's.

    Args:
        command: The command line.
        log: File to which the output is appended.
        tick: Called with each line of output, and a few times per second with an empty line.
        hold: File descriptor of the lock. The command inherits it, so that no other one installs until it has ended.

    Raises:
        FinqaError: The command failed; see `explain_failure`.
        StorageError: The log cannot be written.
    """
    passed = without_secrets(os.environ, meant=_INSTALLERS_OWN)
    environment = {name: value for name, value in passed.items() if name not in _NOT_OURS}
    with storage(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            file.flush()
            begin = file.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=(hold,),
                preexec_fn=_die_with_parent,
            )
    try:
        with log.open(encoding="utf-8", errors="replace") as written:
            written.seek(begin)
            while True:
                ended = process.poll() is not None
                for line in written:
                    tick(line.strip())
                if ended:
                    break
                tick("")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        raise explain_failure(_written(log, begin), status=process.returncode, log=log, name=_name(command))


def explain_failure(output: str, *, status: int, log: Path, name: str) -> FinqaError:
    """Returns the error for the user, from the output of the installer."""
    said = " / ".join(_last_words(output)) or "it wrote nothing"
    where = f"The complete output is in {log}."
    if _FULL.search(output):
        return StorageError(f"The disk is full: {said}. {where}", remedy="free some space, then the same command again")
    if _NETWORK.search(output):
        return ServiceUnavailableError(
            f"{name} cannot reach the package index: {said}. {where}",
            remedy="the same command again once the network is back, which continues; without one, "
            "--index-url FOLDER with the wheels, or the address of a mirror",
        )
    if _SUBSTITUTED.search(output):
        named = ", ".join(dict.fromkeys(_WITH_DIGEST.findall(output)))
        return DataError(
            f"{named or 'A package'} has another digest than the pinned one, so it was not installed: {said}. {where}",
            remedy="--index-url https://pypi.org/simple, or for wheels that you built yourself --requirements FILE",
        )
    if _NO_VENV.search(output):
        return ConfigError(
            f"This Python cannot create virtual environments: {said}. {where}",
            remedy="sudo apt-get install python3-venv, or --python PATH of another interpreter",
        )
    if _PYTHON.search(output):
        return ConfigError(
            f"The pinned versions do not support this Python: {said}. {where}", remedy="--python PATH of another Python"
        )
    return FinqaError(
        f"{name} failed with status {status}: {said}. {where}",
        remedy=f"read {log}; the same command again continues, with --recreate it starts from scratch",
    )


def _last_words(output: str) -> list[str]:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.lstrip().startswith("WARNING")]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return [line[:300] for line in (errors or lines)[-TAIL_LINES:]]


def _name(command: Sequence[str]) -> str:
    return "uv" if "--no-progress" in command else "pip" if "pip" in command else "venv"


def _written(log: Path, begin: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


def _die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends (PR_SET_PDEATHSIG, see prctl(2)), even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
