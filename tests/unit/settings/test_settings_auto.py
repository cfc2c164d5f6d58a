from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.errors import ConfigError
from finqa_cli.extend import Component, Machine, Registry, registry
from finqa_cli.settings import AUTO, EMBEDDED, Choices, load_settings
from finqa_cli.settings.backend_choice import GPU_MODEL, choose, cuda_visible


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no key, and vLLM is not set up."""
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: False)
    monkeypatch.setattr("finqa_plugins.engines.vllm.plugin.find_venv", lambda home, name: None)
    monkeypatch.setattr("finqa_plugins.engines.vllm.plugin.importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)


def chosen(
    *, model: str = AUTO, engine: str = AUTO, sandbox: str = AUTO, policy: str = EMBEDDED, known: Registry | None = None
) -> Choices:
    return choose(known or registry(), Path("home"), model=model, engine=engine, sandbox=sandbox, policy=policy)


@pytest.mark.parametrize(
    ("cuda", "vllm", "key", "expected"),
    [
        (False, False, False, (EMBEDDED, "transformers", "local")),
        (False, True, False, (EMBEDDED, "transformers", "local")),
        (True, False, False, (GPU_MODEL, "transformers", "local")),
        (True, True, False, (GPU_MODEL, "vllm", "local")),
        (False, False, True, (EMBEDDED, "transformers", "daytona")),
    ],
)
def test_backends_follow_from_what_is_there(
    cuda: bool, vllm: bool, key: bool, expected: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: cuda)
    monkeypatch.setattr("finqa_plugins.engines.vllm.plugin.find_venv", lambda home, name: home if vllm else None)
    if key:
        monkeypatch.setenv("DAYTONA_API_KEY", "k")
    found = chosen()
    assert (found.model, found.engine, found.sandbox) == expected
    assert list(found.reasons) == ["model", "engine", "sandbox"]
    assert found.line().count("(") == 3 and "\n" not in found.line()
    assert found.line(sandboxless=True).count("(") == 2 and "sandbox" not in found.line(sandboxless=True)
    assert found.line(new_model=True).startswith("chosen: engine ")


def test_a_given_name_is_kept_and_needs_no_reason() -> None:
    found = chosen(model=EMBEDDED, sandbox="mine")
    assert (found.model, found.engine, found.sandbox) == (EMBEDDED, "transformers", "mine")
    assert found.reasons == {"engine": "engine transformers (it serves the embedded model)"}
    assert chosen(model="a", engine="b", sandbox="c").line() == ""


def test_an_environment_may_have_a_small_policy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(policy="embedded-code").model == "embedded-code"
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: True)
    assert chosen(policy="embedded-code", model="embedded-code").engine == "transformers"
    assert chosen(policy="embedded-code").model == GPU_MODEL


def test_its_profile_applies_to_every_small_policy(empty_folder: Path) -> None:
    loaded = load_settings(flags={"environment.name": "code"})
    assert loaded.settings.model.name == "embedded-code"
    assert loaded.origins["train.group_size"] == "profile embedded"
    assert load_settings().settings.model.name == EMBEDDED


def test_a_component_of_a_plugin_may_be_chosen_and_its_broken_check_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(machine: Machine) -> tuple[bool, str]:
        raise KeyError("cloud")

    parts = [
        Component(kind="engine", name="mine", target="a:b", rank=1),
        Component(kind="sandbox", name="here", target="a:b", rank=1),
        Component(kind="sandbox", name="cloud", target="a:b", rank=3, suits=breaks),
        Component(kind="sandbox", name="never", target="a:b"),
    ]
    known = Registry([])
    monkeypatch.setattr(known, "components", lambda kind: [part for part in parts if part.kind == kind])
    found = chosen(known=known)
    assert (found.engine, found.sandbox) == ("mine", "here")
    assert found.reasons["sandbox"] == "sandbox here (the check of cloud failed: KeyError: 'cloud')"
    parts.pop(1)
    with pytest.raises(ConfigError, match="KeyError: 'cloud'"):
        chosen(known=known)


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        (None, ["nvidia0", "nvidiactl"], True),
        (None, ["nvidiactl", "nvidia-uvm"], False),
        (None, [], False),
        (None, ["dxg"], True),
        ("", ["nvidia0"], False),
        ("-1", ["nvidia0"], False),
        ("0", ["nvidia0"], True),
    ],
)
def test_cuda_is_found_without_torch(
    visible: str | None, devices: list[str], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for device in devices:
        (tmp_path / device).touch()
    assert cuda_visible(tmp_path) is expected
