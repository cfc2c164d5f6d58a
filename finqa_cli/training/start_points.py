"""What training begins from. A policy that is an adapter is merged into a whole model first, once, in the run's folder.

A new adapter lies on a whole model, and with the adapter switched off that model is the reference which KL terms and
DPO pull towards. Were the old adapter dropped, or trained on, the reference would be another policy than the start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.runs.durable_files import read_document, write_json
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.step_manifest import policy_inputs
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.hub_models import check_on_hub
from finqa_cli.wiring.policies import START, START_RECORD, resolve


def find_start(reference: str, run: Path) -> PolicyVersion:
    """The policy that a run begins from, as version 0; in a run that has merged it already, that whole model.

    Changes nothing, so it may be asked before the run's folder is made. Where the policy is an adapter, its `model` has
    the tokenizer that the merged one will have.

    Raises:
        DataError: A run without a checkpoint, a damaged one, or the merged model was changed since.
        ConfigError: The reference is neither run, checkpoint, adapter nor model.
        AuthenticationError, ServiceUnavailableError: The hub refuses the model, or cannot be reached.
    """
    recorded = read_document(run / START_RECORD)
    if not recorded:
        start = replace(resolve(reference), number=0)
        check_on_hub(start)
        return start
    merged = PolicyVersion(number=0, model=str((run / START).resolve()))
    if policy_inputs(merged)["sha256"] != recorded.get("sha256"):
        raise DataError(
            f"{merged.model}, the model that {run} began from, was changed since.",
            remedy="begin again in another --run-dir",
        )
    return merged


def whole_model(start: PolicyVersion, run: Path, reporter: Reporter) -> PolicyVersion:
    """The start as a whole model to train: itself, or merged in float32 into RUN/start. The run's folder is open.

    Raises:
        ConfigError: The adapter does not fit its base, or no plugin merges its kind.
        StorageError: The disk is full or may not be written to.
    """
    if start.adapter is None:
        return start
    folder = (run / START).resolve()
    reporter.line(f"Merging {start.adapter} into {start.model}, to train from: {folder}.")
    merged: PolicyVersion | None = registry().hook.merge_policy(policy=start, folder=folder)
    if merged is None:
        raise ConfigError(
            f"Training starts from a whole model, and no plugin merges the adapter {start.adapter} into its base.",
            remedy="finqa plugins",
        )
    digest = policy_inputs(merged)["sha256"]
    write_json(run / START_RECORD, {"schema_version": 1, "merged": policy_inputs(start), "sha256": digest})
    return merged


def start_inputs(model: PolicyVersion, run: Path) -> dict[str, Any]:
    """What a run began from, as its manifest lists it: the policy that was named, and the digest of what was merged."""
    recorded = read_document(run / START_RECORD)
    return {**recorded["merged"], "merged_sha256": recorded["sha256"]} if recorded else policy_inputs(model)
