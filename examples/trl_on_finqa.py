"""TRL's GRPOTrainer on finqa's server: the agent learns to answer questions about 10-K tables with four tools.

    finqa snapshot serve openenv-finqa            # in another terminal; it prints its address
    python examples/trl_on_finqa.py --url http://127.0.0.1:8000 --model Qwen/Qwen3-0.6B

Needs `pip install trl peft jmespath openenv`, and no finqa: everything comes from the server, over OpenEnv's protocol.
The Task API lists the questions, without answers. `environment_factory` gives TRL a session of the server for each
attempt; its public methods are the tools. The server grades the answer, and `get_reward` returns what it gave. A server
with a token needs it in FINQA_TOKEN.

Prints the mean reward of every step; trainer_state.json in the output folder has all figures that TRL records.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from datasets import Dataset
from openenv.core import GenericEnvClient
from peft import LoraConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

SYSTEM = (
    "You are a financial analyst. Answer the question from the company's tables: find the table, look at it, "
    "query it with SQL, compute, then call submit_answer once. Submit the number alone, without units or words. "
    "Percentages, margins and growth rates are decimal ratios: 5.2% is 0.052. For several years submit "
    '"year: value, year: value". For yes-or-no questions submit Yes or No.'
)


def headers() -> dict[str, str]:
    """Return the header with the server's token, if it has one."""
    token = os.environ.get("FINQA_TOKEN", "")
    return {"Authorization": f"Bearer {token}"} if token else {}


def questions(url: str, split: str, start: int, stop: int) -> Dataset:
    """Return a range of a split's questions as prompts, each with the id that `reset` takes."""
    body = json.dumps({"split": split, "start": start, "stop": stop}).encode()
    request = urllib.request.Request(
        f"{url}/finqa_env/task_range", body, {"Content-Type": "application/json", **headers()}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        tasks = json.load(reply)["tasks"]
    return Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Company: {task['company']}\nQuestion: {task['question']}"},
                ],
                "task_id": task["id"],
            }
            for task in tasks
        ]
    )


class FinQA:
    """A session of the server. TRL makes one for each attempt at once, and resets it for the next."""

    def __init__(self, url: str) -> None:
        self._client = GenericEnvClient(base_url=url, headers=headers()).sync()
        self._client.connect()
        self._reward = 0.0
        self._done = False

    def reset(self, task_id: str, **_: Any) -> None:
        """Begin an episode of a question; the other columns of its row are in the prompt."""
        self._client.reset(task_id=task_id)
        self._reward, self._done = 0.0, False

    def get_reward(self) -> float:
        """Return the reward that the server gave; 0 if no answer was submitted."""
        return self._reward

    def get_descriptions(self, company_name: str) -> str:
        """
        List the tables of a company.

        Args:
            company_name: The name of the company
        """
        return self._call("get_descriptions", company_name=company_name)

    def get_table_info(self, company_name: str, table_name: str) -> str:
        """
        Describe a table: columns, types, row labels.

        Args:
            company_name: The name of the company
            table_name: The name of the table
        """
        return self._call("get_table_info", company_name=company_name, table_name=table_name)

    def sql_query(self, company_name: str, table_name: str, query: str) -> str:
        """
        Run one SQLite SELECT on a table. Needs a filter such as WHERE; SELECT * is not allowed.

        Args:
            company_name: The name of the company
            table_name: The name of the table
            query: SELECT ... FROM table_name WHERE ...
        """
        return self._call("sql_query", company_name=company_name, table_name=table_name, query=query)

    def submit_answer(self, answer: str) -> str:
        """
        Submit the final answer and end the episode.

        Args:
            answer: The final answer
        """
        return self._call("submit_answer", answer=answer)

    def _call(self, tool: str, **arguments: str) -> str:
        """Return the tool's text. TRL lets a model continue after the end, where further calls have no effect."""
        if self._done:
            return "The episode is over."
        step = self._client.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})
        self._done = step.done
        self._reward = float(step.reward or 0.0)
        return str(step.observation["result"]["data"])


def tokenizer_of(model: str, url: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer. That of finqa's embedded policy gets what TRL and transformers do not know of it.

    The policy is so small that it knows the tools only in the words of the server, so its template shows these and not
    what transformers makes of the methods of `FinQA`. TRL parses the calls of known templates, of which it is none.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    if "Qwen3's wire format" in tokenizer.chat_template:
        with GenericEnvClient(base_url=url, headers=headers()).sync() as client:
            listed = client.step({"type": "list_tools"}).observation["tools"]
        tools = [
            {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
            for tool in listed
        ]
        described = json.dumps([{"type": "function", "function": tool} for tool in tools])
        tokenizer.chat_template = f"{{%- set tools = {described} if tools else tools %}}{tokenizer.chat_template}"
        tokenizer.response_template = qwen3_template
    return tokenizer


def train(chosen: argparse.Namespace) -> list[float]:
    """Train, print the mean reward of every step and return them."""
    dataset = questions(chosen.url, "train", 0, chosen.questions)
    arguments = GRPOConfig(
        output_dir=str(chosen.output),
        max_steps=chosen.steps * chosen.updates,
        num_iterations=chosen.updates,
        num_generations=chosen.group_size,
        per_device_train_batch_size=chosen.group_size * chosen.groups,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="constant",
        max_completion_length=chosen.completion_tokens,  # replies of the tools included
        max_tool_calling_iterations=chosen.tool_calls,
        temperature=1.0,
        seed=chosen.seed,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=chosen.model,
        processing_class=tokenizer_of(chosen.model, chosen.url),
        args=arguments,
        train_dataset=dataset,
        environment_factory=lambda: FinQA(chosen.url),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for step, reward in enumerate(rewards, 1):
        print(f"step {step}: mean reward {reward:.3f}")
    return rewards


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address that finqa snapshot serve prints")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--output", type=Path, default=Path("trl-on-finqa"))
    parser.add_argument("--questions", type=int, default=256, help="of the split train, at most 1,000")
    parser.add_argument("--steps", type=int, default=100, help="rounds of attempts and updates on them")
    parser.add_argument("--updates", type=int, default=1, help="updates of a step")
    parser.add_argument("--groups", type=int, default=4, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="attempts at a question")
    parser.add_argument("--completion-tokens", type=int, default=2048)
    parser.add_argument("--tool-calls", type=int, default=8, help="turns with calls of an attempt")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
