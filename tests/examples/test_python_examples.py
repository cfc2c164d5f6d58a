"""Examples of the Python interface: the page and the notebook, whose numbers are those of the commands."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from fixtures.command_calls import document
from jupyter_client import BlockingKernelClient, KernelManager
from nbclient import NotebookClient

import finqa

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_run.ipynb"

pytestmark = [pytest.mark.usefixtures("empty_folder"), pytest.mark.thorough]


@pytest.fixture(autouse=True)
def _private_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))


def examples(page: Path) -> str:
    """The Python blocks of a page."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(
    "text", [lambda: examples(ROOT / "docs/python.md"), lambda: finqa.__doc__ or ""], ids=["page", "docstring"]
)
def test_the_examples_of_the_documents_give_what_they_show(text: Callable[[], str]) -> None:
    tried = doctest.DocTestParser().get_doctest(text(), {}, "examples", None, None)
    said: list[str] = []
    results = doctest.DocTestRunner().run(tried, out=said.append)
    assert results.attempted >= 2 and not results.failed, "".join(said)


def printed(cell: Any) -> str:
    return "".join(each["text"] for each in cell.outputs if each.get("name") == "stdout")


def shown(cell: Any, kind: str) -> str:
    (result,) = (each for each in cell.outputs if each.output_type == "execute_result")
    return str(result.data[kind])


@pytest.mark.parametrize("iterations", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_the_notebook_runs_and_its_numbers_are_those_of_the_commands(
    iterations: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if iterations == 1:  # a short training, in which nothing is learned
        monkeypatch.setenv("FINQA_TRAIN__TARGET_GROUPS_PER_ITER", "2")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    (training,) = (cell for cell in notebook.cells if cell.id == "train")
    source = training.source
    training.source = source.replace("iterations=6", f"iterations={iterations}")
    assert (training.source == source) == (iterations == 6)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    cells = {cell.id: cell for cell in notebook.cells}
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert f"import finqa\n\n{cells['evaluate'].source}\n\n{source}\n```" in page
    assert printed(cells["expert"]).count("submit_answer") == 1 and "Reward 1:" in printed(cells["expert"])
    evaluated = printed(cells["evaluate"]).splitlines()[0]
    report = document(["eval", "embedded", "--split=test", "--limit=32", "--sandboxes=4"], capsys)
    graded = report["episodes"] - report["faults"]
    assert evaluated == f"{report['accuracy']} {tuple(report['accuracy_interval'])} {graded}"
    before, after = (float(each) for each in printed(cells["train"]).strip(".\n").split())
    assert after > before + 0.2 or iterations == 1
    table = shown(cells["curve"], "text/plain")
    assert "reward_mean" in table and len(table.splitlines()) == 1 + iterations
    images = [each for each in cells["curve"].outputs if "image/png" in each.get("data", {})]
    assert len(images) == bool(find_spec("matplotlib"))
    assert ("No plot" in printed(cells["curve"])) != bool(images)
    wrong, _, right = printed(cells["question"]).partition("AFTER")
    assert (wrong.startswith("BEFORE") and "Reward 0:" in wrong and "Reward 1:" in right) or iterations == 1
    report_file = Path(printed(cells["report"]).strip())
    assert report_file.name == "report.html" and "<script" in report_file.read_text(encoding="utf-8")
    assert "finqa eval" in shown(cells["run"], "text/html") and "<table>" in shown(cells["run"], "text/html")
    assert "right answer" in shown(cells["episode"], "text/html")
    assert shown(cells["asynchronous"], "text/plain") == "1.0"
    for target in re.findall(r"\]\(([^)]+)\)", "".join(cell.source for cell in notebook.cells)):
        assert (NOTEBOOK.parent / target).is_file(), target


@pytest.mark.slow
def test_the_training_of_the_notebook_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    cells = {cell.id: cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    names: dict[str, Any] = {"finqa": finqa}
    exec(cells["train"].source, names)
    capsys.readouterr()
    result = document(["train", "--iterations=6", "--limit=32", "--run-dir=theirs"], capsys)
    ours = names["training"]
    assert (ours.accuracy_before, ours.accuracy_after) == (result["before"]["accuracy"], result["after"]["accuracy"])
    columns = ["iteration", "reward_mean"]
    theirs = finqa.load_run("theirs").metrics.where(kind="train").to_pandas()[columns]
    assert ours.run.metrics.where(kind="train").to_pandas()[columns].equals(theirs)


@pytest.fixture
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    "form", [pytest.param("finqa.evaluate({})", marks=pytest.mark.slow), "await finqa.evaluate_async({})"]
)
def test_interrupt_in_a_notebook_leaves_a_run_that_can_be_resumed(
    form: str, kernel: tuple[KernelManager, BlockingKernelClient]
) -> None:
    manager, client = kernel
    call = form.format('"scripted", limit=200, sandboxes=2, run_dir="run", on_episode=lambda each: print(each.id)')
    client.execute(f"import finqa\n{call}", stop_on_error=False)  # else what is asked next is aborted
    error: dict[str, Any] = {}
    interrupted = False
    while not error:
        message = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream" and "eval/" in message["content"]["text"] and not interrupted:
            manager.interrupt_kernel()
            interrupted = True
        error = message["content"] if message["msg_type"] == "error" else {}
    is_await = form.startswith("await")
    assert error["ename"] in (("CancelledError", "KeyboardInterrupt") if is_await else ("InterruptedRun",))
    assert is_await or "fix: finqa eval --resume run" in "".join(error["traceback"])
    client.execute("finqa.load_run('run').status, finqa.load_run('run').resume().n")
    result = ""
    while not result:
        message = client.get_iopub_msg(timeout=120)
        assert message["msg_type"] != "error", message["content"]
        if message["msg_type"] == "execute_result":
            result = message["content"]["data"]["text/plain"]
    assert result == "('interrupted', 200)"
    assert json.loads(Path("run/run.json").read_text(encoding="utf-8"))["status"] == "completed"
