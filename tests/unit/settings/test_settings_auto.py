from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.settings import EMBEDDED, Facts, choose, facts, load_settings
from finqa_cli.settings.backend_choice import GPU_MODEL, cuda_visible


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Facts(), (EMBEDDED, "transformers", "local")),
        (Facts(vllm=True), (EMBEDDED, "transformers", "local")),
        (Facts(cuda=True), (GPU_MODEL, "transformers", "local")),
        (Facts(cuda=True, vllm=True), (GPU_MODEL, "vllm", "local")),
        (Facts(daytona_key=True), (EMBEDDED, "transformers", "local")),
        (Facts(daytona=True), (EMBEDDED, "transformers", "local")),
        (Facts(daytona=True, daytona_key=True), (EMBEDDED, "transformers", "daytona")),
    ],
)
def test_backends_follow_from_what_is_there(known: Facts, expected: tuple[str, str, str]) -> None:
    chosen = choose(known)
    assert (chosen.model, chosen.engine, chosen.sandbox) == expected
    assert list(chosen.reasons) == ["model", "engine", "sandbox"]
    assert chosen.line().count("(") == 3 and "\n" not in chosen.line()
    assert chosen.line(sandboxless=True).count("(") == 2 and "sandbox" not in chosen.line(sandboxless=True)
    assert chosen.line(new_model=True).startswith("chosen: engine ")


def test_a_given_name_is_kept_and_needs_no_reason() -> None:
    chosen = choose(Facts(cuda=True, vllm=True), model=EMBEDDED, sandbox="mine")
    assert (chosen.model, chosen.engine, chosen.sandbox) == (EMBEDDED, "transformers", "mine")
    assert chosen.reasons == {"engine": "engine transformers (it serves the embedded model)"}
    assert choose(Facts(), model="a", engine="b", sandbox="c").line() == ""
    assert choose(Facts(), model="a", engine="b").line(sandboxless=True) == ""


def test_an_environment_may_have_a_small_policy_of_its_own() -> None:
    assert choose(Facts(policy="embedded-code")).model == "embedded-code"
    assert choose(Facts(policy="embedded-code", cuda=True, vllm=True), model="embedded-code").engine == "transformers"
    assert choose(Facts(policy="embedded-code", cuda=True)).model == GPU_MODEL


def test_its_profile_applies_to_every_small_policy(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: False)
    loaded = load_settings(flags={"environment.name": "code"}, policies={"code": "embedded-code"})
    assert loaded.settings.model.name == "embedded-code"
    assert loaded.origins["train.group_size"] == "profile embedded"
    assert load_settings(policies={"code": "embedded-code"}).settings.model.name == EMBEDDED


def test_a_key_without_its_provider_is_mentioned() -> None:
    assert "no daytona provider is registered" in choose(Facts(daytona_key=True)).line()


def test_facts_count_only_registered_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "k")
    assert facts(()).daytona is False and facts(()).daytona_key is True
    assert facts({("sandbox", "daytona")}).daytona is True


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
