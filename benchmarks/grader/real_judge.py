"""What a small real model is worth as the judge: agreement with people on FinanceBench, replies, faults, cache, cost.

    python -m benchmarks.grader.real_judge FOLDER MODEL [--answers 50] [--seed 0] [--threads 1] [--guided]

FOLDER has FinanceBench's `results/*.jsonl` (arXiv 2311.11944), MODEL is the folder of a model of transformers. Half of
the answers are labelled right and half are not, and `strict` can read none of them. The model is behind a server of
chat completions on loopback, which knows no tools; the judge asks it through the engine `openai`. With `--guided` the
server lets the model write nothing but the JSON of a verdict, as servers with guided decoding do. At the end `finqa
score` grades the same answers with the same cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from finqa_cli.data import DataSet, Question, Table, write_layout
from finqa_cli.errors import EnvironmentFault
from finqa_cli.grading import grade
from finqa_cli.settings import load_settings
from finqa_cli.wiring.build import make_judge

RIGHT = "Correct Answer"
LONGEST_REPLY = 48
"""Tokens after which the server cuts a reply: a model of this size does not end by itself."""
REASON = 24
"""Tokens of a reason with guided decoding."""
PRICE = {"input": 0.1, "output": 0.2}
"""US dollars for a million tokens, invented, so that there is a cost to count."""


@dataclass
class Served:
    """A model that answers one request at a time, greedily, and keeps the keys of the last prompt.

    Attributes:
        guided: Whether each reply is the JSON of a verdict.
        replies: Its replies.
        tokens: Prompt and completion tokens of all replies.
    """

    folder: Path
    guided: bool = False
    replies: list[str] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self._model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16).eval()
        self._lock = threading.Lock()
        self._ids: list[int] = []
        self._cache = DynamicCache()

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the body of a chat completion."""
        with self._lock:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            prompt = self._tokenizer(text, add_special_tokens=False).input_ids
            pairs = list(zip(prompt[:-1], self._ids, strict=False))
            shared = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
            if surplus := self._cache.get_seq_length() - shared:
                self._cache.crop(-surplus)
            made = self._guided(prompt) if self.guided else self._continued(prompt, LONGEST_REPLY)
            self._ids = made[:-1]
            said = self._tokenizer.decode(made[len(prompt) :], skip_special_tokens=True)
            self.replies.append(said)
            print(f"  {len(self.replies)}. {said!r}", flush=True)
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(made) - len(prompt)}
            self.tokens.update(usage)
        message = {"role": "assistant", "content": said}
        ended = self.guided or made[-1] == self._tokenizer.eos_token_id
        choice = {"index": 0, "finish_reason": "stop" if ended else "length", "message": message}
        return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}

    def _continued(self, ids: list[int], most: int) -> list[int]:
        with torch.inference_mode():
            made: list[int] = self._model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                past_key_values=self._cache,
                max_new_tokens=most,
                do_sample=False,
            )[0].tolist()
        return made

    def _guided(self, prompt: list[int]) -> list[int]:
        """Return the prompt with a verdict, in which the model chooses `true` or `false` and the reason."""
        ids = prompt + self._encoded('{"right":')
        with torch.inference_mode():
            seen = self._cache.get_seq_length()
            logits = self._model(torch.tensor([ids[seen:]]), past_key_values=self._cache).logits[0, -1]
        words = {word: self._encoded(f" {word}")[0] for word in ("true", "false")}
        ids += self._encoded(f' {max(words, key=lambda word: float(logits[words[word]]))}, "reason": "')
        made = self._continued(ids, REASON)
        reason = self._tokenizer.decode(made[len(ids) :], skip_special_tokens=True)
        return ids + self._encoded(json.dumps(reason.partition('"')[0].strip())[1:] + "}")

    def _encoded(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return found


@contextmanager
def serving(model: Served) -> Iterator[str]:
    """Serve a model on loopback, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None: ...

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(model.reply(body["messages"]))

        def _send(self, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def chosen(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Return answers with a label that `strict` cannot read, half of them right, in a random order."""
    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    unread = [
        row
        for row in rows
        if "label" in row
        and not grade(row["model_answer"], str(row["gold_answer"]), "strict", str(row["question"])).readable
    ]
    rng = random.Random(seed)
    parts = [[row for row in unread if (row["label"] == RIGHT) is right] for right in (True, False)]
    found = [row for part in parts for row in rng.sample(part, count // 2)]
    rng.shuffle(found)
    return found


async def judge_all(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[bool | None]:
    """Return the verdict on each answer, None for a fault, and print what was spent."""
    flags = {"environment.options.grader": "judge", **{f"grader.options.{name}": one for name, one in options.items()}}
    judge = make_judge(load_settings(flags=flags).settings)
    assert judge is not None
    found: list[bool | None] = []
    for row in rows:
        asked = {"question": str(row["question"]), "truth": str(row["gold_answer"]), "answer": row["model_answer"]}
        try:
            found.append((await judge.judge(**asked)).right)
        except EnvironmentFault:
            found.append(None)
        print(f"{len(found)}: {row['label']}: {found[-1]}", flush=True)
    await judge.close()
    print(f"spent: {dict(judge.spent)}")
    return found


def score(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any], folder: Path) -> str:
    """Return what `finqa score` makes of the answers."""
    companies = sorted({row.get("company") or "A company" for row in rows})
    table = ("line_item", "2023"), (("nothing", 0),)
    questions = [
        Question(
            id=str(number),
            company=row.get("company") or "A company",
            question=str(row["question"]),
            user_query=str(row["question"]),
            answer=str(row["gold_answer"]),
            split="test",
        )
        for number, row in enumerate(rows)
    ]
    tables = tuple(Table(company=name, name="notes", columns=table[0], rows=table[1]) for name in companies)
    write_layout(DataSet(tables=tables, questions=tuple(questions), source="FinanceBench", licence=""), folder / "data")
    answers = folder / "answers.json"
    answers.write_text(json.dumps({str(number): row["model_answer"] for number, row in enumerate(rows)}))
    words = [sys.executable, "-m", "finqa_cli", "score", str(answers), "--metric=openenv", f"--truth={folder / 'data'}"]
    words += ["--grader=judge", *(f"--set=grader.options.{name}={json.dumps(one)}" for name, one in options.items())]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--guided", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows, model, began = (
        chosen(given.folder, given.answers, given.seed),
        Served(given.model, given.guided),
        time.monotonic(),
    )
    with tempfile.TemporaryDirectory() as home, serving(model) as url:
        os.environ["FINQA_HOME"] = home
        options = {"model": "m", "base_url": url, "prices": {"m": PRICE}, "request_timeout_s": 600}
        verdicts = asyncio.run(judge_all(rows, options))
        asked = len(model.replies)
        with_verdict = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict is not None]
        print(f"{asked} replies, {dict(model.tokens)}, {time.monotonic() - began:.0f} s")
        counts = Counter((row["label"], verdict) for row, verdict in zip(rows, verdicts, strict=True))
        for (label, verdict), count in sorted(counts.items(), key=str):
            print(f"{label}: {count} {({True: 'judged right', False: 'judged wrong'}).get(verdict, 'no verdict')}")
        agreed = sum((row["label"] == RIGHT) is verdict for row, verdict in zip(rows, verdicts, strict=True))
        print(f"agrees with people: {agreed} of {len(with_verdict)} verdicts")
        print(score(with_verdict, options, Path(home, "with_verdict")))
        print(f"{len(model.replies) - asked} replies for the same answers again")
        print(score(rows, options, Path(home, "all")))


if __name__ == "__main__":
    main()
