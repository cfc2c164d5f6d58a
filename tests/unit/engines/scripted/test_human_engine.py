from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.errors import EpisodeError
from finqa_cli.extend import registry
from finqa_cli.types import AssistantTurn, ChatRequest, Message, Sampling, ToolCall, ToolSpec
from finqa_plugins.engines.human.human_engine import (
    HumanEngine,
    PersonLeftError,
    PlainReader,
    TerminalReader,
    _divide,
    choose_reader,
)


def tool(name: str, *arguments: str) -> ToolSpec:
    properties = {argument: {"type": "string"} for argument in arguments}
    return ToolSpec(name=name, description="", parameters={"type": "object", "properties": properties})


TOOLS = (
    tool("get_descriptions", "company_name"),
    tool("get_table_info", "company_name", "table_name"),
    tool("sql_query", "company_name", "table_name", "query"),
    tool("submit_answer", "answer"),
)
OPENING = (
    Message(role="system", content="You are an analyst."),
    Message(role="user", content="Company: velmora_foods\nQuestion: What was net sales in 2021?"),
)
LATER = (
    *OPENING,
    Message(
        role="assistant",
        content="",
        tool_call=ToolCall(name="get_descriptions", arguments={"company_name": "velmora_foods"}),
    ),
    Message(role="tool", content='["first_table", "second_table"]', name="get_descriptions"),
)


def request(messages: tuple[Message, ...] = OPENING) -> ChatRequest:
    return ChatRequest(key="k", messages=messages, tools=TOOLS, sampling=Sampling())


async def typed(monkeypatch: pytest.MonkeyPatch, text: str, messages: tuple[Message, ...] = OPENING) -> ToolCall:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    engine = HumanEngine(None, EngineContext())
    await engine.start()
    turn = await engine.respond(request(messages))
    await engine.close()
    assert turn.tool_call is not None
    payload = turn.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(payload) == {"name": turn.tool_call.name, "arguments": turn.tool_call.arguments}
    return turn.tool_call


async def test_a_name_asks_for_each_argument_with_the_company_as_default(monkeypatch: pytest.MonkeyPatch) -> None:
    call = await typed(monkeypatch, "sql_query\n\nt1\nSELECT 1\n")
    assert call == ToolCall(
        name="sql_query", arguments={"company_name": "velmora_foods", "table_name": "t1", "query": "SELECT 1"}
    )


