"""What the README says about the policy that ships with the package."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import finqa_plugins.policies
from finqa_cli.data import GenerateSpec, embedded_layout
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.wiring.policies import resolve

FOLDER = Path(finqa_plugins.policies.__file__).parent
RECIPE = Path(__file__).parents[3] / "recipes" / "tiny_policy.sh"


def test_it_resolves_by_name_and_is_a_small_qwen3() -> None:
    assert resolve("embedded").model == str(FOLDER)
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 6 * 2**20
    assert (FOLDER / "model.safetensors").stat().st_size / 4 <= 2_000_000, "float32: four bytes a parameter"


def test_it_was_taught_by_companies_that_the_embedded_data_does_not_have() -> None:
    command = re.search(r"--companies (\d+) --questions (\d+) --seed (\d+)", RECIPE.read_text())
    assert command is not None
    companies, _, seed = map(int, command.groups())
    taught = {table.company for table in generate(GenerateSpec(companies=companies, questions=1, seed=seed)).tables}
    with tempfile.TemporaryDirectory() as folder:
        embedded = {table.company for table in read_layout(embedded_layout(Path(folder))).tables}
    assert len(taught) == companies and len(embedded) == 60
    assert not taught & embedded
