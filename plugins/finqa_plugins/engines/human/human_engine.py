"""A chat engine whose turns are typed by a person at the terminal."""

from __future__ import annotations

import ast
import asyncio
import difflib
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.errors import FinqaError
from finqa_cli.types import AssistantTurn, ChatRequest, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


class PersonLeftError(FinqaError):
    """The person ended the conversation with Ctrl-D or Ctrl-C; not a fault of the engine, so it is not retried."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("The episode was ended at the terminal before an answer was submitted.")


class LineReader(ABC):
    """Asks the person for lines."""

    async def ask(self, label: str, *, words: Sequence[str], default: str) -> str:
        """The line, stripped; `default` when it is empty. Raises as `line`.

        Args:
            label: Name of the value to type.
            words: Completions of the line.
            default: Shown after the label.
        """
        shown = f"{label} [{default}]: " if default else f"{label}: "
        return (await self.line(shown, words)).strip() or default

    @abstractmethod
    async def line(self, label: str, words: Sequence[str] = ()) -> str:
        """The line as it was typed, for text in which whitespace matters.

        Raises:
            PersonLeftError: The input ended, or the person interrupted it.
        """


class PlainReader(LineReader):
    """Reads standard input that is not a terminal, without completion."""

    async def line(self, label: str, words: Sequence[str] = ()) -> str:
        """See `LineReader.line`."""
        show(label, end="")
        try:
            line = await asyncio.to_thread(sys.stdin.readline)
        except KeyboardInterrupt as error:
            raise PersonLeftError from error
        except UnicodeDecodeError:
            line = "\n"
        if not line:
            raise PersonLeftError
        return str(line).rstrip("\r\n")


class TerminalReader(LineReader):
    """Reads a terminal, with completion by Tab and history by the arrow keys."""

    def __init__(self, source: Input | None = None, target: Output | None = None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self.session: PromptSession[str] = PromptSession(
            input=source, output=target or create_output(stdout=sys.stderr), complete_while_typing=True
        )

    async def line(self, label: str, words: Sequence[str] = ()) -> str:
        """See `LineReader.line`."""
        from prompt_toolkit.completion import WordCompleter

        try:
            return await self.session.prompt_async(label, completer=WordCompleter(list(words), sentence=True))
        except (EOFError, KeyboardInterrupt) as error:
            raise PersonLeftError from error


def choose_reader() -> LineReader:
    """The reader that fits standard input."""
    return TerminalReader() if sys.stdin is not None and sys.stdin.isatty() else PlainReader()


def show(text: str, *, end: str = "\n") -> None:
    """Prints for the person; replaces control characters, so that tool replies cannot control the terminal."""
    safe = "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)
    print(safe, end=end, file=sys.stderr, flush=True)


HELP = ("?", "help")
FENCE = "```"
_BLOCK = "Between lines of ``` it is a reply in words."


class HumanEngine(ChatEngine):
    """Shows what is new in the conversation, then asks for a call, or for text if the episode accepts it."""

    def __init__(self, config: None, context: EngineContext, *, reader: LineReader | None = None) -> None:
        self._reader = reader

    async def start(self) -> None:
        """Chooses the reader that fits standard input."""
        self._reader = self._reader or choose_reader()

    async def close(self) -> None:
        """Nothing to free."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """Return one call; or a text, as the person typed it, if the episode accepts it.

        Raises:
            PersonLeftError: The person typed Ctrl-D or Ctrl-C.
        """
        reader = self._reader = self._reader or choose_reader()
        _show_news(request)
        if not request.tools:
            return AssistantTurn(text=await _ask_text(reader, "answer (several lines between lines of ```)"))
        tools = {tool.name: tool for tool in request.tools}
        while True:
            label = "tool or reply" if request.takes_text else "tool"
            line = await reader.ask(label, words=list(tools), default="")
            if line in HELP and line not in tools:
                show(_help(request))
                continue
            name, rest = _divide(line, tools)
            tool = tools.get(name)
            if tool is None:
                if request.takes_text and (text := await _reply(reader, line, list(tools))):
                    return AssistantTurn(text=text)
                show(_unknown_tool(name, list(tools), takes_text=request.takes_text))
                continue
            arguments = _inline_arguments(rest, tool) if rest.strip() else await _ask_arguments(reader, tool, request)
            if isinstance(arguments, str):
                show(f"{arguments} {_BLOCK}" if request.takes_text else arguments)
                continue
            return AssistantTurn.calling(ToolCall(name=name, arguments=arguments))


async def _ask_text(reader: LineReader, label: str) -> str:
    """One line; or several, from a line that begins with ``` to the next one that does."""
    while not (text := await reader.ask(label, words=[], default="")):
        show("The answer must not be empty.")
    return await _rest_of_block(reader, text)


async def _reply(reader: LineReader, line: str, tools: Sequence[str]) -> str:
    """Return the text reply that begins with `line`; "" if the line is empty or looks like a mistyped call."""
    if not line or _nearest(line.partition(" ")[0], tools):
        return ""
    text = await _rest_of_block(reader, line)
    lines = text.split("\n")
    return "\n".join(lines[1:-1]) if len(lines) > 1 and lines[0] == FENCE else text


async def _rest_of_block(reader: LineReader, first: str) -> str:
    if not first.startswith(FENCE) or FENCE in first[len(FENCE) :]:
        return first
    lines = [first]
    while len(lines) == 1 or not lines[-1].startswith(FENCE):
        lines.append(await reader.line(""))
    return "\n".join(lines)


def _show_news(request: ChatRequest) -> None:
    """Everything at the start of an episode, later only what came after the person's last turn."""
    messages = request.messages
    spoken = [place for place, message in enumerate(messages) if message.role == "assistant"]
    for message in messages[spoken[-1] + 1 if spoken else 0 :]:
        images = "".join(f"\n[image: {address[:60]}]" for address in message.images)
        show(f"--- {message.name or message.role} ---\n{message.content}{images}\n")
    if request.tools and not spoken:
        show("Tools (type a name, or a whole call; ? explains them; Ctrl-D ends the episode):")
        for tool in request.tools:
            show(f"  {_signature(tool)}")
        if request.takes_text:
            show("Any other line is a reply in words; so are several, between lines of ```.")


