"""`finqa push`: uploads policies to repositories of the Hugging Face hub by the hub's client, `huggingface_hub`.

All files of a push are one commit, so a repository gets all of them or none; afterwards the hub is asked what it
contains, and sizes and checksums are compared. If the reply to a commit was lost, the next attempt finds the commit and
has nothing left to change.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from finqa_cli import __version__
from finqa_cli.backoff import retry_after_s
from finqa_cli.data.fetch.known_sources import checked_endpoint
from finqa_cli.data.fetch.retries import Patience, Transient
from finqa_cli.deletion import temporary_folder
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    FinqaError,
    MissingDependencyError,
    ServiceUnavailableError,
    StorageError,
    UsageError,
)
from finqa_cli.publishing.export_weights import Source, Wish, check_wish, export_weights, is_hub_id, uploaded
from finqa_cli.publishing.model_card import Card, card_of
from finqa_cli.runs.durable_files import sha256_of
from finqa_cli.runs.reporter import Reporter

T = TypeVar("T")

HUGGING_FACE = "https://huggingface.co"
SIGN_IN = "hf auth login, or set HF_TOKEN, with a token that has write access"
_AGAIN = "run the same command again: files that the hub already has are not sent again"
_PASSING = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which a call is repeated.

409 and 412 mean that there was another commit, perhaps that of an earlier attempt whose reply was lost.
"""

