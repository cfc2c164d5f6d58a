"""Evaluations that did not end, are resumed, stopped by a limit, or graded again."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures.openai_server import calls, openai_server
from remedies.faults import Fault, new, text

from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.openenv_layout.layout import write_layout

ADDRESS = "--set grader.options.base_url={url}"
JUDGE = f"--set grader.options.model=analyst {ADDRESS}"
PRICES = "--set grader.options.prices={analyst={input=1,output=1}}"


def prose() -> None:
    """Writes data, and for each question an answer that has to be judged."""
    dataset = generate(GenerateSpec(companies=5, questions=8))
    write_layout(dataset, Path("data"))
    Path("x.json").write_text(json.dumps({each.id: f"It is rather high, {each.id}." for each in dataset.questions}))


def unfinished(run: str = "a") -> None:
    """Takes the last word of a run away, as a signal does."""
    file = Path(run, "run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "interrupted"}))


EVALUATIONS = {
    "nothing to evaluate": Fault("eval", extra="--limit 1", by_hand=new("eval scripted --limit 1")),
    "an evaluation that is finished": Fault("eval --resume a"),
    "an evaluation begun with other settings": Fault(
        "eval scripted --limit 1 --seed 5 --run-dir a", unfinished, by_hand=new("eval --resume a")
    ),
    "a finished folder": Fault(
        "eval scripted --limit 1 --run-dir a", by_hand=new("eval scripted --limit 1 --run-dir new")
    ),
    "nothing to grade again": Fault(
        "eval --rescore nowhere --grader strict", by_hand=new("eval --rescore a --grader strict")
    ),
    "no other rules": Fault("eval --rescore a"),
    "a flag of play": Fault("eval --rescore a --limit 3"),
    "a setting of play": Fault("eval --rescore a --set eval.temperature=1", fill={"TARGET": "scripted --limit 1"}),
    "tokens of an engine without": Fault(
        "eval scripted --limit 1 --max-tokens 5", by_hand=new("eval scripted --limit 1")
    ),
    "a cost without a price": Fault("eval random --limit 1 --max-cost 5", fill={"PRICE": "0.1"}),
    "a judge without a model": Fault(
        f"eval scripted --limit 1 --grader judge {ADDRESS}", fill={"NAME": "analyst"}, server=openai_server
    ),
    "options of a judge that is not asked": Fault(f"eval scripted --limit 1 {JUDGE}", server=openai_server),
    "a limit of cost without a price of the judge": Fault(
        f"eval scripted --limit 1 --grader judge {JUDGE} --max-cost 5 --set run.sandbox_hour_price=1",
        by_hand=text("finqa.toml", "[grader.options.prices.analyst]\ninput = 1\noutput = 1\n"),
        server=openai_server,
    ),
    "a judge that costs too much": Fault(
        f"score x.json --metric openenv --truth data --grader judge {JUDGE} {PRICES} --set run.max_cost=0.0001",
        prose,
        fill={"DOLLARS": "5"},
        server=lambda: openai_server(lambda body: calls(("verdict", {"right": False, "reason": "It has no value."}))),
    ),
    "a judge of token ids": Fault("eval scripted --limit 1 --grader judge --set grader.name=transformers", then=78),
    "training with a judge without a limit": Fault(
        f"train --quick-test --no-preflight --grader judge {JUDGE} {PRICES}",
        fill={"DOLLARS": "5"},
        then=4,  # the small policy was made for another description of submit_answer, so it learns nothing here
        server=openai_server,
        slow=True,
    ),
    "rules of a metric": Fault(
        "score x.json --metric tatqa --truth nowhere --grader strict",
        text("x.json", "{}"),
        by_hand=new("score x.json --metric tatqa --truth nowhere"),
        then=65,
    ),
    "a grader that is none": Fault("eval --rescore a --grader no", by_hand=new("eval --rescore a --grader strict")),
}
