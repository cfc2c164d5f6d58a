"""`finqa push`: policies of a run as repositories of the Hugging Face hub, each with a model card."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finqa_cli.errors import ConfigError, FinqaError, UsageError
from finqa_cli.publishing.export_sources import Source
from finqa_cli.publishing.export_weights import Wish, check_wish, export_weights, uploaded
from finqa_cli.publishing.hub_repository import Hub, Pushed
from finqa_cli.publishing.model_card import Card, is_hub_id
from finqa_cli.publishing.model_card_facts import card_of
from finqa_cli.runs.reporter import Reporter

_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,94}[A-Za-z0-9]|[A-Za-z0-9]", re.ASCII)
"""What the hub allows as the name of an owner or a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One policy and where it is to go.

    Attributes:
        source: The policy.
        repository: `owner/name`.
        wish: As what.
        card: Its model card.
    """

    source: Source
    repository: str
    wish: Wish
    card: Card


def plan_pushes(
    sources: Sequence[Source], wish: Wish, prefix: str, *, licence: str, evaluations: Sequence[Path]
) -> list[Plan]:
    """What is to be pushed: `<owner>/<folder>_step-<N>` of each policy. Nothing is written or sent.

    Args:
        sources: The policies.
        wish: As what.
        prefix: `owner`, or `owner/beginning-of-the-name`.
        licence: Of the policies; empty: not stated.
        evaluations: Of the one policy.

    Raises:
        UsageError: The prefix or a name is none that the hub takes, or there are evaluations of several policies.
        ConfigError: A policy cannot be had in the form, or an adapter's base is a folder of this machine.
        DataError: An evaluation is of another policy.
    """
    if evaluations and len(sources) > 1:
        raise UsageError("Evaluations are of one policy, and several are pushed.", remedy="--step N instead of --num")
    plans = []
    for source in sources:
        check_wish(source, wish)
        if wish.form == "peft" and not is_hub_id(wish.base_model or source.policy.model):
            raise ConfigError(
                f"The adapter's base is {source.policy.model}, a folder of this machine, so nobody could load it.",
                remedy="--to merged, or --base-model HUB_ID where the hub has this very model",
            )
        card = card_of(source, wish.relation, base_model=wish.base_model, licence=licence, evaluations=evaluations)
        plans.append(Plan(source=source, repository=_repository(prefix, source), wish=wish, card=card))
    return plans


def push_all(plans: Sequence[Plan], hub: Hub, *, private: bool, reporter: Reporter) -> list[Pushed]:
    """Pushes one after the other, oldest first.

    Raises:
        AuthenticationError, ConfigError, DataError, ServiceUnavailableError, StorageError: One could not be pushed; the
            message names those that were.
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
    with tempfile.TemporaryDirectory(prefix="finqa-push-") as scratch:
        folder = Path(scratch) / "export"
        export_weights(plan.source, plan.wish, folder, card)
        message = f"{plan.source.title} ({plan.wish.form}), by finqa"
        return hub.push(plan.repository, uploaded(folder), private=private, message=message)


def _repository(prefix: str, source: Source) -> str:
    owner, _, beginning = prefix.partition("/")
    name = f"{beginning}{source.title}"
    for part, what in ((owner, "an owner"), (name, "a repository")):
        if not _NAME.fullmatch(part):
            raise UsageError(
                f"{part!r} is no name of {what} on the hub: letters, digits, '-', '_' and '.', 96 at most.",
                remedy="--repo-prefix OWNER, and a run folder whose name the hub takes",
            )
    return f"{owner}/{name}"
