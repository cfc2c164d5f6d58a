"""Every advice of `finqa data import`, `data check` and `snapshot build` is a command that works: each is executed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures import convfinqa_dialogues, finqa_text_rows, tatqa_pages
from fixtures.data_files import DATASET, edit_question, finqa_row, write_folder, write_json, write_jsonl, write_rllm
from fixtures.own_tables import as_csv, as_sqlite, question_rows, write_questions

from finqa_cli.app import main
from finqa_plugins.environments.forecast.make_rows import main as make_rows

pytestmark = pytest.mark.usefixtures("empty_folder")


@dataclass(frozen=True)
class Mistake:
    """A command that fails, on files written below the working folder, and a part of its advice."""

    name: str
    command: str
    advises: str
    write: Callable[[], object] = lambda: None


def bad_question() -> None:
    edit_question(write_folder(Path("data")), 3, "answer", "")


def own_with(**changes: str) -> Callable[[], object]:
    def write() -> None:
        rows = [{**row, **(changes if place == 1 else {})} for place, row in enumerate(question_rows())]
        as_csv(Path())
        write_questions(Path("bad.csv"), rows)

    return write


def finqa(*rows: object, path: str = "dev.json") -> Callable[[], object]:
    return lambda: write_json(Path(path), list(rows))


def named_twice() -> None:
    write_rllm(Path("rllm"))
    source = next(path for path in Path("rllm").rglob("train*"))
    shutil.copy(source, source.with_suffix(".jsonl" if source.suffix == ".csv" else ".csv"))


def report_is_there() -> None:
    write_json(Path("dev.json"), [finqa_row("a")])
    Path("report").mkdir()
    Path("report/check_report.md").touch()


OWN = "data import tables tables --questions questions.csv --out new"
ASKED = question_rows()[0]
TEXT_ONLY = finqa_row("text", program="subtract(77777, 0.3)", gold_inds={"text_1": "..."})
MISTAKES = [
    Mistake("check a database", "data check figures.db", "import tables figures.db", lambda: as_sqlite(Path())),
    Mistake("import a database", "data import openenv figures.db --out new", "tables", lambda: as_sqlite(Path())),
    Mistake("database as FinQA", "data import finqa-json figures.db --out new", "--help", lambda: as_sqlite(Path())),
    Mistake("build a database", "snapshot build --data figures.db", "import tables", lambda: as_sqlite(Path())),
    Mistake("build a FinQA file", "snapshot build --data dev.json", "finqa-json dev.json", finqa(finqa_row("a"))),
    Mistake("FinQA as snorkel", "data import snorkel dev.json --out new", "finqa-json dev.json", finqa(finqa_row("a"))),
    Mistake("empty file", "data import openenv dev.json --out new", "import --help", finqa()),
    Mistake("empty FinQA", "data import finqa-json dev.json --out new", "finqa-json --help", finqa()),
    Mistake("a folder of tables", "data check tables", "import tables tables", lambda: as_csv(Path())),
    Mistake("a folder of tables to build", "snapshot build --data tables", "import tables", lambda: as_csv(Path())),
    Mistake("no folder", "data import openenv nothing --out new", "import --help"),
    Mistake("no folder of rLLM", "data import rllm nothing --out new", "rllm --help"),
    Mistake("a split in two forms", "data import rllm rllm --out new", "mv ", named_twice),
    Mistake("one bad row", "data import finqa-json dev.json --out new", "--skip-bad", finqa(finqa_row("a"), {})),
    Mistake("bad rows", "data import finqa-json dev.json --out new", "data check", finqa(finqa_row("a", exe_ans=[]))),
    Mistake("plain questions", "data import finqa-json q.json --out new", "SOURCE", finqa(ASKED, path="q.json")),
    Mistake("text questions", "data import finqa-json dev.json --out new", "--for finqa-text", finqa(TEXT_ONLY)),
    Mistake("one bad question", "data import openenv data --out new", "--skip-bad", bad_question),
    Mistake("build a bad question", "snapshot build --snapshot-name a --data data", "--skip-bad", bad_question),
    Mistake("a folder that is taken", "data generate --companies 3 --questions 2 --out data", "--out", bad_question),
    Mistake("bad shares", "data import finqa-json dev.json --out new --splits 1", "--splits", finqa(finqa_row("a"))),
    Mistake("bad sum", "data import finqa-json dev.json --out new --splits 1,1,1", "--splits", finqa(finqa_row("a"))),
    Mistake("a bad own question", OWN.replace("questions.csv", "bad.csv"), "--skip-bad", own_with(question="")),
    Mistake("an unknown rule", f"{OWN} --company sheets", "--company", own_with()),
    Mistake("an unknown field", f"{OWN} --column title=question", "--column", own_with()),
    Mistake("an unknown point", f"{OWN} --decimal ;", "--decimal", own_with()),
    Mistake("this column does not exist", f"{OWN} --column answer=gold", "--help", own_with()),
    Mistake(
        "quick test of a folder", "data check data --quick-test", "data check data", lambda: write_folder(Path("data"))
    ),
    Mistake("quick test for", "data check dev.json --for finqa-text --quick-test", "--for", finqa(finqa_row("a"))),
    Mistake("a file for finqa", "data check dev.json --for finqa", "--for finqa-text", finqa(finqa_row("a"))),
    Mistake("a database for finqa", "data check figures.db --for finqa", "tables", lambda: as_sqlite(Path())),
    Mistake("tables for finqa", "data check tables --for finqa", "tables", lambda: as_csv(Path())),
    Mistake("bad rows for text", "data check dev.json --for finqa-text", "skip_bad", finqa(finqa_row("a"), {})),
    Mistake("a file to play", "eval scripted --data dev.json --run-dir r", "finqa-json", finqa(finqa_row("a"))),
    Mistake("another file to play", "eval scripted --data q.json --run-dir r", "plugins", finqa(ASKED, path="q.json")),
    Mistake("a folder to play", "eval scripted --data data --run-dir r", "build", lambda: write_folder(Path("data"))),
    Mistake("a pipeline", "pipeline --method grpo --data figures.db", "import tables", lambda: as_sqlite(Path())),
    Mistake("a bad folder for finqa", "data check data --for finqa", "finqa data check data", bad_question),
    Mistake("a report that is there", "data check dev.json --out report", "--out report-2", report_is_there),
    Mistake("an unknown environment", "data check dev.json --for finq", "finqa plugins", finqa(finqa_row("a"))),
]
COMMAND = re.compile(r"(?:finqa (?:data|snapshot|plugins)|mv )(?:(?! and (?:finqa|--)| lists |, |; | what |$).)*")
FLAG = re.compile(r"(?:^|(?<=, or ))(--[a-z-]+)((?! leaves| to ) [^\s,]+(?:,[0-9][^\s,]*)*)?")


def with_flag(command: str, name: str, value: str) -> str:
    """Returns a command of finqa with an option in place of the one of that name."""
    return f"finqa {re.sub(rf' {name} [^ ]+', '', command)} {name}{value}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_advice_is_a_command_that_works(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    mistake.write()
    as_csv(Path("good"))
    write_questions(Path("good.csv"))
    write_questions(Path("questions.csv"))
    assert main(shlex.split(mistake.command)) in (2, 65, 74, 78)
    said = capsys.readouterr()
    (advice,) = [line[5:] for line in (said.out + said.err).splitlines() if line.startswith("fix: ")]
    assert mistake.advises in advice, advice
    advice = advice.replace("DIR", "made").replace("FILE", "good.csv").replace("SOURCE", "good/tables")
    commands = [match[0] for match in COMMAND.finditer(advice)]
    flags = FLAG.findall(advice)
    assert commands or flags, advice
    for command in [*commands, *(with_flag(mistake.command, *flag) for flag in flags)]:
        if command.startswith("mv "):
            shutil.move(*shlex.split(command)[1:])
            command = f"finqa {mistake.command}"
        shutil.rmtree("new", ignore_errors=True)
        code = main(shlex.split(command)[1:])
        said = capsys.readouterr()
        reported = code == 65 and command.startswith("finqa data check") and "problem" in said.out
        assert code == 0 or reported, f"{command}: {said.out} {said.err}"


GOOD: dict[str, Callable[[], Path]] = {
    "finqa": lambda: write_folder(Path("data")),
    "finqa-text": lambda: finqa_text_rows.write(Path("text.json"), finqa_text_rows.original()),
    "convfinqa": lambda: convfinqa_dialogues.write(Path("conv.json"), convfinqa_dialogues.original(1)),
    "tatqa": lambda: tatqa_pages.write(Path("tat.json"), tatqa_pages.page(1)),
    "code": lambda: _write(
        "tasks.toml",
        '[double]\nprompt = "Write double(x)."\nfunc_name = "double"\ntests = ["1"]\nreference = "2 * xs"\n'
        'split = "test"\nsolution = "def double(x):\\n    return 2 * x\\n"\n',
    ),
    "mbpp": lambda: write_jsonl(
        Path("mbpp.jsonl"),
        [{"task_id": 1, "text": "Double.", "code": "def f(x):\n return 2 * x", "test_list": ["assert f(1) == 2"]}],
    ),
    "forecast": lambda: _forecast(Path("forecast")),
}


def _write(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


def _forecast(folder: Path) -> Path:
    assert make_rows(["--out", str(folder), "--format=jsonl", "--companies=3", "--questions=2"]) == 0
    return folder


@pytest.mark.parametrize("environment", GOOD)
def test_an_environment_takes_its_own_data_and_refuses_that_of_others(
    environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for owner, write in GOOD.items():
        path = write()
        capsys.readouterr()
        code = main(["data", "check", str(path), "--for", environment, "--out", f"report-{owner}", "--json"])
        document = json.loads(capsys.readouterr().out)
        assert document["environment"] == environment and document["ok"] == (code == 0) == (owner == environment)
        if owner == environment and environment != "finqa":
            split = list(document["statistics"]["splits"])[-1]
            given = ["--environment", environment, "--data", str(path), "--split", split, "--limit=1", "--run-dir=run"]
            assert main(["eval", "scripted", *given, "--sandboxes=1"]) == 0, capsys.readouterr().err


def test_a_check_of_rows_names_the_commands_that_use_them(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    write_questions(Path("questions.csv"))
    assert main(["data", "check", "questions.csv", "--out=plain"]) == 0
    said = capsys.readouterr().out
    assert "finqa data check questions.csv --for ENVIRONMENT" in said
    command = "finqa data import tables SOURCE --questions questions.csv --out DIR"
    assert f"For questions about tables: {command}" in said
    assert main(shlex.split(command.replace("SOURCE", "tables").replace("DIR", "made"))[1:]) == 0
    write_json(Path("dev.json"), [finqa_row("a")])
    capsys.readouterr()
    assert main(["data", "check", "dev.json", "--out=rows"]) == 0
    command = "finqa data check dev.json --for finqa-text"
    assert f"To check them for an environment: {command}\n" in capsys.readouterr().out
    assert main(shlex.split(f"{command} --out text")[1:]) == 0


def test_a_check_counts_the_tasks_of_each_split(capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(Path("data"))
    assert main(["data", "check", str(folder), "--for", "finqa", "--out=report"]) == 0
    assert "No problems found: environment finqa can use this data." in capsys.readouterr().out
    statistics = json.loads(Path("report/check_report.json").read_text())["statistics"]
    assert statistics["tasks"] == len(DATASET.questions) and statistics["splits"] == DATASET.split_counts()


def test_a_check_tells_what_is_trained_on_too(capsys: pytest.CaptureFixture[str]) -> None:
    known, new = (finqa_text_rows.original(n, id=f"C{n}/1.pdf-1", filename=f"C{n}/1.pdf") for n in (1, 2))
    again = {**known, "id": "C1/1.pdf-2", "qa": {**known["qa"], "question": "what was it in another year ?"}}
    finqa_text_rows.write(Path("train.json"), known)
    finqa_text_rows.write(Path("test.json"), known, again, new)
    asked = ["data", "check", "test.json", "--for=finqa-text", "--set=environment.options.holdout=0"]
    assert main([*asked, "--against=train.json", "--out=report"]) == 0
    assert "companies are also in the training data, in train.json: 1, for example C1\n" in capsys.readouterr().out
    findings = json.loads(Path("report/check_report.json").read_text())["findings"]
    shared = {each["code"]: each["count"] for each in findings if each["code"].startswith("shared_")}
    assert shared == {"shared_cluster": 1, "shared_question": 1, "shared_id": 1}
    finqa_text_rows.write(Path("other.json"), new)
    assert main([*asked[:2], "other.json", *asked[3:], "--against=train.json", "--out=apart"]) == 0
    findings = json.loads(Path("apart/check_report.json").read_text())["findings"]
    assert not [each for each in findings if each["code"].startswith("shared_")]
    assert main([*asked, "--against=none.json", "--out=none"]) == 65
    assert main(["data", "check", "test.json", "--against=train.json"]) == 2
    told = capsys.readouterr().err
    assert "none.json" in told and "fix: --for finqa-text" in told
