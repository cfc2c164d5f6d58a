"""Mistakes of a plugin's author under real commands.

Each is named with plugin, file and line; none ends a run that has other work; none is called a bug in finqa; and no
name that is taken removes what had it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.mistaken_plugin import BAD, MARK, MistakenPlugin

from finqa_cli.app import main
from finqa_cli.extend.registry import registry

pytestmark = pytest.mark.thorough

EVAL = ("eval", "acme-engine", "--environment=acme-environment", "--split=test", "--run-dir=run")
SCRIPTED = ("eval", "scripted", *EVAL[2:])
JUDGED = (*EVAL, "--reward=acme-reward")
ONCE = "--set=pool.max_play_retries=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake, and what it may cost.

    Attributes:
        name: The test's name.
        costs: `episode`: one of twelve; `command`: it ends before an episode, since there is nothing else to do;
            `episodes`: all, by a fault each; `nothing`: it is left out, and the run is complete.
        base: The sound class of the plugin.
        body: The subclass with the mistake.
        module: Or lines at the end of the plugin's module.
        command: What is called.
        said: What is said about it beside plugin, file and line.
        unplaced: No line can be known, so the file is named.
    """

    name: str
    costs: str
    base: str = ""
    body: str = ""
    module: str = ""
    command: tuple[str, ...] = EVAL
    said: str = ""
    unplaced: bool = False


def raises(body: str) -> bool:
    """Whether an exception is the mistake, which is at its line; other mistakes are at the definition."""
    return "raise" in body or "/ 0" in body


def returning(costs: str, base: str, signature: str, *values: str, **more: object) -> list[Mistake]:
    """A method that returns each of these values, at the bad task where that is what it costs."""
    plain = signature.partition("(")[0] not in ("step", "reply", "grade", "open", "respond", "start")
    name, _, parameters = signature.partition("(")
    passed = parameters.rstrip(")").replace("*, ", "").replace("self, ", "").replace("self", "")
    passed = passed.replace("seed, sandbox", "seed=seed, sandbox=sandbox")
    sound = f"{'' if plain else 'await '}super().{name}({passed})"
    where = {
        "Stock": "self.bad",
        "Inventory": f"task.id == '{BAD}'" if name == "open" else f"task == '{BAD}'",
        "Answers": f"'{BAD}' in (episode if '{name}' == 'usage' else request.task)",
        "Judge": f"request.task.id == '{BAD}'",
    }[base]
    condition = where if costs == "episode" else "True"
    return [
        Mistake(
            name=f"{base}.{name} with {value}",
            costs=costs,
            base=base,
            body=(
                f"{'' if plain else 'async '}def {signature}:  {'' if raises(value) else MARK}\n"
                f"    if not ({condition}):\n"
                f"        return {sound}\n"
                f"    {value if raises(value) else f'return {value}'}  {MARK if raises(value) else ''}"
            ),
            **more,  # type: ignore[arg-type]
        )
        for value in values
    ]


def wrong_signature(costs: str, base: str, *signatures: str, **more: object) -> list[Mistake]:
    """A method that cannot be called as the contract does."""
    return [
        Mistake(
            name=f"{base} with {signature}",
            costs=costs,
            base=base,
            body=f"{'def' if 'init' in signature else 'async def'} {signature}:  {MARK}\n    ...",
            **more,  # type: ignore[arg-type]
        )
        for signature in signatures
    ]


def clash(kind: str, name: str) -> str:
    return f"EXTRA = [Component(kind='{kind}', name='{name}', target='<module>:Judge')]"


def hook(name: str, parameters: str, body: str, **more: object) -> Mistake:
    mark, other = ("", MARK) if raises(body) else (MARK, "")
    return Mistake(
        name=f"{name}() with {body}",
        costs=str(more.pop("costs", "nothing")),
        module=f"@hookimpl  {mark}\ndef {name}({parameters}):\n    {body}  {other}",
        **more,  # type: ignore[arg-type]
    )


