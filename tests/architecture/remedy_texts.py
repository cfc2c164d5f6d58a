"""What a remedy tells a user to do: its commands, options, settings and variables, held against the product."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache

from fixtures.command_lines import all_options, parse
from remedy_sites import all_texts, product

from finqa_cli.app import COMMANDS
from finqa_cli.settings.schema import BARE_NAMES, DECLARATIONS

ENDS = (
    r"$|[;`)]|[.,:](?=\s|$)|\s\(| and (?!\S+ and)| or | then | with (?=one|a|the|an)| without | once |"
    r" (?:shows?|lists|writes|waits|tests|continues|reads|predicts|makes|explains|takes|again|for the)\b"
)
COMMAND = re.compile(rf"\bfinqa (?=(?:{'|'.join(COMMANDS)})\b)(.*?)(?={ENDS})")
MENTION = re.compile(rf"`finqa ((?:{'|'.join(COMMANDS)})[^`]*)`")
"""A command that is spoken of, in backticks, is not the one to run: it needs no arguments."""

PLACEHOLDER = re.compile(r"\{[^{}]*\}")
"""What only a run knows, or `{}`."""

VARIABLE_PART = re.compile(r"\b(?:[A-Z]+_)*[A-Z]{1,}\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b")
SETTING = re.compile(r"(?<![\w./{(])([a-z_]+(?:\.[a-z_]+)+)(?![\w/(])")
FINQA_VARIABLE = re.compile(r"\bFINQA_[A-Z_]+\b")
FOREIGN = re.compile(
    r"^(?:pip|sudo|docker|podman|hf|ray|vllm|VLLM_\w+=|mv|ulimit|export|unset|kill|ps|ls|rm|wandb|nvidia-smi|\{engine.name\})"
    r"|(?<=or )(?:pip|docker run|vllm serve)|llama-server|\bvllm serve|docker run"
)
SECTIONS = frozenset(path.partition(".")[0] for path in DECLARATIONS)


def commands(text: str) -> list[str]:
    """Return the command lines of finqa in a text, without `finqa`; those that are only spoken of are left out."""
    plain = PLACEHOLDER.sub("{}", MENTION.sub("", text))
    return [match[1].strip() for match in COMMAND.finditer(plain)]


def mentions(text: str) -> list[str]:
    """Return the commands that a text speaks of."""
    return [match[1].strip() for match in MENTION.finditer(text)]


def alternatives(text: str) -> list[str]:
    """Return what a text gives to choose from, in its order."""
    return re.split(r"; |, or | or ", text)


def refusal(command: str, *, whole: bool = True) -> str:
    """Return why the real parser refuses a command line with any values of its placeholders; empty if it takes it.

    Args:
        command: The command line, without `finqa`.
        whole: It must have all its arguments.
    """
    reason = ""
    for sample in ("sample", "1"):
        reason = _refusal(_filled(command, sample))
        if not reason or (not whole and ("Missing" in reason or "requires an argument" in reason)):
            return ""
        for choice in _choices(reason):
            if not _refusal(_filled(command, choice)):
                return ""
    return reason


def _filled(command: str, sample: str) -> str:
    text = PLACEHOLDER.sub(sample, command)
    return re.sub(r"(?<=[ =])(?:N|SECONDS|SHARE)\b", "1", text) if sample == "1" else text


def _choices(reason: str) -> list[str]:
    return re.findall(r"'([^']+)'", reason.partition("is not one of")[2])


@cache
def _refusal(command: str) -> str:
    words = shlex.split(command)
    help_of = words[-1:] == ["--help"]
    try:
        parse(words[:-1] if help_of else words)
    except SystemExit:
        return ""
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError" or (help_of and type(error).__name__ == "MissingParameter"):
            return ""
        reason = error.format_message() if hasattr(error, "format_message") else str(error)
        return reason or type(error).__name__
    return ""


def unknown_options(text: str) -> list[str]:
    """Return options that a text names and no command has; those of other programs do not count."""
    own = " ".join(part for part in alternatives(text) if not FOREIGN.search(part))
    return [name for name in OPTION.findall(own) if name not in all_options() | OF_SERVERS]


OF_SERVERS = frozenset({"--help", "--max-lora-rank", "--enable-sleep-mode"})
"""Options of vLLM's server, which a user starts."""


def unknown_settings(text: str) -> list[str]:
    """Return dotted settings that a text names and that are in no schema."""
    return [path for path in SETTING.findall(text) if path.partition(".")[0] in SECTIONS and not _is_setting(path)]


def _is_setting(path: str) -> bool:
    if path in DECLARATIONS:
        return True
    section, _, rest = path.partition(".")
    if rest in ("options", "name"):
        return True
    name = rest.removeprefix("options.").partition(".")[0]
    kind = "engine" if section == "grader" else section  # a judge is an engine
    return rest.startswith("options.") and name in _options().get(kind, ())


@cache
def _options() -> dict[str, set[str]]:
    """Return the options of all components by kind: the annotated members of the classes of their plugins."""
    found: dict[str, set[str]] = {}
    for source in product():
        kind = source.name.removeprefix("plugins/finqa_plugins/").partition("/")[0]
        if kind != source.name:
            members = (node for each in ast.walk(source.tree) if isinstance(each, ast.ClassDef) for node in each.body)
            named = {
                one.target.id for one in members if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
            found.setdefault("sandbox" if kind == "sandboxes" else kind.removesuffix("s"), set()).update(named)
    return found


def unknown_variables(text: str) -> list[str]:
    """Return variables of finqa that a text names and nothing reads, neither code nor the settings."""
    known = _variables() | set(BARE_NAMES)
    return [name for name in FINQA_VARIABLE.findall(text) if name not in known and not _is_setting(_path(name))]


def _path(variable: str) -> str:
    """Return the setting of a variable: `engine.options.api_key` of FINQA_ENGINE__OPTIONS__API_KEY."""
    return variable.removeprefix("FINQA_").lower().replace("__", ".")


@cache
def _variables() -> frozenset[str]:
    """Return the variables that the source names by themselves, as code does that reads them."""
    return frozenset(text for _, text in all_texts() if FINQA_VARIABLE.fullmatch(text))
