"""Finds out whether this machine can isolate untrusted code, by making a sandbox and checking it from inside."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from finqa_cli.errors import ConfigError, SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest
from finqa_plugins.sandboxes._execution.seccomp import filter_program
from finqa_plugins.sandboxes.local.bubblewrap import USER, Isolation
from finqa_plugins.sandboxes.local.config import ISOLATION, PROGRAMS
from finqa_plugins.sandboxes.local.launches import BareLauncher, BubblewrapLauncher, Launcher
from finqa_plugins.sandboxes.local.supervision import supervise

OLDEST_PYTHON = (3, 11)
LAST_RESORT = "--sandbox daytona, or --dangerously-run-unisolated on a machine without valuable data"
SWITCHES = {
    "user/max_user_namespaces": ("0", "user.max_user_namespaces=10000"),
    "kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "kernel.apparmor_restrict_unprivileged_userns=0"),
}
"""Files below /proc/sys: the value that forbids users to create namespaces, and the setting that allows it."""

PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
"""Folders of installed packages below the prefix of a Python."""

LOOK_AROUND = """
import importlib.util, json, os, sys
def content(path):
    try:
        return open(path).read()
    except OSError:
        return ""
status = dict(line.strip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "python": sys.version_info[:2],
    "user": os.getuid(),
    "capabilities": int(status["CapEff"], 16),
    "filter": status.get("Seccomp") == "2",
    "environment": content("/proc/1/environ"),
    "package": importlib.util.find_spec("finqa_cli") is not None,
    "networks": [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]],
}))
"""


@functools.cache
def find_isolation(python: str = "") -> Isolation:
    """The strongest isolation that works here, checked from inside a sandbox.

    Args:
        python: Python for the sandboxes; empty to look for one.

    Raises:
        ConfigError: No isolation works; the error has the reason and the remedy.
    """
    first = Isolation(
        bwrap=_program("bwrap"),
        prlimit=_program("prlimit"),
        setpriv=_program("setpriv"),
        as_nobody=os.geteuid() == 0,
        python="",
    )
    reasons: list[str] = []
    for path, library in _pythons(python):
        for sealed, filtered in ((True, True), (False, True), (True, False), (False, False)):
            if filtered and not filter_program():
                continue
            hidden = _packages(library)
            found = replace(first, python=path, library=library, hidden=hidden, sealed=sealed, filtered=filtered)
            reason = _objection(BubblewrapLauncher(found), found)
            if not reason:
                return found
            reasons.append(reason)
    raise _refusal(reasons)


@functools.cache
def find_bare(python: str = "") -> BareLauncher:
    """A launcher of processes without isolation, with limits and, if this process is root, another user id.

    Raises:
        ConfigError: There is no Linux, no util-linux, or no Python that such a process can read.
    """
    prlimit, setpriv = (_program(name) for name in ("prlimit", "setpriv"))
    for path, _ in _pythons(python):
        found = BareLauncher(prlimit=prlimit, setpriv=setpriv, as_nobody=os.geteuid() == 0, python=path)
        if not _objection(found):
            return found
    raise _no_python()


def _objection(launcher: Launcher, expected: Isolation | None = None) -> str:
    """What is wrong with a test program that this launcher runs; empty if nothing is."""
    request = ExecutionRequest(argv=(PYTHON, "-I", "-c", LOOK_AROUND), limits=ExecutionLimits(cpu_s=10.0, wall_s=10.0))
    stop = os.eventfd(0)
    try:
        with launcher.prepared(request) as launch:
            result = supervise(launch, b"", request.limits, stop)
    except SandboxError as error:
        return error.message
    finally:
        os.close(stop)
    if result.ending is not Ending.EXITED or result.exit_code != 0:
        return f"a first program in the sandbox failed: {result.stderr.decode(errors='replace').strip()[-300:]}"
    seen = json.loads(result.stdout)
    if tuple(seen["python"]) < OLDEST_PYTHON:
        return f"Python {seen['python'][0]}.{seen['python'][1]} is too old"
    if expected is None:
        return ""
    wrong = {
        f"its user is {seen['user']}": seen["user"] != USER,
        "it has capabilities": seen["capabilities"] != 0,
        "its system calls are not filtered": seen["filter"] < expected.filtered,
        "the first process has an environment": seen["environment"] != "",
        "it can read this package, with tests and solutions": seen["package"],
        f"it has the networks {seen['networks']}": set(seen["networks"]) > {"lo"},
    }
    return ", ".join(what for what, is_so in wrong.items() if is_so)


def _pythons(python: str) -> Iterator[tuple[str, str]]:
    """Yield interpreters, each with its prefix, or an empty text if the prefix is below /usr."""
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    minors = range(sys.version_info.minor, OLDEST_PYTHON[1] - 1, -1)
    system = [f"{folder}/python3" for folder in ("/usr/local/bin", "/usr/bin")]
    system += [f"/usr/bin/python3.{minor}" for minor in minors]
    for name in [python] if python else [str(own), *system]:
        path = Path(name).resolve()
        if path.is_file():
            yield str(path), "" if path.is_relative_to("/usr") else str(path.parent.parent)


def _packages(library: str) -> tuple[str, ...]:
    """Folders with installed packages of all Pythons that a sandbox can read."""
    prefixes = [Path(name) for name in ("/usr", "/usr/local", library) if name]
    found = {path.resolve() for prefix in prefixes for pattern in PACKAGES for path in prefix.glob(pattern)}
    return tuple(sorted(str(path) for path in found if any(path.is_relative_to(prefix) for prefix in prefixes)))


def _program(name: str) -> str:
    """The path of a program.

    Raises:
        ConfigError: The program is not installed.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"Code cannot be executed here: that needs Linux, and this is {sys.platform}.", remedy="--sandbox daytona"
        )
    found = shutil.which(name, path=PROGRAMS)
    if found is None:
        raise ConfigError(
            f"Code cannot be isolated here: {name} of {ISOLATION[name]} is not installed.",
            remedy=f"sudo apt-get install {ISOLATION[name]}, or {LAST_RESORT}",
        )
    return found


def _refusal(reasons: list[str]) -> ConfigError:
    sandboxes = [reason for reason in reasons if "is too old" not in reason and "source path" not in reason]
    if not sandboxes:
        return _no_python()
    switches = [f"sudo sysctl {remedy}" for name, (off, remedy) in SWITCHES.items() if _switch(name) == off]
    container = "a container that can create user namespaces (docker run --security-opt seccomp=unconfined)"
    remedy = f"{' and '.join(switches) or container}, or {LAST_RESORT}"
    return ConfigError(f"Code cannot be isolated here: {sandboxes[-1].rstrip('.')}.", remedy=remedy)


def _no_python() -> ConfigError:
    user = "the user nobody" if os.geteuid() == 0 else "a sandbox"
    version = ".".join(map(str, OLDEST_PYTHON))
    return ConfigError(
        f"Code cannot be executed here: there is no Python {version} or newer that {user} can read.",
        remedy="sudo apt-get install python3, or --set sandbox.options.python=/a/python/that/everybody/can/read",
    )


def _switch(name: str) -> str:
    try:
        return (Path("/proc/sys") / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
