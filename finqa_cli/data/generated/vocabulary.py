"""Words of the generated filings: line items by statement, and the parts of company names.

A label belongs to one statement only. Questions contain it with spaces instead of underscores, so that they identify
exactly one row of the company.
"""

from __future__ import annotations

from collections.abc import Mapping

Labels = Mapping[str, tuple[str, ...]]

INCOME: Labels = {
    "revenue": ("net_sales", "total_revenue", "revenues"),
    "cost": ("cost_of_sales", "cost_of_revenue", "cost_of_goods_sold"),
    "gross": ("gross_profit", "gross_earnings"),
    "research": ("research_expense", "product_development_expense"),
    "selling": ("selling_expense", "administrative_expense", "overhead_expense"),
    "operating": ("operating_income", "operating_profit"),
    "interest": ("interest_expense", "interest_cost"),
    "tax": ("income_tax_expense", "provision_for_taxes"),
    "net": ("net_income", "net_earnings", "net_profit"),
}
BALANCE: Labels = {
    "cash": ("cash_balance", "cash_equivalents"),
    "receivables": ("accounts_receivable", "trade_receivables"),
    "inventory": ("inventories", "finished_goods"),
    "property": ("fixed_assets", "property_plant_equipment"),
    "goodwill": ("goodwill", "acquired_intangibles"),
    "assets": ("total_assets", "combined_assets"),
    "payables": ("accounts_payable", "trade_payables"),
    "debt": ("long_term_debt", "noncurrent_debt"),
    "liabilities": ("total_liabilities", "combined_liabilities"),
    "equity": ("shareholders_equity", "stockholders_equity", "total_equity"),
}
CASH_FLOW: Labels = {
    "operations": ("operating_cash_flow", "net_operating_cash"),
    "depreciation": ("depreciation", "depreciation_charge"),
    "compensation": ("stock_compensation", "share_based_pay"),
    "capital": ("capital_expenditures", "equipment_purchases"),
    "acquisitions": ("acquisitions_paid", "business_purchases"),
    "dividends": ("dividends_paid", "cash_dividends"),
    "repurchases": ("share_repurchases", "stock_buybacks"),
    "issuance": ("debt_issuance", "new_debt_proceeds"),
    "change": ("net_cash_change", "total_cash_movement"),
}
SEGMENTS: Labels = {
    "americas": ("americas_revenue", "americas_segment_sales"),
    "europe": ("europe_revenue", "europe_segment_sales"),
    "asia": ("asia_revenue", "asia_segment_sales"),
    "africa": ("africa_revenue", "africa_segment_sales"),
    "licensing": ("licensing_revenue", "licensing_segment_sales"),
    "services": ("services_revenue", "services_segment_sales"),
    "other": ("other_revenue", "other_segment_sales"),
    "total": ("total_segment_revenue", "total_segment_sales"),
}
TAX: Labels = {
    "federal": ("federal_tax", "current_federal_tax"),
    "state": ("state_tax", "current_state_tax"),
    "foreign": ("foreign_tax", "current_foreign_tax"),
    "deferred": ("deferred_tax", "deferred_tax_charge"),
    "credits": ("tax_credits", "tax_credits_used"),
    "total": ("total_tax", "total_tax_charge"),
}
BORROWINGS: Labels = {
    "notes": ("senior_notes", "unsecured_notes"),
    "loans": ("term_loans", "bank_loans"),
    "leases": ("finance_leases", "lease_obligations"),
    "paper": ("commercial_paper", "short_term_paper"),
    "facility": ("credit_facility", "revolving_facility"),
    "total": ("total_borrowings", "outstanding_borrowings"),
}

STATEMENTS: Mapping[str, Labels] = {
    "income": INCOME,
    "balance": BALANCE,
    "cash_flow": CASH_FLOW,
    "segments": SEGMENTS,
    "tax": TAX,
    "borrowings": BORROWINGS,
}
TABLE_NAMES: Mapping[str, str] = {
    "income": "us_gaap_IncomeStatementTextBlock",
    "balance": "us_gaap_BalanceSheetTextBlock",
    "cash_flow": "us_gaap_CashFlowTextBlock",
    "segments": "{ticker}_SegmentRevenueTextBlock",
    "tax": "us_gaap_IncomeTaxTextBlock",
    "borrowings": "{ticker}_BorrowingsTextBlock",
}
TITLES: Mapping[str, str] = {
    "income": "Consolidated statements of income",
    "balance": "Consolidated balance sheets",
    "cash_flow": "Consolidated statements of cash flows",
    "segments": "Revenue by segment",
    "tax": "Provision for income taxes",
    "borrowings": "Borrowings outstanding",
}
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "income": ("gross", "research"),
    "balance": ("inventory", "goodwill", "receivables"),
    "cash_flow": ("acquisitions", "repurchases", "compensation"),
    "segments": ("africa", "licensing"),
    "tax": (),
    "borrowings": (),
}
"""Rows that a company may lack; a balance sheet always lacks one, so that no statement is longer than nine rows."""

ONSETS = (
    "b",
    "br",
    "c",
    "cr",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "qu",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
)
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "io")
CODAS = ("", "", "l", "n", "r", "s", "m", "x", "nd", "rk")
SECTORS = (
    "foods",
    "energy",
    "systems",
    "health",
    "retail",
    "motors",
    "steel",
    "media",
    "labs",
    "freight",
    "power",
    "water",
    "paper",
    "chemical",
    "software",
    "bancorp",
    "airlines",
    "mining",
    "textiles",
    "devices",
)
