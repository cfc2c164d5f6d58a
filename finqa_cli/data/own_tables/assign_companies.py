"""Assigns a company to each table by a rule, and cleans up columns and cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.dataset import Table
from finqa_cli.data.own_tables.import_options import ImportOptions, check_company_rule
from finqa_cli.data.own_tables.table_cells import CellRules, Conversions, convert_columns
from finqa_cli.data.own_tables.table_sources import RawTable, UnreadTable, find_rules
from finqa_cli.data.question_files.field_values import MAX_COLUMNS, clean_name, name_fault, text_fault
from finqa_cli.data.table_findings import REMARKS

Key = tuple[str, str]
"""Company and name of a table."""

Parts = list[tuple[str, RawTable]]
"""A company, and what of a table belongs to it."""

EACH = "each table"
"""The rule that is decided for each table, where no rule is that of all tables."""
_COMPANY_COLUMNS = ("company", "ticker", "company_name", "symbol", "company_id", "issuer")


@dataclass(slots=True)
class BadTable:
    """A table that cannot be used, and the questions that need it.

    Attributes:
        company: Its company; empty if the rule does not show it without reading the table.
        name: Its name; the beginning of the names of its tables for a file that cannot be read.
        problem: The reason.
        needed: Rows of the questions that need it.
    """

    company: str
    name: str
    problem: Problem
    needed: list[int] = field(default_factory=list)

    def may_be(self, company: str, name: str = "") -> bool:
        """Returns whether a question about this company and table may need it; an empty name is any table."""
        if self.company and self.company.casefold() != company.casefold():
            return False
        own, asked = self.name.casefold(), name.casefold()
        return not name or not own or asked == own or asked.startswith(f"{own}_") or own.endswith(f"_{asked}")


@dataclass(slots=True)
class Tables:
    """The valid tables by company and name, with what is known about them.

    Attributes:
        by_key: The tables.
        inner: Names of sheets and files by the key of their table, by which questions may name it, too.
        taken: Names by company, without their case.
        ambiguous: Names that several tables of a company had, without their case.
        found: What was changed.
        bad: Tables that cannot be used.
        unused: Files of tables that no question names (rule `questions`).
        rule: The rule for companies.
    """

    by_key: dict[Key, Table] = field(default_factory=dict)
    inner: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    ambiguous: set[Key] = field(default_factory=set)
    found: Conversions = field(default_factory=Conversions)
    bad: list[BadTable] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    rule: str = ""


def build_tables(
    raw: Sequence[RawTable], unread: Sequence[UnreadTable], asked: Sequence[Key], options: ImportOptions
) -> Tables:
    """Returns the tables with their companies. Problems of single tables are collected, not raised.

    Args:
        raw: Tables as they were found.
        unread: Files and tables that could not be read.
        asked: (company, table) as the questions name them; either may be empty.
        options: The rule for companies, and how cells are read.

    Raises:
        ProblemError: The rule is `auto`, and the company of the tables cannot be determined.
        UsageError: The rule is unknown.
    """
    tables = Tables()
    name, argument = check_company_rule(options.company)
    if name == "name" and (reason := name_fault(argument)):
        raise ProblemError(Problem(file="--company", reason=f"the company name {argument[:80]!r} {reason}"))
    if name == "auto" and raw:
        name, argument = _choose_rule(raw, asked)
    placed = _place_each(raw, asked) if name == EACH else {}
    tables.rule = f"{name}:{argument}" if argument else name
    owners = _owners(asked)
    for each in raw:
        try:
            parts = placed[id(each)]() if name == EACH else _by_company(each, name, argument, owners)
        except ProblemError as error:
            tables.bad.append(BadTable("", clean_name(each.name), error.problem))
            continue
        for company, table in parts:
            try:
                _add(tables, clean_name(company), table, options)
            except ProblemError as error:
                tables.bad.append(BadTable(clean_name(company), clean_name(table.name), error.problem))
        if name == "questions" and each.name.casefold() not in owners:
            tables.unused.append(each.file)
    for one in unread:
        company = {"name": argument, "file": one.stem, "folder": one.folder, EACH: one.folder}.get(name, "")
        rest = one.name.removeprefix(one.stem).strip("_") if name == "file" else one.name
        tables.bad.append(
            BadTable(clean_name(company) if company else "", clean_name(rest) if rest else "", one.problem)
        )
    _check_names(tables, options)
    return tables


def _check_names(tables: Tables, options: ImportOptions) -> None:
    """Raises a ProblemError if something is set for a table that does not exist."""
    names = [*tables.by_key, *((bad.company, bad.name) for bad in tables.bad)]
    known = {text.casefold() for company, name in names for text in (f"{company}/{name}", name)}
    for named in options.tables:
        if named.casefold() not in known:
            near = ", ".join(f"{company}/{name}" for company, name in names[:5])
            reason = f"there is no such table; there are, for example: {near}"
            raise ProblemError(Problem(file="--map", field=f"tables.{named}", reason=reason))


def _choose_rule(raw: Sequence[RawTable], asked: Sequence[Key]) -> tuple[str, str]:
    if raw and all(table.folder for table in raw):
        return "folder", ""
    columns = [[str(name).strip().casefold() for name in table.header] for table in raw]
    for column in ("company", "ticker"):
        if raw and all(column in names for names in columns):
            return "column", column
    companies = {company for company, _ in asked if company}
    if companies and {company.casefold() for company in companies} <= {table.stem.casefold() for table in raw}:
        return "file", ""
    names = {table.name.casefold() for table in raw}
    if asked and all(company and table.casefold() in names for company, table in asked):
        return "questions", ""
    if len(companies) == 1:
        return "name", companies.pop()
    return EACH, ""


def _place_each(raw: Sequence[RawTable], asked: Sequence[Key]) -> dict[int, Callable[[], Parts]]:
    """Returns what gives the parts of each table with their companies, decided for each table; by `id` of the table.

    A table belongs to its folder, else to the company that its file or sheet is named after, else to those in its own
    column of companies, else to the one that another table names for it (a catalogue of documents), else to those of
    the questions about it. A table without any of these is shared: every company gets it.

    Raises:
        ProblemError: No table names a company.
    """
    companies = {company.casefold(): company for company, _ in asked if company}
    known, owners, catalogue = dict(companies), _owners(asked), _catalogue(raw)
    placed: dict[int, Callable[[], Parts]] = {}
    for each in raw:
        named: Collection[str] = ()
        table = each
        if each.folder:
            named = (each.folder,)
        elif each.stem.casefold() in known:
            named = (known[each.stem.casefold()],)
            table = replace(each, name=each.name.removeprefix(each.stem).strip("_") or each.name)
        elif each.inner.casefold() in known:
            named = (known[each.inner.casefold()],)
            table = replace(each, name=each.name.removesuffix(each.inner).strip("_"))
        elif (column := _company_column(each)) is not None:
            placed[id(each)] = partial(_split_by_column, each, column)
            place = [str(name) for name in each.header].index(column)
            texts = {str(cells[place]).strip() for _, cells in each.rows if cells[place] not in (None, "")}
            companies |= {text.casefold(): text for text in texts}
            continue
        else:
            named = catalogue.get(each.name.casefold()) or owners.get(each.name.casefold()) or ()
        companies |= {company.casefold(): company for company in named}
        if named:
            placed[id(each)] = partial(_for_all, sorted(named), table)
    if not companies:
        reason = (
            "the company of this table cannot be determined: it is not in a folder of a company, its file or sheet "
            "is not named after a company, it has no column such as `company`, no other table and no question names "
            "a company for it"
        )
        remedy = "--company name:NAME, for the tables of one company; docs/own-tables.md lists the other rules"
        raise ProblemError(Problem(file=raw[0].file if raw else "", reason=reason), remedy=remedy)
    for each in raw:
        if id(each) not in placed:
            shared = replace(each, changes=(*each.changes, ("tables without a company, shared by all", each.name)))
            placed[id(each)] = partial(_for_all, list(companies.values()), shared)
    return placed


def _for_all(companies: Sequence[str], table: RawTable) -> Parts:
    return [(company, table) for company in companies]


def _company_column(raw: RawTable) -> str | None:
    """Returns the name of the column with the company of each row; None if there is none."""
    names = {re.sub(r"[\s_]+", "_", str(name).strip().casefold()).strip("_"): str(name) for name in raw.header}
    return next((names[column] for column in _COMPANY_COLUMNS if column in names), None)


def _catalogue(raw: Sequence[RawTable]) -> dict[str, set[str]]:
    """Returns the companies of tables, by name, as a table says that has a column of companies and one of tables."""
    named = {each.name.casefold() for each in raw}
    found: dict[str, set[str]] = {}
    for each in raw:
        if (column := _company_column(each)) is None:
            continue
        place = [str(name) for name in each.header].index(column)
        for other in range(len(each.header)):
            texts = [str(cells[other]).casefold() for _, cells in each.rows if cells[other] is not None]
            if other == place or len(named & set(texts)) < 2 or len(named & set(texts)) * 2 < len(set(texts)):
                continue
            for _, cells in each.rows:
                if cells[place] is not None and str(cells[other]).casefold() in named:
                    found.setdefault(str(cells[other]).casefold(), set()).add(str(cells[place]).strip())
    return found


def _owners(asked: Sequence[Key]) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {}
    for company, table in asked:
        if company and table:
            owners.setdefault(table.casefold(), set()).add(company)
    return owners


def _by_company(raw: RawTable, rule: str, argument: str, owners: Mapping[str, set[str]]) -> list[tuple[str, RawTable]]:
    if rule == "name":
        return [(argument, raw)]
    if rule == "file":
        rest = raw.name.removeprefix(raw.stem).strip("_")
        return [(raw.stem, replace(raw, name=rest or raw.name))]
    if rule == "folder":
        if not raw.folder:
            reason = "is not in a folder of a company, which --company folder requires"
            raise ProblemError(Problem(file=raw.file, reason=reason))
        return [(raw.folder, raw)]
    if rule == "prefix":
        company, mark, name = raw.name.partition(argument)
        if not mark or not company or not name:
            reason = f"the table name {raw.name!r} has no {argument!r} between company and table"
            raise ProblemError(Problem(file=raw.file, reason=reason))
        return [(company, replace(raw, name=name))]
    if rule == "questions":
        return [(company, raw) for company in sorted(owners.get(raw.name.casefold(), ()))]
    return _split_by_column(raw, argument)


def _split_by_column(raw: RawTable, column: str) -> list[tuple[str, RawTable]]:
    names = [str(name).strip().casefold() for name in raw.header]
    column = column.strip()
    if column.casefold() not in names:
        reason = f"there is no column {column!r} for the company; the columns are {', '.join(names)[:200]}"
        raise ProblemError(Problem(file=raw.file, row=1, field=column, reason=reason))
    place = names.index(column.casefold())
    rows: dict[str, list[tuple[int, Sequence[object]]]] = {}
    for number, cells in raw.rows:
        if not any(cell not in (None, "") for cell in cells):
            continue
        company = str(cells[place] if cells[place] is not None else "").strip()
        if not company:
            raise ProblemError(Problem(file=raw.file, row=number, field=column, reason="the company must not be empty"))
        rows.setdefault(company, []).append((number, [*cells[:place], *cells[place + 1 :]]))
    header = [*raw.header[:place], *raw.header[place + 1 :]]
    return [(company, replace(raw, header=header, rows=part)) for company, part in rows.items()]


def _add(tables: Tables, company: str, raw: RawTable, options: ImportOptions) -> None:
    derived = clean_name(raw.name)
    if derived != raw.name:
        tables.found.add("names of tables, cleaned", raw.file, raw.name, derived)
    taken = tables.taken.setdefault(company, set())
    name, copy = derived, 1
    while name.casefold() in taken:
        copy += 1
        name = f"{derived}_{copy}"
    rules = find_rules(options.tables, company, name)
    cells = replace(options.cells, decimal=rules.decimal) if rules.decimal else options.cells
    table = _tidy(company, replace(raw, name=name), cells, tables.found)
    if copy > 1:
        tables.ambiguous.add((company, derived.casefold()))
        tables.found.add("tables of the same name, numbered", raw.file, derived, name)
        remark = f"a table of {company!r} has the name {derived!r} already, so this one is called {name!r}: {raw.file}"
        table = replace(table, metadata={**table.metadata, REMARKS: [*_remarks(table), remark]})
    taken.add(name.casefold())
    tables.by_key[company, name] = table
    tables.inner[company, name] = (clean_name(raw.inner) if raw.inner else "", clean_name(raw.stem))


def _remarks(table: Table) -> list[str]:
    remarks = table.metadata.get(REMARKS)
    return remarks if isinstance(remarks, list) else []


def _tidy(company: str, raw: RawTable, rules: CellRules, found: Conversions) -> Table:
    where = f"{company}/{raw.name}"
    for kind, example in raw.changes:
        found.add(kind, where, example)
    rows = [(number, cells) for number, cells in raw.rows if any(cell not in (None, "") for cell in cells)]
    if len(rows) < len(raw.rows):
        found.add("empty rows removed", where, f"{len(raw.rows) - len(rows)} rows")
    if not rows:
        raise ProblemError(Problem(file=raw.file, reason="the table has no rows below its header"))
    kept = [
        place
        for place, name in enumerate(raw.header)
        if str(name if name is not None else "").strip() or any(cells[place] not in (None, "") for _, cells in rows)
    ]
    if len(kept) < len(raw.header):
        found.add("empty columns removed", where, f"{len(raw.header) - len(kept)} columns")
    if not kept:
        raise ProblemError(Problem(file=raw.file, row=1, reason="it contains no columns"))
    if len(kept) > MAX_COLUMNS:
        raise ProblemError(
            Problem(file=raw.file, reason=f"has {len(kept)} columns, but at most {MAX_COLUMNS} are supported")
        )
    columns = _names(raw, kept, found, where)
    cells = [[cells[place] for place in kept] for _, cells in rows]
    try:
        converted = convert_columns(columns, cells, rules, found, where)
    except ValueError as error:
        row, place, reason = error.args
        raise ProblemError(Problem(file=raw.file, row=rows[row][0], field=columns[place], reason=reason)) from error
    about = {"title": raw.title, "unit": raw.unit, "notes": list(raw.notes), REMARKS: found.remarks.pop(where, [])}
    metadata: dict[str, Any] = {key: value for key, value in about.items() if value}
    return Table(company=company, name=raw.name, columns=columns, rows=converted, metadata=metadata)


def _names(raw: RawTable, kept: Sequence[int], found: Conversions, where: str) -> tuple[str, ...]:
    names: list[str] = []
    taken: set[str] = set()
    for place in kept:
        given = raw.header[place]
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        name = " ".join(str(given if given is not None else "").removesuffix(" 00:00:00").split())
        if reason := text_fault(name):
            raise ProblemError(Problem(file=raw.file, row=1, field=f"column {place + 1}", reason=f"the name {reason}"))
        unique = name or f"column_{place + 1}"
        if not name:
            found.add("columns without a name, named by their position", where, given or "", unique)
        copy = 1
        while unique.casefold() in taken:
            copy += 1
            unique = f"{name}_{copy}"
        if copy > 1:
            found.add("repeated column names, numbered", where, name, unique)
        taken.add(unique.casefold())
        names.append(unique)
    return tuple(names)
