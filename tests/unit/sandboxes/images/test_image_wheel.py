from __future__ import annotations

import base64
import hashlib
import importlib
import io
import socket
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.errors import ConfigError
from finqa_plugins.sandboxes._images import package_wheel as module
from finqa_plugins.sandboxes._images.package_wheel import Wheel, package_wheel

SAME_WHEEL = """
import finqa_cli
from finqa_plugins.sandboxes._images.package_wheel import package_wheel
print(finqa_cli.__file__, package_wheel().digest)
"""


def names(wheel: Wheel) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        return archive.namelist()


def test_the_bytes_depend_on_the_sources_alone() -> None:
    first = package_wheel.__wrapped__()
    assert package_wheel.__wrapped__().content == first.content
    with zipfile.ZipFile(io.BytesIO(first.content)) as archive:
        facts = {(item.date_time, item.compress_type, item.external_attr) for item in archive.infolist()}
    assert facts == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 0o100644 << 16)}


def test_every_file_is_a_python_source_with_its_sha256_in_the_record() -> None:
    wheel = package_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (record,) = (name for name in files if name.endswith("/RECORD"))
    listed = dict(line.rsplit(",", 2)[:2] for line in files[record].decode().splitlines())
    assert listed.keys() == files.keys() and listed.pop(record) == ""
    for name, checksum in listed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert checksum == f"sha256={digest}", name
    outside = [name for name in files if not name.endswith(".py") and ".dist-info/" not in name]
    assert outside == [] and "finqa_plugins.environments.openenv_finqa.server.run_server" in wheel.modules


def test_metadata_and_entry_points_are_those_of_the_installed_distribution() -> None:
    installed = distribution("finqa")
    with zipfile.ZipFile(io.BytesIO(package_wheel().content)) as archive:
        about = {
            name.split("/")[1]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
        }
    metadata = Parser().parsestr(about["METADATA"])
    assert sorted(metadata.get_all("Requires-Dist") or []) == sorted(installed.requires or [])
    assert metadata["Name"] == "finqa" and metadata.get_payload() == ""
    assert all(f"{entry.name} = {entry.value}" in about["entry_points.txt"] for entry in installed.entry_points)


def test_secrets_and_whatever_else_lies_about_in_a_checkout_stay_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "untidy_package"
    stray = [
        ".env", "secrets.json", "id_rsa", "model.safetensors", "notes.txt", "__init__.py~", ".#part.py", "a copy.py",
        "2nd.py", "__pycache__/part.cpython-311.pyc", ".venv/lib/a.py", ".ipynb_checkpoints/part.py", "my-keys/a.py",
    ]  # fmt: skip
    for name in ("__init__.py", "part.py", "inner/__init__.py", *stray):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("KEY = 'dtn_secret'\n" if name in stray else "")
    (package / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "PACKAGES", ("untidy_package",))
    importlib.invalidate_caches()
    untidy = package_wheel.__wrapped__()
    inside = [name for name in names(untidy) if ".dist-info/" not in name]
    assert inside == ["untidy_package/__init__.py", "untidy_package/inner/__init__.py", "untidy_package/part.py"]
    assert b"dtn_secret" not in untidy.content
    assert untidy.modules == {"untidy_package", "untidy_package.inner", "untidy_package.part"}


@pytest.mark.parametrize(
    ("attribute", "value", "remedy"),
    [
        ("DISTRIBUTION", "finqa-absent", "pip install -e ."),
        ("PACKAGES", ("finqa_absent",), "install finqa again from the original source"),
    ],
)
def test_without_an_installation_there_is_no_wheel(
    attribute: str, value: object, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, attribute, value)
    with pytest.raises(ConfigError, match="no wheel of it can be made") as caught:
        package_wheel.__wrapped__()
    assert caught.value.remedy == remedy


def test_installed_it_serves_and_makes_the_same_wheel_again(tmp_path: Path) -> None:
    wheel, target = package_wheel.__wrapped__(), tmp_path / "site"
    (tmp_path / wheel.name).write_bytes(wheel.content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", target, tmp_path / wheel.name], check=True, timeout=60)
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        variables = {"PYTHONPATH": str(target), "FINQA_SNAPSHOT": str(snapshot.path)}
        inherited = {**variables, "FINQA_LISTEN_FD": str(listener.fileno())}
        serve = [sys.executable, "-m", "finqa_plugins.environments.openenv_finqa.server.run_server"]
        with subprocess.Popen(serve, env=inherited, cwd=tmp_path, pass_fds=[listener.fileno()]) as server:
            try:
                again = subprocess.run(
                    [sys.executable, "-c", SAME_WHEEL], env=variables, cwd=tmp_path, capture_output=True, text=True
                )
                assert again.stdout.split() == [str(target / "finqa_cli/__init__.py"), wheel.digest], again.stderr
                health = httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/health", timeout=60)
                assert health.json() == {"status": "healthy"}
            finally:
                server.terminate()