def _signature(tool: ToolSpec) -> str:
    names = [name if name in _required(tool) else f"{name}=..." for name in _parameters(tool)]
    return f"{tool.name}({', '.join(names)})"


def _help(request: ChatRequest) -> str:
    """Return the question, what each tool does and takes, and the forms of a call."""
    asked = next((message.content for message in request.messages if message.role == "user"), "")
    lines = [asked, ""]
    for tool in request.tools:
        lines += [_signature(tool), *(f"    {line}" for line in tool.description.strip().splitlines())]
        for name, schema in _parameters(tool).items():
            about = str(schema.get("description", "")).strip()
            lines += [f"    {name}: {about}"] if about else []
    example = next((tool for tool in request.tools if _parameters(tool)), request.tools[0])
    values = dict.fromkeys(_parameters(example), "...")
    call = ", ".join(f'{name}="..."' for name in values)
    lines += [
        "",
        f"A call: {example.name} alone, and its arguments are asked for; {example.name}({call}); or",
        f"{example.name} {json.dumps(values)}",
    ]
    return "\n".join(lines)


def _divide(line: str, tools: Mapping[str, ToolSpec]) -> tuple[str, str]:
    """Return the name of the tool and its arguments (JSON or text); `tool(...)` is allowed too."""
    name, bracket, rest = line.partition("(")
    tool = tools.get(name.strip())
    if tool is None or not bracket or not rest.rstrip().endswith(")"):
        first, _, more = line.partition(" ")
        return first, more
    return tool.name, _call_arguments(rest.rstrip()[:-1], list(_parameters(tool)))


