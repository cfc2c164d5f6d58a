"""The index: what is injected, which figure has to come out, and what measures it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.reliability import chaos, random_stops, sampled_runs, trained_runs
from benchmarks.reliability.existing import Measure, benchmark, program, tests, together
from benchmarks.reliability.scale import Scale

SERVER = "unit/environments/openenv_finqa"
DAYTONA = "unit/sandboxes/daytona"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One line of the table.

    Attributes:
        injection: What is done to the product.
        bar: What has to come out.
        measure: Does it; None where it does not apply.
        reason: Why it does not apply, or what of it is left out here.
    """

    name: str
    injection: str
    bar: str
    measure: Measure | None
    reason: str = ""


def _chaos(scale: Scale, folder: Path) -> list[Figure]:
    seeds = range(scale.seed, scale.seed + scale.seeds)
    return chaos.figures(chaos.run_seeds(seeds, folder, at_once=scale.at_once))


_SANDBOXES = "sandboxes"

REQUIREMENTS = (
    Requirement(
        name="chaos",
        injection="3 to 5 faults by seed beside `finqa train`, on local servers and on a loopback Daytona: SIGKILL or "
        "SIGSTOP of servers and their guards, of the service and of the trainer, Ctrl-C, full disk, clock steps of an "
        "hour, cut, slow and silent sockets, dead and frozen sandboxes, expired addresses, 429 and 5xx",
        bar="0 episodes lost, 0 rewards that differ, same metrics and adapters as undisturbed, 0 processes or "
        "sandboxes left",
        measure=_chaos,
    ),
    Requirement(
        name="R1",
        injection="SIGKILL of the trainer at a random moment, then `--resume`; 20 seeds",
        bar="metrics.jsonl without times and adapters identical to the unbroken run",
        measure=trained_runs.kill_trainer,
    ),
    Requirement(
        name="R2",
        injection="the same on a GPU, with vLLM, 3 kills",
        bar="question order, seeds and groups identical, weights equal",
        measure=None,
        reason="needs a CUDA device; `python -m benchmarks.gpu --only train` kills and resumes a training there",
    ),
    Requirement(
        name="R3",
        injection="SIGKILL while a checkpoint is written, 200 random instants",
        bar="a loadable checkpoint each time, at most the one under way lost",
        measure=trained_runs.kill_checkpoint_writes,
    ),
    Requirement(
        name="R4",
        injection="each file of a checkpoint truncated, one bit flipped, deleted, or one added; an adapter of another "
        "rank or base model",
        bar="all found and named, the checkpoint before is used, a resumed run ends the same",
        measure=together(
            trained_runs.damage_checkpoints,
            tests("unit/engines/transformers/test_transformers_engine_adapters.py", "unit/engines/http"),
        ),
    ),
    Requirement(
        name="R5",
        injection="20 % of 500 sandboxes killed in mid-episode, 5 % frozen; servers of a training killed 5 times, 20 "
        "seeds",
        bar="0 groups lost, 0 rollouts counted twice, 0 rewards that differ, wall time at most 1.3 times",
        measure=together(
            benchmark(_SANDBOXES, "--only", "chaos"),
            tests("end_to_end/test_faults_of_real_servers.py", "end_to_end/test_killed_servers.py", slow=True),
        ),
    ),
    Requirement(
        name="R6",
        injection="SIGSTOP of servers with sessions",
        bar="found within the timeout + 5 s, 0 episodes lost",
        measure=tests("unit/rollout/test_pool_local_servers.py", "unit/rollout/test_sandbox_states.py"),
    ),
    Requirement(
        name="R7",
        injection="replies cut, late or repeated at every place of an episode; a call cancelled",
        bar="observations and reward those of the clean episode, 0 shifted replies",
        measure=tests(
            "end_to_end/test_damaged_connections.py",
            f"{SERVER}/test_finqa_client.py",
            f"{SERVER}/test_stray_replies.py",
        ),
    ),
    Requirement(
        name="R8",
        injection="500 creates under 30 % 429, 5 % 5xx, 1 % lost replies",
        bar="500 ready, 0 duplicates or orphans, never above the limit",
        measure=together(benchmark(_SANDBOXES, "--only", "creates"), tests("end_to_end/test_daytona_faults.py")),
        reason="the time is told, not judged: refused creates count as if the account counted them",
    ),
    Requirement(
        name="R9",
        injection="Ctrl-C, twice, SIGTERM, kill -9, exception in a plugin; 20 runs each on both providers",
        bar="0 processes after 2 s, 0 sandboxes (after kill -9: after `finqa sandbox reap`)",
        measure=together(
            benchmark(_SANDBOXES, "--only", "signals"),
            tests(
                "end_to_end/test_leaks.py", f"{DAYTONA}/test_daytona_ledger.py", f"{DAYTONA}/test_daytona_listing.py"
            ),
        ),
        reason="without MemoryError",
    ),
    Requirement(
        name="R10",
        injection="SIGKILL of `finqa sample` at 20 random numbers of finished episodes, then `--resume`",
        bar="0 finished episodes lost or played again",
        measure=together(sampled_runs.kill_sampling, tests("unit/runs/test_group_commit.py")),
    ),
    Requirement(
        name="R11",
        injection="the disk is full while episodes are played, or read-only; writes come back short, fsync fails",
        bar="exit 74 with the path, earlier records intact, the run is resumed",
        measure=together(
            sampled_runs.fill_disks,
            tests(
                "unit/runs/test_run_records.py",
                "end_to_end/test_bad_input.py",
                "unit/sandboxes/local/test_short_of_everything.py",
            ),
        ),
    ),
    Requirement(
        name="R12",
        injection="more than 50 kinds of malformed files and tables",
        bar="0 tracebacks; row, field and reason are named, exit 65",
        measure=tests("unit/data/test_malformed_data.py", "unit/data/test_own_tables_malformed.py"),
    ),
    Requirement(
        name="R13",
        injection="10,000 random frames and 10,000 random tool calls",
        bar="0 uncaught exceptions, server alive, every reply a typed error",
        measure=together(
            program(
                "safety",
                *("--statements", "10"),
                quick=("--statements", "10", "--frames", "100", "--calls", "100"),
            ),
            tests(f"{SERVER}/test_finqa_fuzz.py"),
        ),
        reason="the latency is told, not judged",
    ),
    Requirement(
        name="R14",
        injection="145 SQL attacks and 10,000 random statements",
        bar="0 writes, 0 files, worst 1.1 s, memory + 64 MiB, reply 16 kB",
        measure=program(
            "safety",
            *("--frames", "10", "--calls", "10"),
            quick=("--statements", "100", "--frames", "10", "--calls", "10"),
        ),
    ),
    Requirement(
        name="R15",
        injection="14 escapes of code, 46 hacks of the judge",
        bar="14 blocked, 0 hacks paid",
        measure=benchmark("code_execution", "--only", "escapes", "--only", "hacks"),
    ),
    Requirement(
        name="R16",
        injection="keys in environment, settings, headers and addresses; refusals and failures that print them",
        bar="a key is in no output, log, file or process that needs none",
        measure=tests(
            "end_to_end/test_daytona_refusals.py",
            "unit/settings/test_logs.py",
            "unit/settings/test_settings_public.py",
            "unit/engines/openai/test_openai_keys.py",
            f"{DAYTONA}/test_daytona_errors.py",
            f"{SERVER}/test_server_token.py",
            "unit/sandboxes/coreweave/test_coreweave_access.py",
            "unit/sandboxes/images/test_image_wheel.py",
        ),
    ),
    Requirement(
        name="R17",
        injection="control tokens of every model family in questions, tables, errors and tool schemas",
        bar="0 control ids inside contents, loss on sampled tokens alone",
        measure=tests(
            "unit/codecs/test_chat_codec_conformance.py",
            "unit/codecs/test_chat_codec_qwen.py",
            "unit/codecs/test_token_fuzz.py",
        ),
    ),
    Requirement(
        name="R18",
        injection="canaries as answers; every byte that an agent or a client can reach; calls after the end",
        bar="0 canaries; every call after the end refused",
        measure=tests(
            f"{SERVER}/test_finqa_canary.py", f"{SERVER}/test_finqa_server.py", f"{SERVER}/test_finqa_protocol.py"
        ),
    ),
    Requirement(
        name="R19",
        injection="127 reward hacks, hostile answers of 4 kB, random answers",
        bar="0 hacks paid, 50 ms at most, longer answers refused",
        measure=tests(
            "unit/grading/test_strict_grading.py",
            "unit/grading/test_strict_3.py",
            "unit/grading/test_grading_safety.py",
        ),
        reason="of hacks that the tests know; `python -m benchmarks.grader` has others, of which some are paid",
    ),
    Requirement(
        name="R20",
        injection="training on data for evaluation only, or on companies and questions of both splits",
        bar="refused with exit 65 and the switch that allows it",
        measure=tests("end_to_end/test_split_guard.py", "unit/data/test_split_guard_rules.py"),
    ),
    Requirement(
        name="R21",
        injection="500 sessions for 30 minutes, 1 % of the sandboxes killed or frozen a minute",
        bar="memory + 2 % an hour at most, open files and threads flat, 0 episodes lost",
        measure=benchmark(_SANDBOXES, "--only", "soak"),
        reason="30 minutes instead of 6 hours",
    ),
    Requirement(
        name="R22",
        injection="signed addresses expire; a key is refused",
        bar="no episode lost; a wrong key ends the run at once, without repetition",
        measure=tests(
            "end_to_end/test_daytona_faults.py", "end_to_end/test_daytona_refusals.py", only="address or key"
        ),
    ),
    Requirement(
        name="R23",
        injection="an engine's server is killed, hangs, or refuses an adapter",
        bar="restarted, or a clear end, within 60 s; no completion of a wrong version",
        measure=together(
            benchmark(_SANDBOXES, "--only", "engine"),
            tests("unit/engines/vllm/test_vllm_supervision.py", "unit/engines/http/test_served_engine.py"),
        ),
        reason="vLLM's place is taken by servers of its protocol; `make test-vllm` runs the real one",
    ),
    Requirement(
        name="R24",
        injection="a plugin that fails on import, ends the process, takes a name twice, or has wrong methods",
        bar="it is named; everything else works",
        measure=tests("unit/extend/test_registry_guards.py", "unit/extend/test_authors_mistakes.py"),
    ),
    Requirement(
        name="R25",
        injection="a second process on a run, the clock back by an hour, an fsync of 500 ms",
        bar="refused with the pid of the first; 0 negative durations; the event loop waits 0.1 s at most",
        measure=together(sampled_runs.share_a_folder, tests("unit/runs/test_run_durability.py")),
    ),
    Requirement(
        name="R26",
        injection="markup and formulas in every text field of reports",
        bar="inert",
        measure=tests(
            "unit/evaluation/test_markdown.py", "unit/runs/test_run_durability.py", only="markdown or inert or formula"
        ),
        reason="finqa writes no HTML, so nothing is opened in a browser: Markdown and CSV are tested",
    ),
    Requirement(
        name="R27",
        injection="SIGTERM at 100 random moments of 28 commands, most with PyTorch",
        bar="ended within 5 s with a documented exit status; 0 processes, temporary files or tracebacks",
        measure=together(random_stops.measure, tests("commands/test_stubborn_processes.py")),
        reason="`python -m benchmarks.reliability.random_stops --model MODEL` stops commands with a real model",
    ),
    Requirement(
        name="R28",
        injection="100,000 damaged inputs of every reader of foreign input, 100,000 texts of JSON, TOML and YAML",
        bar="read or refused with an error of the list, within 5 s and 200 MB each",
        measure=tests("unit/test_fuzzed_readers.py", "unit/test_bounded_documents.py"),
    ),
    Requirement(
        name="R29",
        injection="mistakes of plugin authors in eval, train, plugins check, plugins and the commands that meet them",
        bar="each that is met names plugin, file and line; none is called a bug in finqa or ends other work",
        measure=tests("end_to_end/test_mistakes_in_real_runs.py"),
    ),
    Requirement(
        name="R30",
        injection="links in run folders, bombs, escape codes, hostile templates and servers, substituted packages",
        bar="nothing outside is deleted, everything is bounded, printable and blamed on its cause",
        measure=tests(
            "unit/runs/test_deletion.py",
            "unit/data/test_expanding_files.py",
            "unit/test_texts_from_outside.py",
            "unit/codecs/test_any_chat_template.py",
            "unit/environments/openenv/test_hostile_openenv_server.py",
            "unit/engines/http/test_bodies.py",
            "unit/engines/http/test_transport.py",
            "unit/data/fetch",
            "commands/test_setup_command.py",
        ),
    ),
)