async def test_one_line_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await typed(monkeypatch, "submit_answer 0.5 \n")).arguments == {"answer": "0.5"}
    line = 'get_table_info {"company_name": "a", "table_name": "b"}\n'
    assert (await typed(monkeypatch, line)).arguments == {"company_name": "a", "table_name": "b"}


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ('get_table_info(company_name="a", table_name="b")', {"company_name": "a", "table_name": "b"}),
        ("get_table_info(company_name=a, table_name=b)", {"company_name": "a", "table_name": "b"}),
        ("get_table_info(a, b)", {"company_name": "a", "table_name": "b"}),
        ("get_table_info('a', table_name=b.c-d)", None),
        ("get_table_info(company_name=a.b, table_name=c-d)", {"company_name": "a.b", "table_name": "c-d"}),
        ("submit_answer(0.5)", {"answer": "0.5"}),
        ("submit_answer(5.2%)", {"answer": "5.2%"}),
        ("submit_answer(answer=5.2%)", {"answer": "5.2%"}),
        ("submit_answer(1)+(2)", {"answer": "1)+(2"}),
        ("sql_query(a, b, 'SELECT (1), 2')", {"company_name": "a", "table_name": "b", "query": "SELECT (1), 2"}),
    ],
)
async def test_a_call_may_be_written_as_the_list_of_tools_shows_it(
    line: str, arguments: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = await typed(monkeypatch, f"{line}\nsubmit_answer not known\n")
    if arguments is None:
        assert call.arguments == {"answer": "not known"} and "not JSON" in capsys.readouterr().err
    else:
        assert call == ToolCall(name=line.partition("(")[0], arguments=arguments)


@given(st.text(max_size=40))
async def test_any_call_in_brackets_is_answered(text: str) -> None:
    tools = {each.name: each for each in TOOLS}
    name, rest = _divide(f"sql_query({text})", tools)
    assert isinstance(rest, str) and isinstance(name, str)


@pytest.mark.parametrize("word", ["?", "help"])
async def test_help_explains_the_tools(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (await typed(monkeypatch, f"{word}\nsubmit_answer 1\n")).arguments == {"answer": "1"}
    shown = capsys.readouterr().err
    assert shown.count("What was net sales in 2021?") == 2, "the question is shown again"
    assert 'get_descriptions(company_name="...")' in shown and 'get_descriptions {"company_name": "..."}' in shown


async def test_malformed_lines_are_explained_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["submit_anwser 5", "", "sql_query {oops", 'sql_query {"query": "x"}', "submit_answer", "", "7"]
    call = await typed(monkeypatch, "\n".join(lines) + "\n")
    shown = capsys.readouterr()
    assert call.arguments == {"answer": "7"} and shown.out == ""
    for hint in ("Did you mean submit_answer?", "not JSON", "takes exactly", "answer must not be empty"):
        assert hint in shown.err


async def test_only_what_is_new_is_shown_and_control_characters_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await typed(monkeypatch, "submit_answer 1\n")
    assert "net sales in 2021" in capsys.readouterr().err
    evil = Message(role="tool", content="\x1b[2Jgone", name="get_descriptions")
    await typed(monkeypatch, "submit_answer 1\n", (*LATER[:-1], evil))
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "gone" in shown and "net sales in 2021" not in shown


@pytest.mark.parametrize("text", ["", "sql_query\n", "nonsense\n"])
async def test_the_end_of_input_ends_the_episode_without_a_retry(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(PersonLeftError) as caught:
        await typed(monkeypatch, text)
    assert caught.value.exit_code == 130 and not isinstance(caught.value, EpisodeError)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - prompt_toolkit completes beside its key bindings and signals nothing
        await asyncio.sleep(0.01)


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


async def test_on_a_terminal_tab_completes_tools_and_tables(keys: PipeInput) -> None:
    reader = TerminalReader(keys, DummyOutput())

    buffer = reader.session.default_buffer

    async def complete(typed: str) -> None:
        keys.send_text(typed)
        await until(lambda: buffer.text == typed and buffer.complete_state is not None)
        keys.send_text("\t")
        await until(lambda: buffer.text != typed)
        keys.send_text("\r")

    async def person() -> None:
        await complete("get_t")
        await until(lambda: buffer.text == "")
        keys.send_text("\r")
        await complete("sec")

    engine = HumanEngine(None, EngineContext(), reader=reader)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(person())
        turn = group.create_task(engine.respond(request(LATER)))
    assert turn.result().tool_call == ToolCall(
        name="get_table_info", arguments={"company_name": "velmora_foods", "table_name": "second_table"}
    )


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
async def test_on_a_terminal_ctrl_c_and_ctrl_d_end_the_episode(keys: PipeInput, key: str) -> None:
    engine = HumanEngine(None, EngineContext(), reader=TerminalReader(keys, DummyOutput()))
    keys.send_text(key)
    with pytest.raises(PersonLeftError):
        await engine.respond(request())


COUNT = ToolSpec(
    name="count",
    description="",
    parameters={
        "type": "object",
        "properties": {"item": {"type": "string"}, "shelf": {"type": "integer", "default": 1}, "sizes": {}},
        "required": ["item", "sizes"],
    },
)


async def respond(monkeypatch: pytest.MonkeyPatch, text: str, *, takes_text: bool = True) -> AssistantTurn:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    asked = ChatRequest(key="k", messages=OPENING, tools=(COUNT,), sampling=Sampling(), takes_text=takes_text)
    return await HumanEngine(None, EngineContext()).respond(asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("there are 7 of them\n", "there are 7 of them"),
        ("\n42\n", "42"),
        ("```\ncount nothing\n  twice\n```\n", "count nothing\n  twice"),
        ("```python\nx\n```\n", "```python\nx\n```"),
        ("cuont bolts\nthen 7\n", "then 7"),
    ],
)
async def test_a_line_that_is_no_call_is_a_reply_where_the_episode_takes_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    turn = await respond(monkeypatch, text)
    assert turn.text == said and turn.tool_call is None
    shown = capsys.readouterr().err
    assert "Any other line is a reply in words" in shown
    assert ("Did you mean count?" in shown) == text.startswith("cuont")


async def test_words_are_no_reply_where_the_episode_takes_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await respond(monkeypatch, "seven\ncount\nbolts\n\n[1, 2]\n", takes_text=False)
    assert turn.tool_call == ToolCall(name="count", arguments={"item": "bolts", "sizes": [1, 2]})


async def test_arguments_are_of_the_types_of_the_schema_and_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await respond(monkeypatch, 'count {"item": 7, "sizes": "all"}\n')
    assert turn.tool_call == ToolCall(name="count", arguments={"item": "7", "sizes": "all"})
    turn = await respond(monkeypatch, 'count {"item": "a"}\ncount\nbolts\n3\nall of them\n')
    assert turn.tool_call == ToolCall(name="count", arguments={"item": "bolts", "shelf": 3, "sizes": "all of them"})


CODE = "```python\ndef double(x):\n    return 2 * x\n```"


@pytest.mark.parametrize(
    ("text", "answer"), [("\n 42 \n", "42"), (f"{CODE}\nmore\n", CODE), ("```x```\nmore\n", "```x```")]
)
async def test_without_tools_one_line_is_typed_or_a_block(
    monkeypatch: pytest.MonkeyPatch, text: str, answer: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    asked = ChatRequest(key="k", messages=OPENING, tools=(), sampling=Sampling())
    assert (await HumanEngine(None, EngineContext()).respond(asked)).text == answer


async def test_a_block_on_a_terminal_keeps_its_indents(keys: PipeInput) -> None:
    engine = HumanEngine(None, EngineContext(), reader=TerminalReader(keys, DummyOutput()))
    keys.send_text(CODE.replace("\n", "\r") + "\r")
    asked = ChatRequest(key="k", messages=OPENING, tools=(), sampling=Sampling())
    assert (await engine.respond(asked)).text == CODE


async def test_standard_input_that_is_no_terminal_is_read_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    assert isinstance(choose_reader(), PlainReader)


def test_it_registers_as_a_chat_engine() -> None:
    assert isinstance(registry().create("engine", "human", {}, EngineContext()), ChatEngine)
