"""What verifiers' own `evaluate` finds: run by its interpreter with a URL, an environment and its arguments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it

import verifiers as vf
from verifiers.types import ClientConfig

if __name__ == "__main__":
    url, name, arguments = sys.argv[1:]
    os.environ["NO_KEY"] = "none"
    environment = vf.load_environment(name, **json.loads(arguments))
    client = ClientConfig(api_base_url=url, api_key_var="NO_KEY")
    found = environment.evaluate_sync(client, "analyst", num_examples=-1, rollouts_per_example=1)
    rows = [
        [each["prompt"][-1]["content"], each["reward"], {name: float(value) for name, value in each["metrics"].items()}]
        for each in found["outputs"]
    ]
    print(json.dumps(rows))
