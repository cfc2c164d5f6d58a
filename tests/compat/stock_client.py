"""Plays episodes with OpenEnv's own client against the server at argv[1]; prints what it got as JSON.

Runs in the environment of that client, so it imports nothing of finqa.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

TABLE = {"company_name": "acme", "table_name": "income_statement"}
QUERY = {**TABLE, "query": "SELECT \"2024\" FROM income_statement WHERE line_item = 'total_revenues'"}


class FinQAEnv(MCPToolClient):
    """As upstream's finqa_env defines it: nothing but a name."""


async def step(env: MCPToolClient, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await env.step(CallToolAction(tool_name=tool, arguments=arguments))
    observation = result.observation
    error = getattr(observation, "error", None)
    return {
        "reward": result.reward,
        "done": result.done,
        "text": (getattr(observation, "result", None) or {}).get("data"),
        "error": error and error.error_type.value,
    }


async def refused(env: MCPToolClient, tool: str, **arguments: Any) -> str:
    try:
        return f"no error: {await env.call_tool(tool, **arguments)}"
    except RuntimeError as error:
        return str(error)


async def play(url: str, client: type[MCPToolClient]) -> dict[str, Any]:
    """Everything a client does, in one session: two episodes, good and bad calls, both ways of calling a tool."""
    seen: dict[str, Any] = {}
    async with client(base_url=url) as env:
        opening = await env.reset(question_id="q1", episode_id="mine")
        seen["reset"] = [opening.reward, opening.done]
        seen["tools"] = {tool.name: sorted(tool.input_schema["required"]) for tool in await env.list_tools()}
        seen["tool_descriptions"] = all(tool.description for tool in await env.list_tools(use_cache=False))
        seen["descriptions"] = await env.call_tool("get_descriptions", company_name="acme")
        seen["table_info"] = await env.call_tool("get_table_info", **TABLE)
        seen["query"] = await env.call_tool("sql_query", **QUERY)
        seen["star"] = await env.call_tool("sql_query", **{**QUERY, "query": "SELECT * FROM income_statement WHERE 1"})
        seen["unknown_tool"] = await refused(env, "no_such_tool")
        seen["missing_argument"] = await refused(env, "sql_query", query="SELECT 1 WHERE 1")
        seen["step"] = await step(env, "sql_query", **QUERY)
        seen["step_unknown_tool"] = await step(env, "no_such_tool")
        state = await env.state()
        seen["state"] = [state.episode_id, state.step_count]
        seen["submit"] = await step(env, "submit_answer", answer="6118")
        seen["after_the_end"] = await step(env, "submit_answer", answer="1")

        await env.reset(question_id="q4")
        seen["second_wrong"] = await step(env, "submit_answer", answer="7")
        await env.reset(question_id="q4")
        seen["number"] = await step(env, "submit_answer", answer=-6)
        await env.reset(seed=3)
        seen["submit_by_call_tool"] = str(await env.call_tool("submit_answer", answer="?"))
        seen["state_after_call_tool"] = (await env.state()).step_count
        seen["reset_without_options"] = (await env.reset()).done
    return seen


def play_synchronously(url: str) -> dict[str, Any]:
    """The same client through its synchronous face."""
    with FinQAEnv(base_url=url).sync() as env:
        env.reset(question_id="q1")
        text = env.call_tool("sql_query", **QUERY)
        result = env.step(CallToolAction(tool_name="submit_answer", arguments={"answer": "6118"}))
    return {"query": text, "reward": result.reward, "done": result.done}


async def side_by_side(url: str) -> list[float]:
    """Sessions of their own questions and answers, all open at once."""
    answers = {"q1": "6118", "q2": "0.2236", "q4": "-6", "q5": "Yes"}
    wanted = [*answers] * 5

    async def one(question: str) -> float:
        async with FinQAEnv(base_url=url) as env:
            await env.reset(question_id=question)
            await env.call_tool("get_descriptions", company_name="acme")
            return (await step(env, "submit_answer", answer=answers[question]))["reward"]

    return list(await asyncio.gather(*(one(question) for question in wanted)))


def main() -> None:
    url = sys.argv[1]
    seen = {client.__name__: asyncio.run(play(url, client)) for client in (MCPToolClient, FinQAEnv)}
    print(json.dumps({**seen, "sync": play_synchronously(url), "side_by_side": asyncio.run(side_by_side(url))}))


if __name__ == "__main__":
    main()
