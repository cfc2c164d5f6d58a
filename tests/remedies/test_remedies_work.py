"""Remedies are executed: the fault is provoked, what was printed is followed, and the fault is gone.

Each row of `FAULTS` is a command that fails. The test reads the remedy from the real output, follows every alternative
of it in a folder of its own, and runs the original command again. Nothing that was there may be gone or changed, and
no snapshot may come up under a name whose data was not named.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fixtures import finqa_text_rows
from fixtures.data_files import finqa_row, write_folder, write_json
from remedies.following import Way, contents, run, ways

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots


@dataclass(frozen=True)
class Fault:
    """A command that fails, and how its remedy is followed.

    Attributes:
        command: The command, without `finqa`.
        write: Writes what it needs into the working folder.
        fill: Values of placeholders and of options that the remedy names without a value.
        by_hand: What a remedy in words asks for; returns the command that is run then, empty for the same.
        env: Environment variables.
        then: Exit status of the command after the remedy; other than 0 where the next step is another fault.
        home: It has a FINQA_HOME of its own.
        extra: Options that keep a long command short.
        again: What is run at the end; empty for the command itself.
    """

    command: str
    write: Callable[[], object] = lambda: None
    fill: Mapping[str, str] = field(default_factory=dict)
    by_hand: Callable[[], object] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    then: int = 0
    home: bool = False
    extra: str = ""
    again: str = ""


def text(name: str, content: str) -> Callable[[], object]:
    def write() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")

    return write


def new(command: str) -> Callable[[], object]:
    """The user gives another command, as the remedy asks in words."""
    return lambda: command


def own() -> None:
    write_folder(Path("own"))


SETTINGS = {
    "misspelt on the command line": Fault("config show --set train.group_sise=3", fill={"VALUE": "3"}),
    "unknown on the command line": Fault("config show --set nosuch.x=1"),
    "no value": Fault("config show --set train"),
    "wrong type": Fault("config show --set train.group_size=abc"),
    "wrong choice": Fault("config show --set train.off_policy=off"),
    "out of bounds": Fault("eval scripted --sandboxes 0 --limit 1"),
    "wrong processes": Fault("doctor --learner-processes x"),
    "misspelt in a file": Fault(
        "config show", text("finqa.toml", "[train]\ngroup_sise = 3\n"), by_hand=text("finqa.toml", "")
    ),
    "wrong in a file": Fault(
        "config show", text("finqa.toml", "[train]\ngroup_size = 'x'\n"), by_hand=text("finqa.toml", "")
    ),
    "no table": Fault("config show", text("finqa.toml", "train = 3\n"), by_hand=text("finqa.toml", "")),
    "no table of options": Fault(
        "config show", text("finqa.toml", "[engine]\noptions = 3\n"), by_hand=text("finqa.toml", "")
    ),
    "no TOML": Fault("config show", text("finqa.toml", "a = [\n"), by_hand=text("finqa.toml", "")),
    "no text": Fault(
        "config show --config latin.toml",
        lambda: Path("latin.toml").write_bytes(b"# \xe4\n"),
        by_hand=lambda: Path("latin.toml").write_text("# ä\n", encoding="utf-8"),
    ),
    "no file": Fault("config show --config nosuch"),
    "unknown variable": Fault("config show", env={"FINQA_TRAIN__NOSUCH": "3"}),
    "wrong variable": Fault("config show", env={"FINQA_TRAIN__GROUP_SIZE": "x"}),
    "two variables": Fault("config show", env={"LORA_RANK": "8", "FINQA_LORA__RANK": "8"}),
    "in .env": Fault("config show", text(".env", "FINQA_TRAIN__NOSUCH=3\n"), by_hand=text(".env", "")),
    "an address in .env": Fault(
        "config show", text(".env", "DAYTONA_API_URL=http://127.0.0.1:9\n"), by_hand=text(".env", "")
    ),
    "log level": Fault("eval scripted --limit 1 --quiet", env={"FINQA_LOG_LEVEL": "loud"}),
    "log format": Fault("eval scripted --limit 1 --quiet", env={"FINQA_LOG_FORMAT": "prose"}),
    "set twice": Fault(
        "config show --set engine=scripted --set engine.name=random", by_hand=new("config show --set engine=scripted")
    ),
    "settings that do not go together": Fault(
        "config show --set train.overlong_buffer=100", by_hand=new("config show")
    ),
    "two files of a tier": Fault(
        "config show --config qwen3-4b --config llama-3-8b", by_hand=new("config show --config qwen3-4b")
    ),
    "very many sandboxes": Fault("eval scripted --limit 1 --sandboxes 20000", fill={"--sandboxes": "2"}),
}
COMPONENTS = {
    "no engine": Fault("play --engine scriptd"),
    "no option": Fault("play --engine scripted --set engine.options.unquoted=1"),
    "no plugin": Fault("plugins show nosuch"),
    "nothing to check": Fault("plugins check nosuch"),
    "no name of a plugin": Fault("plugins new reward Bad_Name"),
    "a folder that is taken": Fault(
        "plugins new reward good --out taken", text("taken/x", ""), fill={"ANOTHER-FOLDER": "another"}
    ),
    "no reward": Fault("rewards show nosuch"),
    "no reward to score by": Fault("rewards score a nosuch"),
    "no answers": Fault("rewards score nothere graded", fill={"FILE": "a graded"}),
    "scores that are there": Fault(
        "rewards score a graded", lambda: run("rewards score a graded"), fill={"DIR": "new"}
    ),
    "options of no reward": Fault(
        "eval scripted --set reward.options.x=1 --limit 1", fill={"--reward": "graded"}, then=78
    ),
    "a reward that is not taken": Fault("eval scripted --environment code --reward graded --limit 1"),
    "no sandbox": Fault("sandbox reap nosuch"),
    "no provider": Fault("eval scripted --sandbox nosuch --limit 1"),
    "no grader": Fault("eval scripted --grader no --limit 1"),
    "a snapshot that has no effect": Fault("eval scripted --environment code --snapshot x --limit 1"),
    "no file of an environment": Fault(
        "eval random --environment ./nothere.py --limit 1", by_hand=new("eval random --limit 1")
    ),
}
RUNS = {
    "a run that is there": Fault(
        "eval scripted --limit 1 --run-dir a", by_hand=new("eval scripted --limit 1 --run-dir new")
    ),
    "no split": Fault("eval scripted --limit 1 --split nosuch"),
    "a folder that cannot be": Fault(
        "eval scripted --limit 1 --run-dir plain/x",
        text("plain", "x"),
        by_hand=new("eval scripted --limit 1 --run-dir y"),
    ),
    "a run without a policy": Fault("eval a", by_hand=new("eval scripted --limit 1")),
    "no question": Fault("play --engine scripted --question nope"),
    "no run to compare": Fault(
        "compare nothere a --no-plots", fill={"TARGET": "scripted --limit 2 --split dev", "FOLDER": "nothere"}
    ),
    "a run twice": Fault("compare a a", by_hand=new("compare a b --no-plots")),
    "one run": Fault("compare a", by_hand=new("compare a b --no-plots"), fill={}),
    "no baseline": Fault("compare a b --baseline nosuch --no-plots"),
    "a report that is there": Fault(
        "compare a b --out taken --no-plots", text("taken/x", ""), by_hand=new("compare a b --out new --no-plots")
    ),
    "seeds of one method": Fault("compare x=a x=b --no-plots", by_hand=new("compare a=a b=b --no-plots")),
    "a plan of nothing": Fault("plan", fill={"N": "100", "RUN": "a --accuracy 0.9"}),
    "a plan of certainty": Fault("plan --questions 100 --accuracy 1", fill={"--accuracy": "0.9"}),
    "a plan of three runs": Fault("plan --from a --from b --from c", by_hand=new("plan --from a --accuracy 0.9")),
    "a plan of like runs": Fault("plan --from a --from b", by_hand=new("plan --from a --accuracy 0.9")),
    "a plan of two runs": Fault("plan --from a --from b --accuracy 0.5", then=65),
    "a difference of 2": Fault("plan --questions 100 --difference 2"),
    "pairs of a log": Fault("export a --to inspect --rule all --out new"),
    "a choice of a log": Fault("export a --to inspect --min-reward 1 --out new"),
    "a step of attempts": Fault("export a --to trl-sft --step 1 --out new"),
    "an export that is there": Fault(
        "export a --to trl-sft --out taken", text("taken/x", ""), by_hand=new("export a --to trl-sft --out new")
    ),
    "no attempt is chosen": Fault("export b --to trl-sft --min-reward 1 --out new"),
    "one side of pairs": Fault("export a --to trl-preference --min-reward 1 --out new", then=65),
    "a step that is not there": Fault("export a --to inspect --step 7 --out new"),
    "no metric": Fault(
        "score x.json --metric no --truth a", by_hand=new("score x.json --metric finqa --truth a"), then=65
    ),
    "no pairs": Fault(
        "prefs a --run-dir new",
        fill={"TARGET": "random --limit 2 --run-dir s"},
        again="prefs s --run-dir new",
        then=65,
    ),
    "a margin below 0": Fault("prefs a --margin -1 --run-dir new", then=65),
    "no attempts": Fault("prefs nowhere", fill={"TARGET": "random --limit 2 --run-dir nowhere"}, then=65),
    "greedy candidates": Fault("sample random --limit 1 --temperature 0"),
    "a run of another command": Fault("sample --resume a", by_hand=new("sample random --limit 1")),
    "no run to resume": Fault(
        "sample --resume nowhere", fill={"RUN": "s"}, write=lambda: run("sample random --limit 1 --run-dir s")
    ),
    "a policy beside a run": Fault(
        "sample random --resume s", write=lambda: run("sample random --limit 1 --run-dir s")
    ),
    "nothing to export": Fault("export nothere --to trl-sft --out new", fill={"DIR": "nothere --limit 2"}),
}
LINES = {
    "no command": Fault("nosuch"),
    "no argument": Fault("eval"),
    "no value": Fault("eval scripted --limit"),
    "no such option": Fault("eval scripted --no-such"),
    "no such choice": Fault("pipeline --method grop"),
    "no method": Fault("pipeline", extra="--dry-run"),
    "a final test for finqa": Fault("pipeline --method grpo --final-test x.json --dry-run", then=65),
    "no data of a pipeline": Fault(
        "pipeline --method grpo --data nothere --dry-run", by_hand=lambda: write_folder(Path("nothere")) and None
    ),
    "no pipeline to resume": Fault("pipeline --resume a", by_hand=new("pipeline --method grpo --dry-run")),
    "no experiment": Fault("experiment run nosuch --dry-run", fill={"FILE.toml": "financial_qa_tiny --dry-run"}),
    "no cell": Fault("experiment run financial_qa --only nosuch --dry-run"),
    "no seeds": Fault("experiment run financial_qa --seeds x --dry-run"),
    "a seed twice": Fault("experiment run financial_qa --seeds 1,1 --dry-run"),
    "no TOML of an experiment": Fault(
        "experiment run bad.toml --dry-run", text("bad.toml", "x"), by_hand=new("experiment run financial_qa --dry-run")
    ),
    "a question at two places": Fault(
        "data show --data data --snapshot b x", by_hand=new("data show --data data x"), then=65
    ),
}


def page(number: int, part: int, company: str) -> dict[str, Any]:
    name = f"{company}/2010/page_{number}.pdf"
    row = finqa_text_rows.original(number, id=f"{name}-{part}", filename=name)
    return {**row, "qa": {**row["qa"], "question": f"what was {number} and {part} ?"}}


def files(shared: dict[str, Any]) -> Callable[[], None]:
    """Files of two splits that share a page, or a whole row."""

    def write() -> None:
        Path("d").mkdir(exist_ok=True)
        rows = [page(number, 1, company) for number, company in enumerate(("AA", "BB", "CC", "EE", "FF", "GG"), 1)]
        finqa_text_rows.write(Path("d/train.json"), *rows)
        finqa_text_rows.write(Path("d/dev.json"), shared, page(9, 1, "DD"))

    return write


APART = "data prepare d/train.json d/dev.json --out p"
DATA = {
    "splits that share a page": Fault(APART, files(page(1, 2, "AA")), by_hand=new("data prepare d/train.json --out p")),
    "splits that share a row": Fault(APART, files(page(1, 1, "AA")), by_hand=new("data prepare d/train.json --out p")),
    "no good row": Fault("data prepare x/train.json --out p --skip-bad", text("x/train.json", "[{}]")),
    "nothing to check": Fault("data check nothing", by_hand=lambda: write_folder(Path("nothing"))),
    "a file without a split": Fault(
        "data prepare rows.json --out p --split-by file", lambda: write_json(Path("rows.json"), [finqa_row("a")])
    ),
    "bad rows": Fault(
        "data prepare train.json --out p",
        lambda: write_json(Path("train.json"), [finqa_row("a"), {}]),
        by_hand=lambda: write_json(Path("train.json"), [finqa_row("a")]) and None,
    ),
    "no snapshot": Fault("snapshot show own", own, {"DIR": "own"}, home=True),
    "no snapshot to play": Fault(
        "eval scripted --snapshot own --limit 1 --split train", own, {"DIR": "own"}, home=True
    ),
    "no name of a snapshot": Fault("snapshot build --snapshot-name ../up", home=True),
    "no data for a name": Fault("snapshot build --snapshot-name mine", own, {"DIR": "own"}, home=True),
    "other data under the embedded name": Fault(
        "snapshot build", lambda: (own(), run("snapshot build --data own")), {"DIR": "own"}, home=True
    ),
    "a damaged snapshot": Fault("play --engine scripted --quiet", lambda: _damage(DEFAULT_NAME), home=True),
    "a damaged snapshot of one's own": Fault(
        "snapshot show own", lambda: (own(), _damage("own", "own")), {"DIR": "own"}, home=True
    ),
    "nothing to delete": Fault("snapshot delete nosuch", home=True),
}
GROUPS = {"settings": SETTINGS, "components": COMPONENTS, "runs": RUNS, "lines": LINES, "data": DATA}
FAULTS = [
    pytest.param(fault, id=f"{group}: {name}") for group, faults in GROUPS.items() for name, fault in faults.items()
]


def _damage(name: str, data: str = "embedded") -> None:
    assert run(f"snapshot build --snapshot-name {name} --data {data}") == 0
    with (_store().get(name).path / "tasks.jsonl").open("a") as file:
        file.write("{}\n")


def _store() -> LocalSnapshots:
    return LocalSnapshots(Path(os.environ["FINQA_HOME"]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs, `a` of the expert and `b` of random calls."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, player in (("a", "scripted"), ("b", "random")):
        assert run(f"eval {player} --limit 2 --split dev --sandboxes 1 --run-dir {folder / name}") == 0
    return folder


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `current` says of the embedded data set."""
    built, _ = LocalSnapshots(tmp_path_factory.mktemp("embedded")).build_embedded()
    return (built.path.parent / "current").read_text()


