"""What Inspect's own `eval` finds: run by its interpreter with a URL, a task and a folder for its log."""

from __future__ import annotations

import json
import os
import sys

from inspect_ai import eval as evaluate
from inspect_ai.model import get_model
from inspect_ai.scorer import value_to_float

if __name__ == "__main__":
    url, task, folder = sys.argv[1:]
    os.environ["INSPECT_DISPLAY"] = "none"
    model = get_model("openai-api/loopback/analyst", base_url=url, api_key="none", responses_api=False)
    (log,) = evaluate(task, model=model, log_dir=folder, display="none", max_retries=0)
    assert log.status == "success", log.error
    as_float = value_to_float()
    rows = [
        [str(each.id), {name: as_float(score.value) for name, score in each.scores.items()}] for each in log.samples
    ]
    print(json.dumps(rows))
