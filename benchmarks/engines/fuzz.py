"""Token fuzz: the test of that name, in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.figures import Figure, exactly

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    320: "test_sampled_tokens_survive_random_episodes",
    10_000: "test_sampled_tokens_survive_ten_thousand_random_episodes",
}


def fuzz(*, episodes: int) -> list[Figure]:
    """How many of so many episodes broke a token, a byte or the loss mask: the first one ends it."""
    test = f"tests/unit/codecs/test_token_fuzz.py::{TESTS[episodes]}"
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    held = done.returncode == 0 and "1 passed" in done.stdout
    if not held:
        print(done.stdout, done.stderr, file=sys.stderr)
    return [
        exactly("random episodes that lost a token, a byte or a mask", 0 if held else 1, 0, f"{episodes:,} episodes")
    ]