@dataclass
class Place:
    """A working folder in which one alternative of a remedy is followed."""

    folder: Path
    fault: Fault
    capsys: pytest.CaptureFixture[str]
    embedded: str

    def provoke(self) -> tuple[str, str]:
        """Run the command and return its error and its remedy."""
        self.capsys.readouterr()
        assert run(self.fault.command) != 0
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        error, remedy = (re.findall(rf"^{word}: (.*)$", said.err, re.MULTILINE) for word in ("error", "fix"))
        assert len(error) == len(remedy) == 1, said.err
        return error[0], remedy[0]

    def follow(self, way: Way, error: str) -> None:
        """Follow an alternative and hold what it leaves against what was there."""
        before, names = contents(self.folder), _snapshots()
        way.act()
        commands = list(way.commands)
        own = any(_verb(each) == _verb(self.fault.command) for each in commands)
        if not way.looks and not own:
            commands.append(self.fault.again or way.changed)
        for command in commands:
            same = _verb(command) == _verb(self.fault.command)
            status = run(f"{command} {self.fault.extra}" if same else command)
            said = self.capsys.readouterr()
            expected = {0, 65} if way.looks else {self.fault.then} if same else {0}
            assert status in expected and error not in said.err, f"finqa {command}: {status}\n{said.out}\n{said.err}"
        after = contents(self.folder)
        lost = [path for path, content in before.items() if content not in (after.get(path), *after.values())]
        assert not [path for path in lost if path.name not in OF_A_RESUMED_RUN], "files that are gone or changed"
        told = " ".join([way.text, *commands])
        for name, current in _snapshots().items():
            if names.get(name) != current:
                invented = current == self.embedded and name != DEFAULT_NAME
                assert not invented or "--data embedded" in told, f"invented data as {name}"
                assert "--data" in told or (name, current) == (DEFAULT_NAME, self.embedded), f"unnamed data as {name}"