_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,94}[A-Za-z0-9]|[A-Za-z0-9]", re.ASCII)
"""The names that the hub allows for owners and repositories."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """Content of a repository after a push.

    Attributes:
        repository: `owner/name`.
        url: Its page.
        commit: Hash of the commit that contains every file.
        private: Whether the repository is private.
        files: Name -> size in bytes.
    """

    repository: str
    url: str
    commit: str
    private: bool
    files: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class Hub:
    """The hub, or a mirror.

    Attributes:
        endpoint: Address of the hub; None takes HF_ENDPOINT, or huggingface.co.
        patience: How often and how long a call is repeated.
        tell: Called with a line of text for each call that is repeated.
    """

    endpoint: str | None
    patience: Patience
    tell: Callable[[str], None]
    _api: Any = field(init=False)

    def __post_init__(self) -> None:
        try:
            from huggingface_hub import HfApi, constants
            from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # not in its stubs
        except ImportError as error:
            raise MissingDependencyError(
                "This needs huggingface_hub, which is not installed.", remedy="pip install 'finqa[data]'"
            ) from error
        disable_progress_bars()
        self._api = HfApi(endpoint=self.endpoint, library_name="finqa", library_version=__version__)
        checked_endpoint(self._api.endpoint)
        if self._api.endpoint != HUGGING_FACE:
            # The client would wait forever for an answer in a protocol that mirrors need not support; all support LFS.
            constants.HF_HUB_DISABLE_XET = True

    def check_owner(self, owner: str) -> None:
        """Checks that there is a token, and that it belongs to the owner or, for an organization, to a member.

        Raises:
            AuthenticationError: There is no token, it is refused, or it belongs to another account.
            ServiceUnavailableError: The hub cannot be reached.
        """
        from huggingface_hub import get_token

        if not get_token():
            raise AuthenticationError("There is no token for the Hugging Face hub.", remedy=SIGN_IN)
        known = self._ask("who the token is of", lambda: _owners(self._api.whoami()))
        if owner not in known:
            raise AuthenticationError(
                f"The token belongs to {known[0]}, who is not a member of {owner!r} on the hub.",
                remedy=f"--repo-prefix with one of: {', '.join(known)}",
            )

    def licence_of(self, model: str) -> str:
        """Returns the licence that a model's card states; empty if it states none or cannot be read."""
        from huggingface_hub import errors

        try:
            card = self._api.model_info(model, timeout=self.patience.connect_s).card_data
        except (errors.HfHubHTTPError, errors.HTTPError, OSError, ValueError):  # type: ignore[attr-defined]
            return ""
        licence = getattr(card, "license", None)
        return licence if isinstance(licence, str) else ""

    def push(self, repository: str, files: Sequence[Path], *, private: bool, message: str) -> Pushed:
        """Creates the repository if it does not exist, and commits the files to its main branch.

        Raises:
            ConfigError: The repository is public although the push is to be private, or it contains other weights.
            AuthenticationError: The token may not write there.
            ServiceUnavailableError: The hub failed or did not answer in every attempt, or its content after the
                commit differs from the files.
            StorageError: A file cannot be read.
        """
        what = f"pushing to {repository}"
        self._ask(what, lambda: self._api.create_repo(repository, private=private or None, exist_ok=True))
        commit = self._ask(what, lambda: self._commit(repository, files, private=private, message=message))
        info = self._ask(what, lambda: self._info(repository, commit))
        self._check(repository, files, info)
        return Pushed(
            repository=repository,
            url=f"{self._api.endpoint}/{repository}",
            commit=commit,
            private=bool(info.private),
            files={path.name: path.stat().st_size for path in files},
        )

    def _commit(self, repository: str, files: Sequence[Path], *, private: bool, message: str) -> str:
        from huggingface_hub import CommitOperationAdd

        before = self._info(repository, "main")
        if private and not before.private:
            raise ConfigError(
                f"{repository} already exists and is public.",
                remedy=f"make it private at {self._api.endpoint}/{repository}/settings, or leave out --private",
            )
        own = {path.name for path in files}
        others = [each.rfilename for each in before.siblings or () if each.rfilename not in own]
        if stale := [name for name in others if name.endswith(_WEIGHTS) or name == "adapter_config.json"]:
            raise ConfigError(
                f"{repository} already contains other weights ({', '.join(stale[:3])}); they could be "
                "loaded instead of the new ones.",
                remedy=f"--repo-prefix {repository.partition('/')[0]}/NAME, with a prefix that no repository has",
            )
        made = self._api.create_commit(
            repository,
            [CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path) for path in files],
            commit_message=message,
            parent_commit=before.sha,
        )
        return str(made.oid)

    def _info(self, repository: str, revision: str) -> Any:
        return self._api.model_info(repository, revision=revision, files_metadata=True, timeout=self.patience.connect_s)

    def _check(self, repository: str, files: Sequence[Path], info: Any) -> None:
        there = {each.rfilename: each for each in info.siblings or ()}
        for path in files:
            found = there.get(path.name)
            if found is None or not _is_same(path, found):
                raise ServiceUnavailableError(
                    f"{repository} was committed to, but its {path.name} differs from the local file.", remedy=_AGAIN
                )

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        """Repeats a call until it succeeds, fails permanently or has failed too often."""
        for number in range(1, self.patience.attempts + 1):
            try:
                return _understood(what, self._api.endpoint, call)
            except Transient as problem:
                pause = self.patience.pause_s(number) if problem.wait_s is None else problem.wait_s
                if number == self.patience.attempts or pause > self.patience.longest_pause_s:
                    message = f"{problem}; gave up after attempt {number}."
                    raise ServiceUnavailableError(message, remedy=_AGAIN) from problem
                self.tell(f"{problem}; attempt {number + 1} of {self.patience.attempts} in {pause:.0f} s")
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _owners(who: Mapping[str, Any]) -> list[str]:
    """Returns the owners in whose name the user of a token may push.

    Raises:
        KeyError: The mapping is not an answer of a hub.
    """
    return [str(who["name"]), *(str(each["name"]) for each in who.get("orgs") or ())]


def _understood(what: str, endpoint: str, call: Callable[[], T]) -> T:
    """Calls a function and turns the client's errors into those of finqa, without addresses, which may be signed."""
    from huggingface_hub import errors

    try:
        return call()
    except errors.OfflineModeIsEnabled as error:
        raise ServiceUnavailableError(
            f"{what}: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set.",
            remedy="unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
        ) from error
    except errors.HfHubHTTPError as error:
        _refused(what, error)
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # base of every error of the client's HTTP library
        raise Transient(f"{what}: {endpoint} cannot be reached ({type(error).__name__})") from error
    except RuntimeError as error:  # the upload of a large file failed, for any reason
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            _refused(what, cause)
        raise Transient(f"{what}: a file could not be sent ({type(cause or error).__name__})") from error
    except OSError as error:
        raise StorageError(f"{what}: a file cannot be read: {error.strerror or type(error).__name__}.") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{what}: {endpoint} did not respond like a Hugging Face hub: {error}"
        raise ServiceUnavailableError(message, remedy="check --endpoint and HF_ENDPOINT") from error


