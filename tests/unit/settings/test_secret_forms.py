"""What counts as a secret by its form, and what is left of a text when it is masked."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.masking import MASK, Masker, find_secret, is_secret_variable, mask_text, masked

HEADER = {"Authorization": "Token CANARY12"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:CANARY@h:8000/x?a=1", f"http://{MASK}@h:8000/x?a=1"),
        ("http://me:CAN/ARY@h/", f"http://{MASK}@h/"),
        ("http://me:CAN@ARY@h/", f"http://{MASK}@h/"),
        ("https://CANARY@h/x", f"https://{MASK}@h/x"),
        ("postgres://me:CANARY@db/finance", f"postgres://{MASK}@db/finance"),
        ("cannot open wss://h/ws?token=CANARY: refused", f"cannot open wss://h/ws?token={MASK} refused"),
        ("/ws?a=1&API_KEY=CANARY&b=2", f"/ws?a=1&API_KEY={MASK}&b=2"),
        ("https://h/?X-Amz-Signature=CANARY", f"https://h/?X-Amz-Signature={MASK}"),
        ("https://h/?sv=1&sig=CANARY%3D", f"https://h/?sv=1&sig={MASK}"),
        ("https://h/?api%5Fkey=CANARY", f"https://h/?api%5Fkey={MASK}"),
        ("https://h/#access_token=CANARY", f"https://h/#access_token={MASK}"),
        ("Authorization: Basic CANARY==", f"Authorization: {MASK}"),
        (json.dumps(HEADER), f'{{"Authorization": "{MASK}"}}'),
        (json.dumps(json.dumps(HEADER)), f'"{{\\"Authorization\\": \\"{MASK}\\"}}"'),
        ("{'X-Api-Key': 'CANARY'}", f"{{'X-Api-Key': '{MASK}'}}"),
        ("sent Bearer CANARY.12345", f"sent Bearer {MASK}"),
        ("host=h password=CANARY port=1", f"host=h password={MASK} port=1"),
        ("key sk-proj-CANARY0123456789ab is wrong", f"key {MASK} is wrong"),
        ("hf_CANARY0123456789", MASK),
        ("dtn_CANARY0123456789", MASK),
        ("ghp_CANARY0123456789", MASK),
        ("AKIACANARY0123456789", MASK),
    ],
)
def test_a_secret_is_known_by_its_form(text: str, shown: str) -> None:
    assert mask_text(text) == shown and "CANARY" not in shown
    assert find_secret(text) and find_secret({"a": [text]}) and find_secret(shown) is None
    assert is_secret_variable("ADDRESS", text) and masked({"a": [text]}) == {"a": [shown]}


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000/v1",
        "http://host:8000/repository@main",
        "https://github.com/organisation/repository@v1",
        "https://h/?page=2&sort=asc&monkey=1",
        "option 'api_key': Input should be a valid string",
        "a server with a bearer token, or without an Authorization header",
        "export DAYTONA_API_KEY=...",
        "--set engine.options.api_key_env=SERVER_KEY",
        "runs/sk-learn-regression hf_home hf_transfer",
        "mail me@example.org",
        "max_tokens=5, eos_token=<s>",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert mask_text(text) == text and find_secret(text) is None


@given(st.text(alphabet="ab1:/@?&=#;.\"' -_%", max_size=60))
def test_masking_again_changes_nothing(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once and find_secret(once) is None


@pytest.mark.parametrize("part", ["a", "x-", "://", "sk-a-", "?a", "a.password", "http://a:", "bearer ", "?key="])
def test_long_texts_are_masked_in_linear_time(part: str) -> None:
    started = time.process_time()
    mask_text(part * (200_000 // len(part)))
    assert time.process_time() - started < 5.0


def test_names_in_mappings_count_and_numbers_do_not() -> None:
    assert find_secret({"headers": {"X-Api-Key": "short"}}) == "a secret called X-Api-Key"
    assert find_secret({"token_ids": [1, 2], "secret": 3, "password": ""}) is None
    assert find_secret("short", "password") == "a secret called password"


def test_values_of_secret_variables_are_masked_wherever_they_occur() -> None:
    mask = Masker({"SERVICE_KEY": "plain-words-12", "SHORT_TOKEN": "abc", "PLACE": "plain-words-99"})
    assert mask("plain-words-12, abc and plain-words-99") == f"{MASK}, abc and plain-words-99"