RAISES = "raise KeyError('bolts')"
PLUGINS = ("plugins",)
UNPLACED = ("a heavy import", "output on import")
OWN_FILE = ("play", "--environment=own.py", "--engine=acme-engine")
DOCTOR = ("doctor", "--model=embedded", "--engine=transformers", "--sandbox=local")
INSPECT = ("model", "inspect", "embedded")
MISTAKES = [
    *returning("episode", "Stock", "step(self, call)", "None", "'7'", "Observation(text=7)", "{'text': '7'}", RAISES),
    *returning("episode", "Stock", "step(self, call)", "1 / 0", "raise StopIteration(7)", "raise SystemError(7)"),
    *returning("episode", "Stock", "reply(self, text)", "None", "'over'", RAISES),
    *returning("episode", "Stock", "grade(self)", "None", "1.0", "Rewards(total=None)", "Rewards(total=float('inf'))"),
    *returning("episode", "Stock", "grade(self)", "Rewards(total=1, components={'a': None})", "(1.0, {})", RAISES),
    *returning("episode", "Stock", "prompt(self)", "None", "'How many?'", "Prompt(messages=(), tools=())", RAISES),
    *returning("episode", "Inventory", "open(self, task, *, seed, sandbox)", "None", "object()", RAISES),
    *returning("episode", "Answers", "respond(self, request)", "None", "'7'", "{}", RAISES),
    *returning("episode", "Judge", "score(self, request)", "None", "1.0", RAISES, command=JUDGED),
    *returning("episode", "Judge", "score(self, request)", "Rewards(total='1')", command=JUDGED),
    *returning(
        "episode", "Inventory", "demonstrate_task(self, task, messages)", "'seven'", "7", RAISES, command=SCRIPTED
    ),
    *wrong_signature("episodes", "Stock", "step(self)", "reply(self)", "grade(self, task)"),
    Mistake(
        name="the constructor of a session raises",
        costs="episodes",
        base="Stock",
        body=f"def __init__(self, task, reward):\n    {RAISES}  {MARK}",
    ),
    *wrong_signature("episodes", "Answers", "respond(self)"),
    *wrong_signature("command", "Inventory", "__init__(self)"),
    *wrong_signature("command", "Answers", "__init__(self)"),
    *wrong_signature("command", "Judge", "__init__(self)", command=JUDGED),
    *[
        Mistake(
            name=f"{base}.{signature} with {body}",
            costs="command",
            base=base,
            body=f"{'async ' if name in ('start', 'check_ready') else ''}def {signature}:  "
            + (f"{MARK}\n    {body}" if "raise" not in body else f"\n    {body}  {MARK}"),
        )
        for base, signature, bodies in [
            ("Inventory", "tasks(self, split)", ("...", "return 'bolts'", "return [{'id': 1}]", RAISES)),
            ("Inventory", "splits(self)", ("...", "return 'test'", RAISES)),
            ("Inventory", "data(self)", ("...", "return 'inventory'", RAISES)),
            ("Inventory", "check_ready(self)", (RAISES,)),
            ("Inventory", "sandbox_spec(self)", ("return 'a sandbox'", RAISES)),
            ("Inventory", "inputs(self)", ("return 7", RAISES)),
            ("Answers", "start(self)", (RAISES,)),
        ]
        for name in [signature.partition("(")[0]]
        for body in bodies
    ],
    Mistake(
        name="measure raises",
        costs="nothing",
        base="Inventory",
        body=f"def measure(self, trajectories):\n    {RAISES}  {MARK}",
    ),
    *returning("nothing", "Answers", "usage(self, episode)", "7", RAISES),
    Mistake(
        name="close of a session raises",
        costs="nothing",
        base="Stock",
        body=f"async def close(self):\n    {RAISES}  {MARK}",
    ),
    Mistake(
        name="close of an engine raises",
        costs="nothing",
        base="Answers",
        body=f"async def close(self):\n    {RAISES}  {MARK}",
    ),
    *[hook(name, "", RAISES) for name in ("on_run_start", "on_trajectory", "on_eval", "on_run_end")],
    hook("on_trajectory", "trajectory, wrong", "...", said="wrong", command=PLUGINS),
    hook("find_component", "kind, name", RAISES, command=OWN_FILE),
    hook("find_component", "kind, name", "return name", command=OWN_FILE),
    hook("resolve_policy", "reference", RAISES, command=DOCTOR),
    hook("resolve_policy", "reference", "return reference", command=DOCTOR),
    hook("inspect_model", "reference", RAISES, command=INSPECT),
    hook("inspect_model", "reference", "return {}", command=INSPECT),
    hook("doctor_checks", "settings", RAISES, command=("doctor", "--engine=scripted", "--sandbox=local")),
    *[
        Mistake(
            name=name,
            costs="nothing",
            module=f"{line}  {MARK}",
            said=said,
            command=PLUGINS,
            unplaced=name in UNPLACED or "EXTRA" in line,
        )
        for name, line, said in [
            ("a heavy import", "import time; time.sleep(0.4)", "its import takes 0."),
            ("output on import", "print('hello')", "it prints 'hello' to stdout"),
            (
                "a name that is taken",
                clash("optimizer", "grpo"),
                "optimizer grpo: the name belongs to plugin 'optimizers'",
            ),
            ("another name that is taken", clash("environment", "finqa"), "environment finqa: the name belongs to"),
            ("a name twice", clash("reward", "acme-reward"), "reward 'acme-reward' is registered twice"),
            ("a kind that there is not", clash("optimiser", "x"), "'optimiser' is not a kind of component"),
            (
                "a target without a colon",
                "EXTRA = [Component(kind='reward', name='x', target='acme.x')]",
                "is not MODULE:NAME",
            ),
            ("no component", "EXTRA = ['a reward']", "gave a str, not a Component"),
            ("a syntax error", "def (:", "SyntaxError"),
            ("the end of the process", "raise SystemExit('no licence')", "SystemExit: no licence"),
            ("a missing package", "import a_package_that_nobody_has", "a_package_that_nobody_has"),
            ("a misspelt hook", "on_trajectry = hookimpl(lambda trajectory: None)", "on_trajectry"),
        ]
    ],
]


