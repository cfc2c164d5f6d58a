"""A working folder in which one alternative of a remedy is followed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from remedies.faults import Fault
from remedies.following import Way, contents, run

from finqa_cli.data.fetch.repository_listing import PARTIALS
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME


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
        with self.fault.during():
            status = run(f"{self.fault.command}{' --json' * bool(self.fault.check)}")
        said = self.capsys.readouterr()
        if self.fault.check:
            return self._failed_check(said.out)
        assert status != 0, said.out
        assert "Traceback" not in said.err
        words = (r"error: |(?=Stopped by )", "fix: |Next: ")
        error, remedy = (re.findall(rf"^(?:{word})(.*)$", said.err, re.MULTILINE) for word in words)
        assert len(error) == len(remedy) == 1, said.err
        return error[0], remedy[0]

    def _failed_check(self, out: str) -> tuple[str, str]:
        """Return detail and remedy of the check of `finqa doctor`, or of the component of `finqa plugins show`."""
        document = json.loads(out)
        if "checks" not in document:  # a component as `plugins show` lists it
            (component,) = [each for each in document["components"] if each["name"] == self.fault.check]
            document = {"checks": [{**component, "detail": component["status"]}]}
        named = [each for each in document["checks"] if each["name"] == self.fault.check]
        check = next(each for each in named if each["status"] != "ok")
        return check["detail"], check["remedy"]

    def follow(self, way: Way, error: str) -> None:
        """Follow an alternative and hold what it leaves against what was there."""
        before, names = contents(self.folder), _snapshots()
        way.act()
        commands = list(way.commands)
        own = self.fault.instead or any(_verb(each) == _verb(self.fault.command) for each in commands)
        if not way.looks and not own:
            commands.append(self.fault.again or way.changed)
        for command in commands:
            same = _verb(command) == _verb(self.fault.command)
            status = run(f"{command} {self.fault.extra}" if same else command)
            said = self.capsys.readouterr()
            last = same or (self.fault.instead and command == commands[-1])
            then = self.fault.then if isinstance(self.fault.then, tuple) else (self.fault.then,)
            expected = {0, 65} if way.looks else {*then} if last else {0}
            assert status in expected and error not in said.err + said.out * bool(self.fault.check), (
                f"finqa {command}: {status}\n{said.out}\n{said.err}"
            )
        after = contents(self.folder)
        lost = [path for path, content in before.items() if content not in after.values()]
        lost = [path for path in lost if not after.get(path, b"").startswith(before[path])]  # a log that grew
        lost = [path for path in lost if path.name not in OF_A_RESUMED_RUN and not path.match(f"{PARTIALS}/*")]
        if "--resume" in " ".join(commands):
            lost = [path for path in lost if not any(map(path.match, OF_AN_UNASKED_STEP))]
        assert not lost, f"files that are gone or changed: {lost}"
        told = " ".join([way.text, *commands])
        for name, current in _snapshots().items():
            if names.get(name) != current:
                invented = current == self.embedded and name != DEFAULT_NAME
                assert not invented or "--data embedded" in told, f"invented data as {name}"
                assert "--data" in told or (name, current) == (DEFAULT_NAME, self.embedded), f"unnamed data as {name}"


OF_A_RESUMED_RUN = {"run.json", "events.jsonl", "report.json", "metrics.json", "manifest.json", "fetch.json"}
OF_A_RESUMED_RUN |= {"items.csv", "breakdown.csv", "predictions.jsonl", "latest_checkpointed_iteration.txt"}
"""Records that a resumed run or download writes again; its partial files become whole."""

OF_AN_UNASKED_STEP = ("valid_samples/step_*.jsonl", "checkpoints/step_*/state.json")
"""Of a step whose held-out questions failed; the resumed run asks them again, and notes that it did."""


def _verb(command: str) -> str:
    """The command without its arguments: `eval`, `snapshot build`."""
    words = [word for word in command.split() if not word.startswith("-")]
    return " ".join(words[: 1 + (words[:1] in (["data"], ["experiment"], ["plugins"], ["rewards"], ["snapshot"]))])


def _snapshots() -> dict[str, str]:
    """Name and current digest of every snapshot."""
    folder = Path(os.environ["FINQA_HOME"]) / "snapshots"
    return {path.parent.name: path.read_bytes().decode(errors="replace") for path in folder.glob("*/current")}