def _call_arguments(text: str, names: Sequence[str]) -> str:
    """Return the arguments of a call as JSON: Python literals or bare words, by position or name.

    Text that is not such a list is returned unchanged; `_inline_arguments` reports what is wrong with it.
    """
    if not text.strip() or not names:
        return text.strip()
    try:
        call = ast.parse(f"call({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return text
        given = dict(zip(names, map(_literal, call.args), strict=False))
        given |= {each.arg or "": _literal(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if len(names) == 1:
            return json.dumps({names[0]: re.sub(rf"\A\s*{re.escape(names[0])}\s*=", "", text).strip()})
        parts = [part.partition("=") for part in text.split(",")]
        if not all(equals for _, equals, _ in parts):
            return text
        given = {name.strip(): value.strip() for name, _, value in parts}
    return json.dumps(given, default=str)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or the text of a bare name.

    Raises:
        ValueError: The node is neither.
    """
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _parameters(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    """Return the JSON schema of each parameter by name."""
    properties = tool.parameters.get("properties", {})
    return dict(properties) if isinstance(properties, Mapping) else {}


def _required(tool: ToolSpec) -> list[str]:
    """Return the required parameters without a default; without a list of required ones, all count."""
    named = tool.parameters.get("required", list(_parameters(tool)))
    return [name for name, schema in _parameters(tool).items() if name in named and "default" not in schema]


def _nearest(name: str, known: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), "")


def _unknown_tool(name: str, known: Sequence[str], *, takes_text: bool) -> str:
    nearest = _nearest(name, known)
    hint = f" Did you mean {nearest}?" if nearest else ""
    return f"There is no tool {name!r}.{hint} Type one of: {', '.join(known)}.{f' {_BLOCK}' if takes_text else ''}"


def _inline_arguments(text: str, tool: ToolSpec) -> dict[str, Any] | str:
    """Parses arguments in JSON, or bare text for a tool with one argument. Returns an error message if wrong."""
    parameters, required = _parameters(tool), _required(tool)
    if len(parameters) == 1 and not text.lstrip().startswith("{"):
        return {name: _typed(text.strip(), schema) for name, schema in parameters.items()}
    example = json.dumps(dict.fromkeys(parameters, "..."))
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"That is not JSON ({error}). Type `{tool.name}` alone to be asked, or `{tool.name} {example}`."
    if not isinstance(given, dict) or not set(required) <= set(given) <= set(parameters):
        optional = [name for name in parameters if name not in required]
        more = f" and, where wanted, {', '.join(optional)}" if optional else ""
        return f"{tool.name} takes exactly {', '.join(required) or 'nothing'}{more}: `{tool.name} {example}`."
    return {name: str(value) if _is_text(parameters[name]) else value for name, value in given.items()}


async def _ask_arguments(reader: LineReader, tool: ToolSpec, request: ChatRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, schema in _parameters(tool).items():
        words = _table_names(request.messages) if name == "table_name" else []
        default = _default(name, request.messages)
        optional = name not in _required(tool)
        label = f"  {name} (may be empty)" if optional else f"  {name}"
        while not (value := await reader.ask(label, words=words, default=default)) and not optional:
            show(f"{name} must not be empty.")
        if value:
            arguments[name] = _typed(value, schema)
    return arguments


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value of a typed text: the text for a string parameter or if it is not JSON, else the JSON value."""
    if _is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _default(name: str, messages: Sequence[Message]) -> str:
    """The argument of the last call, for company and table; before the first call, the company of the question."""
    if name not in ("company_name", "table_name"):
        return ""
    calls = [message.tool_call for message in messages if message.tool_call and name in message.tool_call.arguments]
    if calls:
        return str(calls[-1].arguments[name])
    pattern = re.compile(r"^\s*company:\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)
    found = [match for message in messages if message.role == "user" and (match := pattern.search(message.content))]
    return found[0].group(1) if found and name == "company_name" else ""


def _table_names(messages: Sequence[Message]) -> list[str]:
    for message in reversed(messages):
        if message.role == "tool" and message.name == "get_descriptions":
            try:
                names = json.loads(message.content)
            except (ValueError, RecursionError):
                return []
            return [str(name) for name in names] if isinstance(names, list) else []
    return []