def built_in() -> set[tuple[str, str, str]]:
    """Every component that is part of finqa."""
    parts = {(each.kind, each.name, each.target) for each in registry().components()}
    return {each for each in parts if each[2].startswith("finqa_plugins.")}


def faults(run: Path) -> dict[str, str]:
    """What each episode that has no verdict ended with."""
    rows = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert all(row["reward"] == 1.0 for row in rows if not row["status"].endswith("_error"))
    return {row["task"]["id"]: row["error"] for row in rows if row["status"].endswith("_error")}


def test_there_are_fifty_and_all_differ() -> None:
    assert len({(mistake.base, mistake.body, mistake.module) for mistake in MISTAKES}) == len(MISTAKES) >= 50


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_named_and_costs_what_it_must(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = built_in()
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def tasks():\n    yield 'How many?'\n\ndef reward(answer):\n    return 0.0\n")
    plugin = MistakenPlugin(tmp_path, monkeypatch, base=mistake.base, body=mistake.body, module=mistake.module)
    try:
        status = main([*mistake.command, *([ONCE] if mistake.command[0] == "eval" else [])])
    finally:
        registry.cache_clear()
    told = capsys.readouterr()
    said = told.out + told.err
    assert "bug in finqa" not in said and "Traceback" not in said, said
    if mistake.costs in ("episode", "episodes"):
        failed = faults(Path("run"))
        assert list(failed) == [BAD] if mistake.costs == "episode" else len(failed) == 12
        assert status == (0 if mistake.costs == "episode" else 3), said
        (said,) = set(failed.values())
        assert "bug in finqa" not in said
    elif mistake.costs == "command":
        assert status == 1, said
    elif mistake.command[0] == "eval":
        assert status == 0 and not faults(Path("run")), said
    if mistake.command == PLUGINS:
        assert status == 0 and built_in() == known
    elif mistake.costs == "nothing" and mistake.command[0] != "eval":
        assert status in (0, 1), said
    said = " ".join(said.split())
    place = plugin.place if not mistake.unplaced else str(plugin.file)
    assert "acme" in said.replace(plugin.module, "") and place in said and mistake.said in said, said


COMPONENT = {"Stock": "environment", "Inventory": "environment", "Answers": "engine", "Judge": "reward"}
TRAIN = (
    *("train", "--dry-run", "--environment=acme-environment", "--engine=acme-engine", "--reward=acme-reward"),
    *("--iterations=1", "--group-size=1", "--target-groups-per-iter=1", "--limit=1", "--run-dir=dry"),
)
UNREACHED = ("splits", "demonstrate_task", "usage", "close", "measure", "check_ready", "inputs")
"""Methods that a dry run or the check need not call, or whose failure costs nothing."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_train_and_check_name_it(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"base": mistake.base, "body": mistake.body, "module": mistake.module}
    plugin = MistakenPlugin(tmp_path, monkeypatch, **parts, bad="t")
    check = ("plugins", "check", f"acme-{COMPONENT.get(mistake.base, 'reward')}")
    is_reached = mistake.base and not any(f"def {name}(" in mistake.body for name in UNREACHED)
    try:
        for command in (TRAIN, check, PLUGINS):
            status = main(list(command))
            told = capsys.readouterr()
            said = " ".join((told.out + told.err).split())
            assert "bug in finqa" not in said and "Traceback" not in said, said
            if command == PLUGINS:
                assert status == 0, said
            elif is_reached or status == 78:  # 78: the plugin is broken, so it has no such component
                assert f"{plugin.file}:" in said or (mistake.unplaced and str(plugin.file) in said), (command, said)
                assert "acme" in said.replace(plugin.module, "")
    finally:
        registry.cache_clear()
