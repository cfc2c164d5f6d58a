"""Contracts of components as tests: one suite per kind of component, for your own tests and `finqa plugins check`.

A test module imports everything of a suite and defines the fixture `subject`, the component:

    from finqa_testing.contract.reward_suite import *

    @pytest.fixture
    def subject() -> Reward:
        return registry().create("reward", "my-reward", {})

The suites say which other fixtures are needed or can be replaced, such as an answer that is right. They need the extra
`kit`, and pytest's `asyncio_mode = "auto"`.
"""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("*_suite.py")))
