"""Builds a wheel of the running package from the files that it was imported from.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from finqa_cli import __version__
from finqa_cli.errors import ConfigError

DISTRIBUTION = "finqa"
PACKAGES = ("finqa_cli", "finqa_plugins")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16
_UNIX = 3


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file.

    Attributes:
        name: `finqa-<version>-py3-none-any.whl`.
        content: Its bytes: the same for the same sources on any machine, at any time and in any kind of installation.
        modules: Dotted names of the modules in it.
    """

    name: str
    content: bytes
    modules: frozenset[str]

    @property
    def digest(self) -> str:
        """Hex sha256 of the bytes."""
        return hashlib.sha256(self.content).hexdigest()


@lru_cache(maxsize=1)
def package_wheel() -> Wheel:
    """The wheel of the running package, read once per process.

    It contains Python sources only, without weights and other files of a checkout, because a server needs no more.

    Raises:
        ConfigError: The package is not installed, or was not imported from a folder of files.
    """
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError as error:
        raise ConfigError(
            "finqa runs here without being installed, so no wheel of it can be made.", remedy="pip install -e ."
        ) from error
    sources = {name: path.read_bytes() for package in PACKAGES for name, path in _sources(package)}
    modules = frozenset(_module(name) for name in sources)
    return Wheel(f"{DISTRIBUTION}-{__version__}-py3-none-any.whl", _packed({**sources, **_about(installed)}), modules)


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """Name in the wheel and path of each module; files that cannot be imported are excluded."""
    spec = importlib.util.find_spec(package)
    root = Path(((spec and spec.submodule_search_locations) or [""])[0])
    if not (root / "__init__.py").is_file():
        raise ConfigError(
            f"{package} is not a folder of files here, so no wheel of it can be made.",
            remedy=f"install {DISTRIBUTION} again from the original source",
        )
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if path.is_file() and all(part.isidentifier() for part in parts):
            yield "/".join((package, *parts)) + ".py", path


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _about(installed: Distribution) -> Mapping[str, bytes]:
    """The files of `.dist-info` except RECORD, without a description: a changed README must not change the image."""
    info = f"{DISTRIBUTION}-{__version__}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        *(f"{field}: {value}" for field in ("Requires-Python", "Provides-Extra") for value in _all(installed, field)),
        *(f"Requires-Dist: {requirement}" for requirement in sorted(installed.requires or ())),
    ]
    entries: dict[str, list[str]] = {}
    for entry in sorted(installed.entry_points):
        entries.setdefault(entry.group, []).append(f"{entry.name} = {entry.value}")
    sections = ["\n".join([f"[{group}]", *lines, ""]) for group, lines in sorted(entries.items())]
    return {
        f"{info}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: finqa\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(sections).encode(),
    }


def _all(installed: Distribution, field: str) -> list[str]:
    return sorted(installed.metadata.get_all(field) or ())


def _packed(files: Mapping[str, bytes]) -> bytes:
    """A zip of the files and their RECORD, sorted and uncompressed: compression differs between zlib versions."""
    record = f"{DISTRIBUTION}-{__version__}.dist-info/RECORD"
    lines = [f"{name},sha256={_checksum(content)},{len(content)}\n" for name, content in sorted(files.items())]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]).encode())]:
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.create_system, entry.external_attr = _UNIX, _REGULAR_FILE
            archive.writestr(entry, content)
    return buffer.getvalue()


def _checksum(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
