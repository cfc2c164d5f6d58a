"""Where a server's temporary files lie."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path

import pytest

from finqa_plugins.engines.vllm import vllm_process

SOCKET = "12345678-1234-1234-1234-123456789abc"


@pytest.mark.parametrize("depth", [0, 30, 60])
def test_sockets_find_room_however_long_the_usual_path_is(tmp_path: Path, depth: int) -> None:
    usual = tmp_path / ("x" * depth)
    usual.mkdir(exist_ok=True)
    folder = vllm_process.make_temporary_folder({"TMPDIR": str(usual)})
    try:
        assert len(os.fsencode(folder / SOCKET)) <= vllm_process.LONGEST_SOCKET
        fits = len(os.fsencode(usual / folder.name / SOCKET)) <= vllm_process.LONGEST_SOCKET
        assert folder.parent == (usual if fits else Path("/tmp"))
        assert folder.stat().st_mode & 0o077 == 0, "who reaches the sockets is let in"
    finally:
        folder.rmdir()


def test_compiled_kernels_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels(**environment: str) -> str:
        variables = vllm_process.temporary_variables(tmp_path / "own", environment)
        assert next(iter(variables.items())) == ("TMPDIR", str(tmp_path / "own"))
        return variables["TORCHINDUCTOR_CACHE_DIR"]

    name = f"torchinductor_{getpass.getuser()}"
    assert kernels(TMPDIR=str(tmp_path)) == str(tmp_path / name)
    assert kernels(TMPDIR=str(tmp_path / "missing")) == kernels() == str(Path(tempfile.gettempdir(), name))
    assert kernels(TORCHINDUCTOR_CACHE_DIR="/of/the/user") == "/of/the/user"
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # a container's user without a name
    assert kernels(TMPDIR=str(tmp_path)) == str(tmp_path / f"torchinductor_uid_{2**31 - 2}")
