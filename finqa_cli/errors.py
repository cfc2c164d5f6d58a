"""The exception hierarchy of finqa.

Every error that a user can cause or fix is a `FinqaError`: it states what failed, why, and which command fixes it. The
command line converts it to its exit code, without a traceback. Any other exception that reaches the command line is a
bug.

To add an error: derive it from the nearest class below, give it an exit code only if scripts must distinguish it, and
state in the docstring when it is raised.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

LONGEST = 4000
"""Most characters of a message that is printed or recorded: servers, plugins and files send texts of any length."""

_KEPT = "\n\t\u200c\u200d"


def printable(text: str) -> str:
    """Return a text that cannot control the terminal: a character that is not printable becomes its Python escape.

    Spaces, line breaks, tabs, and the joiners of emoji and of some scripts stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_plain(each) else each.encode("unicode_escape").decode("ascii") for each in text)


def legible(text: str, most: int = LONGEST) -> str:
    """Return a text from outside that people can read: printable, and without its middle if it is long.

    Secrets are masked before, because a secret that is cut is not recognized.

    Args:
        text: The text.
        most: Most characters of the result, above 100.
    """
    shown = printable(text if len(text) <= most else f"{text[:most]}{text[-most:]}")
    if len(text) <= most and len(shown) <= most:
        return shown
    note = f" ... ({len(text):,} characters in all) ... "
    end = (most - len(note)) // 4
    return f"{shown[: most - len(note) - end]}{note}{shown[-end:]}"


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs"


class FinqaError(Exception):
    """Base of all errors of the product. Message and remedy are printable.

    Attributes:
        exit_code: Exit status of the process when the error reaches the command line; docs/reference/exit-codes.md
            lists them.
        remedy: One command or action that fixes it; empty when there is none.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(printable(str(message)))
        self.remedy = printable(remedy)

    @property
    def message(self) -> str:
        """What failed and why, in one or two sentences."""
        return str(self.args[0])


class UsageError(FinqaError):
    """The command line itself is wrong: unknown command, flag or argument."""

    exit_code = 2


class ThresholdError(FinqaError):
    """The work finished, but more episodes failed than the settings allow."""

    exit_code = 3


class FailingCodeError(ThresholdError):
    """A reward or an environment of the user fails in each attempt, so the run ended early."""


class NothingToLearnError(FinqaError):
    """The policy can learn nothing from its rollouts: all attempts at a question have the same reward."""

    exit_code = 4


class DataError(FinqaError):
    """A data file, row or snapshot is missing or malformed. The message names file, row, field and reason.

    Attributes:
        problems: All malformed rows as JSON objects, where the message may list only the first ones.
    """

    exit_code = 65
    problems: Sequence[Mapping[str, object]] = ()


class ServiceUnavailableError(FinqaError):
    """A sandbox, engine or remote service cannot be reached or does not become ready."""

    exit_code = 69


class UnreachableEngineError(ServiceUnavailableError):
    """The server of an engine does not answer. It may answer again later, so a weight sync waits for it."""


class LostWorkerError(ServiceUnavailableError):
    """The process of a rollout worker has ended or cannot be reached. Other workers play its attempts again."""


class PluginError(FinqaError):
    """A component of a plugin that is not part of finqa raised an exception or returned an invalid value.

    The message names plugin, component, method, file and line.
    """


class LearnerProcessError(FinqaError):
    """One of several learner processes ended early. Raised in the first process; the run can be resumed."""

    exit_code = 70


class DeviceMemoryError(FinqaError):
    """The memory of the learner's device is full, and smaller micro-batches do not help or need a resumed run.

    Attributes:
        token_budget: Tokens per micro-batch with which a resumed run may fit; 0: smaller micro-batches do not help.
    """

    exit_code = 71

    def __init__(self, message: str, *, remedy: str = "", token_budget: int = 0) -> None:
        super().__init__(message, remedy=remedy)
        self.token_budget = token_budget


class StorageError(FinqaError):
    """Reading or writing a file failed: disk full, no permission, short write."""

    exit_code = 74


class AuthenticationError(FinqaError):
    """A key is missing or refused."""

    exit_code = 77


class ConfigError(FinqaError):
    """A setting is wrong, unknown, unsupported by the chosen component, or differs from the run to be resumed."""

    exit_code = 78


class MissingDependencyError(ConfigError):
    """A component was chosen whose optional packages are not installed."""


class InterruptedRun(FinqaError):
    """A signal ended the run early. Finished work is on disk; the remedy resumes the run."""

    exit_code = 130


class RequeuedRun(InterruptedRun):
    """SIGUSR1 ended the run early, so that its scheduler can start it again later. The remedy resumes the run."""

    exit_code = 85


class BudgetReachedError(InterruptedRun):
    """The limit of cost or tokens is reached. Finished work is on disk; the remedy resumes with a larger limit."""

    exit_code = 75


# Faults inside one episode. Each is attributed to one component and recorded in the trajectory. They end the process
# only when too many episodes fail.


class EpisodeError(FinqaError):
    """Base of the infrastructure faults that can end one attempt. They are never scored; the attempt is retried."""


class SandboxError(EpisodeError, ServiceUnavailableError):
    """The sandbox died, could not be started or stopped answering."""


class EngineError(EpisodeError, ServiceUnavailableError):
    """The engine failed to generate a turn, or to load a policy version."""


class EnvironmentFault(EpisodeError, ServiceUnavailableError):
    """The environment server broke its protocol or failed to grade."""


class JudgeFault(EnvironmentFault):
    """The judge of answers did not reply, or gave no verdict. No sandbox caused it, and grading can be repeated."""


class CodeFault(EnvironmentFault):
    """The code of a reward or an environment of the user raised, or returned what it may not. No sandbox caused it."""
