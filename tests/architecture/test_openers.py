"""Foreign input is opened by bounded readers: every other opener is named here, with what it opens."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from fnmatch import fnmatch

from source_tree import DISTRIBUTIONS, Source, sources

OPENERS = {
    *("json.load", "json.loads", "from_json", "yaml.load", "yaml.safe_load", "tomllib.load", "tomllib.loads"),
    *("pickle.load", "pickle.loads", "tarfile.open", "zipfile.ZipFile", "parquet.ParquetFile", "sqlite3.connect"),
    *("csv.reader", "openpyxl.load_workbook", "gzip.open", "gzip.decompress", "zlib.decompress", "torch.load"),
}
BOUNDED = (
    "finqa_cli/documents.py",  # JSON, YAML, TOML
    "finqa_cli/data/fetch/unpack.py",  # archives: entries, bytes, names, links
    "finqa_cli/data/question_files/read_files.py",  # Parquet files of questions: bytes
    "plugins/finqa_plugins/environments/_task_files/task_rows.py",  # Parquet files of tasks: bytes
    "plugins/finqa_plugins/engines/_http/json_documents.py",  # replies of models, whose parser refuses deep nesting
    "plugins/finqa_plugins/codecs/json_formats.py",  # calls of models: depth
)
OTHERS: Mapping[str, tuple[str, ...]] = {
    "tables of users, which have limits of their own": (
        "finqa_cli/data/own_tables/*",
        "finqa_cli/data/question_files/question_rows.py",
    ),
    "texts that a model or a person wrote, with limits of their own": (
        "finqa_cli/grading/*",
        "finqa_cli/wiring/model_judge.py",
        "plugins/finqa_plugins/engines/human/human_engine.py",
        "plugins/finqa_plugins/engines/_http/chat_replies.py",
        "plugins/finqa_plugins/engines/scripted/*",
    ),
    "lines of finqa's own records, one by one, whose damage is reported with the line": (
        "finqa_cli/evaluation/answer_rows.py",
        "finqa_cli/publishing/view/followed_run.py",
        "finqa_cli/publishing/report/episode_details.py",
        "finqa_cli/runs/*",
        "plugins/finqa_plugins/trackers/scalar_trackers.py",
    ),
    "files and memory that this installation of finqa wrote": (
        "finqa_cli/commands/datasets/data.py",
        "finqa_cli/completion.py",
        "finqa_cli/data/dataset.py",
        "finqa_cli/data/generated/*",
        "finqa_cli/data/question_files/show_question.py",
        "finqa_cli/data/snapshots/*",
        "finqa_cli/experiments/step_settings.py",
        "finqa_cli/extend/registry.py",
        "finqa_cli/local_models/hub_cache.py",
        "finqa_cli/placement/known_models.py",
        "finqa_cli/settings/layers.py",
        "finqa_cli/types/trajectories.py",
        "finqa_cli/venvs.py",
        "plugins/finqa_plugins/environments/code/function_tasks.py",
        "plugins/finqa_plugins/environments/openenv_finqa/*",
        "plugins/finqa_plugins/learners/torch/initial_policy.py",
        "plugins/finqa_plugins/learners/torch/state.py",
        "plugins/finqa_plugins/sandboxes/_images/*",
        "plugins/finqa_plugins/sandboxes/_quota/shared_quota.py",
        "plugins/finqa_plugins/sandboxes/daytona/daytona_ledger.py",
        "plugins/finqa_plugins/sandboxes/local/*",
    ),
    "pipes and connections of processes that finqa started": (
        "plugins/finqa_ray/workers/worker_messages.py",
        "plugins/finqa_plugins/engines/vllm/vllm_doctor.py",
        "plugins/finqa_plugins/environments/openenv/openenv_doctor.py",
        "plugins/finqa_interop/*",
        "plugins/finqa_plugins/environments/python_file/python_environment.py",
        "plugins/finqa_plugins/learners/torch/distributed/process_group.py",
        "plugins/finqa_plugins/sandboxes/docker/*",
    ),
    "replies of a sandbox, whose reader has limits of its own": ("plugins/finqa_plugins/sandboxes/_execution/*",),
    "files whose digest is known": ("finqa_cli/provisioning/get_models.py",),
    "headers of weights and facts of tokenizers, of limited length": (
        "finqa_cli/wiring/merged_adapters.py",
        "plugins/finqa_plugins/codecs/plain.py",
        "plugins/finqa_plugins/engines/_http/adapter_files.py",
        "plugins/finqa_ray/*",
    ),
    "weights, which torch reads without code": (
        "plugins/finqa_plugins/learners/torch/verl_shards.py",
        "plugins/finqa_plugins/learners/torch/whole_models.py",
    ),
    "services for tests": ("plugins/finqa_testing/*",),
}


def _opens(source: Source) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in OPENERS for node in ast.walk(source.tree))


def test_every_opener_is_bounded_or_named() -> None:
    opening = {
        source.name
        for folder in ("finqa", "finqa_cli", *(f"plugins/{name}" for name in ("finqa_plugins", *DISTRIBUTIONS)))
        for source in sources(folder)
        if _opens(source)
    }
    patterns = [*BOUNDED, *(pattern for group in OTHERS.values() for pattern in group)]
    unnamed = sorted(name for name in opening if not any(fnmatch(name, pattern) for pattern in patterns))
    assert not unnamed, f"use finqa_cli.documents, or name what is opened: {unnamed}"
    unused = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in opening)]
    assert not unused, f"these open nothing any more: {unused}"
