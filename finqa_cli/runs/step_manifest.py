"""`manifest.json` of a step: what it was asked for, what it read and wrote by digest, and which versions did it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli import __version__
from finqa_cli.runs.durable_files import now, sha256_of, storage, write_json
from finqa_cli.types import PolicyVersion

MANIFEST = "manifest.json"
_PACKAGES = ("torch", "transformers", "peft", "vllm")


def write_manifest(
    folder: Path,
    command: str,
    *,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    outputs: Sequence[Path] = (),
) -> None:
    """Writes it into the folder, in place of an older one.

    Args:
        folder: Of the step.
        command: As in `finqa COMMAND`.
        parameters: What the result depends on, seeds included.
        inputs: By name, or in order, each with its digests.
        outputs: Files of the folder that are final; each is listed with its digest.

    Raises:
        StorageError: An output cannot be read, or the manifest cannot be written.
    """
    with storage(folder / MANIFEST):
        digests = {str(path.relative_to(folder)): sha256_of(path) for path in outputs}
    write_json(
        folder / MANIFEST,
        {
            "schema_version": 1,
            "command": command,
            "created": now(),
            "versions": versions(),
            "parameters": dict(parameters),
            "inputs": inputs,
            "outputs": digests,
        },
    )


def policy_inputs(policy: PolicyVersion) -> dict[str, Any]:
    """The policy, the sha256 of each of its files that lie on this machine, and one over names and digests of all."""
    places = (policy.adapter, Path(policy.model) if policy.model else None)  # Path("") is the working directory
    folders = [place for place in places if place is not None and place.is_dir()]
    files = {str(path): sha256_of(path) for folder in folders for path in sorted(folder.iterdir()) if path.is_file()}
    whole = hashlib.sha256("".join(f"{Path(path).name} {digest}\n" for path, digest in files.items()).encode())
    adapter = str(policy.adapter) if policy.adapter else None
    facts = {"model": policy.model, "adapter": adapter, "number": policy.number}
    return {**facts, "sha256": whole.hexdigest() if files else None, "files": files}


def versions() -> dict[str, str]:
    """finqa, Python and the packages that make a policy."""
    found = {"finqa": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