def _refused(what: str, error: Any) -> NoReturn:
    status, headers = error.response.status_code, error.response.headers
    said = f" ({error.server_message})" if getattr(error, "server_message", None) else ""
    if status in _PASSING:
        wait = retry_after_s(headers.get("retry-after"))
        raise Transient(f"{what}: the hub answered HTTP {status}{said}", wait) from error
    if status == 401:
        raise AuthenticationError(f"{what}: the hub does not accept the token{said}.", remedy=SIGN_IN) from error
    if status == 403:
        raise AuthenticationError(
            f"{what}: the token has no write access there{said}.",
            remedy="a token with write access to this owner's repositories: https://huggingface.co/settings/tokens",
        ) from error
    raise ServiceUnavailableError(f"{what}: the hub answered HTTP {status}{said}.", remedy=_AGAIN) from error


def _is_same(path: Path, there: Any) -> bool:
    if there.lfs is not None:
        return bool(there.lfs.sha256 == sha256_of(path))
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return bool(there.blob_id == blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One policy and the repository to push it to.

    Attributes:
        source: The policy.
        repository: `owner/name`.
        wish: Form of the export.
        card: Its model card.
    """

    source: Source
    repository: str
    wish: Wish
    card: Card


def plan_pushes(
    sources: Sequence[Source], wish: Wish, prefix: str, *, licence: str, evaluations: Sequence[Path]
) -> list[Plan]:
    """Plans the repository `<owner>/<folder>_step-<N>` of each policy. Nothing is written or sent.

    Args:
        sources: The policies.
        wish: Form of the export.
        prefix: `owner`, or `owner/beginning-of-the-name`.
        licence: Licence of the policies; empty if it is not stated.
        evaluations: Evaluations for the model card; there must then be only one policy.

    Raises:
        UsageError: The hub does not allow the prefix or a name, or evaluations are given for several policies.
        ConfigError: A policy cannot be exported in the form, or an adapter's base is a folder of this machine.
        DataError: An evaluation is of another policy.
    """
    if evaluations and len(sources) > 1:
        raise UsageError("--eval applies to one policy, but several are pushed.", remedy="--step N instead of --num")
    plans = []
    for source in sources:
        check_wish(source, wish)
        if wish.form == "peft" and not is_hub_id(wish.base_model or source.policy.model):
            raise ConfigError(
                f"The adapter's base is {source.policy.model}, a folder of this machine, so other "
                "people could not load it.",
                remedy="--to merged, or --base-model HUB_ID if the hub has exactly this model",
            )
        card = card_of(source, wish.relation, base_model=wish.base_model, licence=licence, evaluations=evaluations)
        plans.append(Plan(source=source, repository=_repository(prefix, source), wish=wish, card=card))
    return plans


def push_all(plans: Sequence[Plan], hub: Hub, *, private: bool, reporter: Reporter) -> list[Pushed]:
    """Pushes the policies one after the other, in the given order.

    Raises:
        AuthenticationError, ConfigError, DataError, ServiceUnavailableError, StorageError: A policy could not be
            pushed; the message names those that were.
    """
    hub.check_owner(plans[0].repository.partition("/")[0])
    done: list[Pushed] = []
    for plan in plans:
        reporter.line(f"Pushing {plan.source.title} ({plan.wish.form}) to {plan.repository}.")
        try:
            done.append(_push(plan, hub, private=private))
        except FinqaError as error:
            if done:
                error.args = (f"{error.message} Pushed before: {', '.join(each.repository for each in done)}.",)
            raise
    return done


def _push(plan: Plan, hub: Hub, *, private: bool) -> Pushed:
    card = plan.card
    if not card.licence and is_hub_id(card.base_model) and (licence := hub.licence_of(card.base_model)):
        card = replace(card, licence=licence)
    with temporary_folder("finqa-push-") as scratch:
        folder = Path(scratch) / "export"
        export_weights(plan.source, plan.wish, folder, card.text())
        message = f"{plan.source.title} ({plan.wish.form}), by finqa"
        return hub.push(plan.repository, uploaded(folder), private=private, message=message)


def _repository(prefix: str, source: Source) -> str:
    owner, _, beginning = prefix.partition("/")
    name = f"{beginning}{source.title}"
    for part, what in ((owner, "an owner"), (name, "a repository")):
        if not _NAME.fullmatch(part):
            raise UsageError(
                f"{part!r} is not a valid name of {what} on the hub: at most 96 letters, digits, '-', '_' and '.'.",
                remedy="--repo-prefix OWNER, and a run folder with a name that is valid on the hub",
            )
    return f"{owner}/{name}"
