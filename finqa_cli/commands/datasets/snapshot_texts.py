"""What commands print about compiled data sets."""

from __future__ import annotations

from finqa_cli.evaluation.cluster_nouns import counted, plural_noun
from finqa_cli.types import Snapshot


def short_digest(snapshot: Snapshot) -> str:
    """Return 12 hex digits of the digest, or `damaged`."""
    return snapshot.digest.removeprefix("sha256:")[:12] or "damaged"


def counts_text(snapshot: Snapshot) -> str:
    """Return the numbers of companies, tables and questions in words."""
    counts = (
        (int(str(snapshot.metadata.get(plural_noun(noun), 0))), noun) for noun in ("company", "table", "question")
    )
    return ", ".join(counted(number, noun) for number, noun in counts)


def replaced_snapshot(before: Snapshot | None, built: Snapshot) -> Snapshot | None:
    """Return the snapshot that had the name of a new build before; None if there was none or it is the same one."""
    return before if before is not None and before.digest != built.digest else None


def replaced_text(replaced: Snapshot) -> str:
    """Return the notice that a name has other data now."""
    return (
        f"{replaced.name} was {short_digest(replaced)} ({counts_text(replaced)}) until now, and stays in "
        f"{replaced.path}. To keep both names, build with another --snapshot-name."
    )
