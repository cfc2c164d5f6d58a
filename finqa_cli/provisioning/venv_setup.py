"""Makes the virtual environment of a component: it can be resumed, is checked, and is recognised once it exists.

Order on disk: the record of an earlier environment is removed first, then the environment; the new one is recorded as
`making` before packages are installed, and as `complete` only when all checks passed. After an interruption the next
call continues, and an unfinished environment is never taken for a finished one.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from finqa_cli.deletion import delete, lock_folder, unlock_folder
from finqa_cli.errors import ConfigError, DataError, StorageError
from finqa_cli.extend import Component, VenvSpec, registry
from finqa_cli.processes import ask_program
from finqa_cli.provisioning.venv_install import InstallerName, find_installer, install_command, run_logged
from finqa_cli.runs.durable_files import now, storage, write_json
from finqa_cli.runs.reporter import Reporter
from finqa_cli.venvs import RECORD, Venv, find_venv, read_record, venv_folder, venv_python

OWN_FILE_GB = 2.0
"""Disk space that is required for a requirements file of the user, whose packages are not known."""

_NESTED = re.compile(r"^(?:-r|-c|--requirement|--constraint)[ =]\s*(\S+)")
_PACKAGE = re.compile(r"Collecting |Processing |Requirement already satisfied|Downloaded ")
"""Lines in the output of pip and uv of which there is one for each package."""
_SOURCE = re.compile(r" \(from .*| in \S*/.*|(?<= )\S*/(?=[^/ ]+$)")
_TORCH = re.compile(r"^torch\s*[=<>~!;@\[]|^torch$")


Check = Callable[[Path, Path, Callable[[str], None], bool], Mapping[str, str]]
"""Type of the function that `VenvSpec.check` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that the user chose.

    Attributes:
        requirements: A requirements file; None: the pinned versions that ship with the plugin.
        no_deps: Install exactly the packages of the file, without their dependencies; only torch, which is installed
            first, is installed with its dependencies.
        installer: `pip`, `uv`, or `auto`: uv where it is installed, else pip.
        index: Address of a package index, or a folder of wheels; empty: the installer's own configuration.
        python: Interpreter to make the environment from; None: the one that runs finqa.
        recreate: Remove an existing environment and make a new one.
        start: Whether the check may start servers.
    """

    requirements: Path | None = None
    no_deps: bool = False
    installer: InstallerName = "auto"
    index: str = ""
    python: Path | None = None
    recreate: bool = False
    start: bool = True


def set_up(component: Component, home: Path, options: Options, reporter: Reporter) -> tuple[Venv, bool]:
    """Returns the environment of a component, which is made if needed, and whether it was made by this call.

    Raises:
        ConfigError: The Python is the wrong one, or another process sets the same environment up.
        DataError: The requirements file cannot be read.
        StorageError: There is too little space, or a file cannot be written.
        ServiceUnavailableError: The package index cannot be reached.
        FinqaError: The installer failed, or the environment does not work.
    """
    spec = component.venv
    assert spec is not None, "the command accepts only components with a virtual environment"
    file = options.requirements or shipped_pins(spec)
    base = (options.python or Path(sys.executable)).expanduser()
    if base.exists():
        base = base.absolute()  # as a bare name the file would be looked for in PATH
    version = _version(base)
    digest = pins_digest(file, version, options.no_deps)
    folder = venv_folder(home, component.name)
    lock = lock_folder(folder)
    try:
        found = find_venv(home, component.name)
        if found is not None and found.digest == digest and not options.recreate:
            return found, False
        if options.requirements is None:
            _check_python(spec, base, version)
        making = _Making(folder, file, digest, base, options, reporter, lock)
        making.run(spec, registry().function(component, spec.check))
    finally:
        unlock_folder(lock)
    made = find_venv(home, component.name)
    assert made is not None
    return made, True


def shipped_pins(spec: VenvSpec) -> Path:
    """Returns the requirements file that ships with a plugin."""
    package, _, name = spec.requirements.partition(":")
    return Path(str(resources.files(package) / name))


def pins_digest(file: Path, version: str, no_deps: bool) -> str:
    """Returns a digest of what decides the packages: the file, files that it names, the Python version and --no-deps.

    Raises:
        DataError: A file cannot be read.
    """
    digest = hashlib.sha256(f"python {version} no_deps {no_deps}\n".encode())
    for text in _texts(file):
        digest.update(text.encode())
    return f"sha256:{digest.hexdigest()}"


def drop_half_installed(site_packages: Path) -> list[str]:
    """Removes the metadata of distributions that an installer was writing when it was killed, so that it repeats them.

    pip and uv write the list of installed files (RECORD) last.

    Returns:
        Their names.
    """
    half = [one for one in sorted(site_packages.glob("*.dist-info")) if not (one / "RECORD").is_file()]
    for one in half:
        delete(one, within=site_packages)
    return [one.name.removesuffix(".dist-info") for one in half]


class _Making:
    def __init__(
        self, folder: Path, file: Path, digest: str, base: Path, options: Options, reporter: Reporter, lock: int
    ) -> None:
        self._folder, self._file, self._digest, self._base = folder, file, digest, base
        self._options, self._reporter, self._lock = options, reporter, lock
        self._log = folder / "setup.log"
        self._python = venv_python(folder)
        self._seen, self._now = 0, ""

    def run(self, spec: VenvSpec, check: Check) -> None:
        uv = find_installer(self._options.installer)
        record = read_record(self._folder)
        resumes = record.get("digest") == self._digest and record.get("state") == "making" and self._python.exists()
        if resumes and not self._options.recreate:
            self._reporter.line(f"1/3 continues in {self._python.parents[1]}")
            for half in drop_half_installed(self._site_packages()):
                self._reporter.line(f"    {half} was half installed and is installed again")
        else:
            self._make(with_pip=not uv)
        self._check_space(OWN_FILE_GB if self._options.requirements else spec.gigabytes)
        self._install(uv)
        self._reporter.line("3/3 checks the environment")
        versions = check(self._python, self._folder, self._reporter.line, self._options.start)
        self._write("complete", versions)

    def _make(self, *, with_pip: bool) -> None:
        with storage(self._folder):
            (self._folder / RECORD).unlink(missing_ok=True)
            if self._python.parents[1].exists():
                self._reporter.line(f"    removes the earlier {self._python.parents[1]}")
                delete(self._python.parents[1], within=self._folder)
        self._reporter.line(f"1/3 makes {self._python.parents[1]} from {self._base}")
        command = [str(self._base), "-m", "venv", *([] if with_pip else ["--without-pip"])]
        run_logged([*command, str(self._python.parents[1])], self._log, lambda _: None, hold=self._lock)
        self._write("making", {})

    def _check_space(self, needed_gb: float) -> None:
        present = sum(path.lstat().st_size for path in self._python.parents[1].rglob("*")) / 1e9
        free = shutil.disk_usage(self._folder).free / 1e9
        if free + present < needed_gb:
            raise StorageError(
                f"{self._folder} has {free:.1f} GB free, but about {needed_gb - present:.1f} GB are needed.",
                remedy="free some space, or export FINQA_HOME=/a/folder/with/space, then the same command again",
            )

    def _install(self, uv: tuple[str, ...]) -> None:
        name = "uv" if uv else "pip"
        self._reporter.line(f"2/3 installs {self._file} by {name}; its output goes to {self._log}")
        if not uv and not (self._site_packages() / "pip").is_dir():  # it was started with uv
            run_logged([str(self._python), "-m", "ensurepip"], self._log, lambda _: None, hold=self._lock)
        rest = ["--requirement", str(self._file)]
        if self._options.requirements is None:  # the shipped pins have a digest for each wheel
            rest.append("--require-hashes")
        steps = [rest]
        if self._options.no_deps:
            text = self._file.read_text()
            torch = [line.split("#")[0].strip() for line in text.splitlines() if _TORCH.match(line)]
            if "--hash=" in text:  # then every package is in the file, those that torch depends on too
                torch = []
            steps = [[*torch, "--constraint", str(self._file)]] * bool(torch) + [["--no-deps", *rest]]
        self._reporter.start("packages", None)
        try:
            for step in steps:
                command = install_command(uv, self._python, step, self._options.index)
                run_logged(command, self._log, self._show, hold=self._lock)
        finally:
            self._reporter.finish("packages")

    def _show(self, line: str) -> None:
        self._seen += bool(_PACKAGE.match(line))
        if line and not line.startswith("WARNING"):
            self._now = _SOURCE.sub("", line)[:80]
        self._reporter.advance("packages", self._seen, now=self._now)

    def _site_packages(self) -> Path:
        return next((self._python.parents[1] / "lib").glob("python*/site-packages"))

    def _write(self, state: str, versions: Mapping[str, str]) -> None:
        record = {"state": state, "digest": self._digest, "from": str(self._base), "requirements": str(self._file)}
        write_json(self._folder / RECORD, {**record, "versions": dict(versions), "time": now()})


def _texts(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read: {error}.", remedy="--requirements FILE, a file as pip reads it"
        ) from error
    yield text
    for line in text.splitlines():
        if nested := _NESTED.match(line.strip()):
            yield from _texts(file.parent / nested[1])


def _version(python: Path) -> str:
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        ended = ask_program([str(python), "-I", "-c", asked], timeout_s=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{python} is not valid Python: {error}.", remedy="--python PATH of one that runs") from error
    return ended.stdout.strip()


def _check_python(spec: VenvSpec, base: Path, version: str) -> None:
    def key(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    first, last = spec.pythons
    if not key(first) <= key(version) <= key(last):
        raise ConfigError(
            f"The pinned versions support Python {first} to {last}, but {base} is {version}.",
            remedy="--python PATH of another interpreter",
        )