OF_A_RESUMED_RUN = {"run.json", "events.jsonl", "report.json", "metrics.json", "manifest.json"}


def _verb(command: str) -> str:
    """The command without its arguments: `eval`, `snapshot build`."""
    words = [word for word in command.split() if not word.startswith("-")]
    return " ".join(words[: 1 + (words[:1] in (["data"], ["experiment"], ["plugins"], ["rewards"], ["snapshot"]))])


def _snapshots() -> dict[str, str]:
    """Name and current digest of every snapshot."""
    folder = Path(os.environ["FINQA_HOME"]) / "snapshots"
    return {path.parent.name: path.read_text() for path in folder.glob("*/current")}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_remedy_fixes_its_fault(
    fault: Fault,
    recorded: Path,
    embedded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def begin(number: int) -> Place:
        folder = tmp_path / str(number)
        shutil.copytree(recorded, folder)
        monkeypatch.chdir(folder)
        if fault.home:
            monkeypatch.setenv("FINQA_HOME", str(tmp_path / f"home-{number}"))
        fault.write()
        for name, value in fault.env.items():
            monkeypatch.setenv(name, value)
        return Place(folder, fault, capsys, embedded)

    before = dict(os.environ)
    try:
        error, remedy = begin(0).provoke()
        found = ways(remedy, fault.command, fault.fill, error)
        assert found or fault.by_hand, f"nothing of it can be followed: {remedy}"
        for number, way in enumerate(found, start=1):
            place = begin(number)
            place.provoke()
            place.follow(way, error)
        if fault.by_hand:
            place = begin(len(found) + 1)
            place.provoke()
            changed = fault.by_hand()
            place.follow(Way(remedy, (), changed if isinstance(changed, str) else fault.command), error)
    finally:  # a `.env` is put into the environment
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize(
    ("remedy", "command", "followed"),
    [
        ("finqa snapshot list", "snapshot delete x", [("snapshot list",)]),
        ("finqa sandbox ls shows what is left", "sandbox reap", [("sandbox ls",)]),
        ("finqa sample T, then finqa prefs R", "prefs R", [("sample T", "prefs R")]),
        ("--a 1, or --b 2", "eval x --a 3", ["eval x --a 1", "eval x --a 3 --b 2"]),
        ("--a with one of: x, y", "eval --a z", ["eval --a x"]),
        ("--set s.x=1", "eval --set s.x=2 --set s.y=3", ["eval --set s.y=3 --set s.x=1"]),
        ("leave out --a and --b", "eval --a 1 --b x", ["eval"]),
        ("leave --a out; --data names a file", "eval --a 1", ["eval"]),
        ("correct it, or `finqa eval` makes one", "compare a", []),
        ("name another folder", "eval a", []),
    ],
)
def test_what_is_read_from_a_remedy(remedy: str, command: str, followed: list[object]) -> None:
    assert [way.commands or way.changed for way in ways(remedy, command, {})] == followed


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (Way("", ("snapshot build --snapshot-name mine --data embedded",), "snapshot show mine"), ""),
        (Way("finqa snapshot build", (), "snapshot show mine", lambda: _invent("mine")), "invented data as mine"),
        (Way("", (), "snapshot show", lambda: Path("kept").unlink()), "gone or changed"),
        (Way("", (), "snapshot show", lambda: Path("kept").write_text("new")), "gone or changed"),
        (Way("", (), "snapshot show mine"), "There is no snapshot 'mine'"),
    ],
)
def test_a_remedy_that_does_not_fix_is_noticed(
    way: Way,
    reason: str,
    embedded: str,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FINQA_HOME", str(empty_folder / "home"))
    assert run("snapshot build") == 0
    Path("kept").write_text("old")
    place = Place(empty_folder, Fault("snapshot show mine"), capsys, embedded)
    error, _ = place.provoke()
    if not reason:
        place.follow(way, error)
        return
    with pytest.raises(AssertionError, match=re.escape(reason)):
        place.follow(way, error)


def _invent(name: str) -> None:
    shutil.copytree(_store().get(DEFAULT_NAME).path.parent, _store().get(DEFAULT_NAME).path.parents[1] / name)
