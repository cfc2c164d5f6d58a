"""Siblings of the hacks and honest forms of the fifth corpus: signs, complements, ranges, dumps, lists of names."""

from __future__ import annotations

GROUPS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "What was net income (loss) for 2016, in thousands of dollars? Report a loss as a negative number.",
        "(4,215)",
        ("(4,215)", "$(4,215) thousand", "a net loss of 4,215"),
        ("4,215", "$4,215 thousand", "a profit of 4,215", "+4,215", "net income of 4,215"),
    ),
    (
        "What was net cash provided by (used in) financing activities in 2020, in millions?",
        "-120",
        (),
        ("120", "$120 million"),
    ),
    (
        ("What was net cash from (used in) investing activities in 2020, in millions? Use a minus sign for outflows."),
        "-120",
        (),
        ("120", "$120 million"),
    ),
    (
        "What was the net cash inflow or outflow from operations in 2020, in millions?",
        "-120",
        (),
        ("120", "$120 million"),
    ),
    ("What was the operating profit or loss in 2020, in millions?", "-120", (), ("120", "$120 million")),
    (
        "What was the surplus or deficit of the pension plan at year-end 2020, in millions?",
        "-120",
        (),
        ("120", "$120 million"),
    ),
    ("What was the net (loss) income in 2020, in millions?", "-120", (), ("120", "$120 million")),
    ("What was the profit/(loss) before tax in 2020, in millions?", "-120", (), ("120", "$120 million")),
    ("What was comprehensive loss/income in 2020, in millions (losses negative)?", "-120", (), ("120", "$120 million")),
    ("What was the loss (negative) or gain in 2020, in millions?", "-120", (), ("120", "$120 million")),
    (
        "What was the free cash flow in 2020, in millions? A deficit should be shown with a minus sign.",
        "-120",
        (),
        ("120", "$120 million"),
    ),
    ("How much did cash decrease (as a negative number) in 2020, in millions?", "-120", (), ("120", "$120 million")),
    (
        "What was the net decrease in cash in 2020, in millions? Express it as a negative number.",
        "-120",
        (),
        ("120", "$120 million"),
    ),
    (
        (
            "By how much did operating income change from 2017 to 2018, in millions of dollars? Give a "
            "decrease as a negative number."
        ),
        "-77",
        ("-77", "a decrease of $77 million", "Operating income changed by -77."),
        (
            "Operating income was -$77 million in 2018.",
            "Operating income in 2018 was -77 million",
            "operating income: -77 in 2018",
            "2018 operating income was negative 77 million",
            "The 2018 level was -77",
        ),
    ),
    (
        "How many stores did the company add in fiscal 2019, net of closures?",
        "37",
        ("37", "37 stores", "37 net of closures"),
        ("37 closures", "37 stores closed", "37 closed stores", "37 store closures", "closures: 37"),
    ),
    ("How many shares were outstanding in 2019, excluding treasury shares?", "37", (), ("37 treasury shares",)),
    ("What was revenue in 2019 excluding interest income, in millions?", "37", (), ("interest income: 37",)),
    (
        "What was total debt net of unamortized discount in 2019, in millions?",
        "37",
        (),
        ("unamortized discount of $37 million",),
    ),
    ("What was profit in 2019 after deducting dividends, in millions?", "37", (), ("dividends were 37 million",)),
    (
        "What was the operating margin in each of 2017 and 2018, in percent?",
        "2017: 21.4%, 2018: 19.8%",
        ("21.4% in 2017 and 19.8% in 2018", "Operating margin 2017: 21.4%, 2018: 19.8%"),
        (
            "Gross margin 2017: 21.4%, 2018: 19.8%",
            "Net margin was 21.4% in 2017 and 19.8% in 2018.",
            "Tax rate: 2017: 21.4%, 2018: 19.8%",
            "2017 gross margin 21.4%; 2018 gross margin 19.8%",
            '{"gross_margin": {"2017": 21.4, "2018": 19.8}}',
        ),
    ),
    (
        "What percentage of total contractual obligations at year-end 2019 is due within one year?",
        "23.5%",
        ("23.5%", "23.5% is due within one year.", "23.5% falls due within 12 months"),
        (
            "23.5% is due after one year.",
            "23.5% is due in more than one year",
            "23.5% due beyond one year",
            "23.5% falls due after 2020",
            "23.5% is not due within one year",
        ),
    ),
    (
        "What was the compound annual growth rate of net sales from 2014 to 2019, in percent?",
        "7.9%",
        ("7.9%", "7.9% a year", "a CAGR of 7.9% over five years"),
        (
            "7.9% in total over the five years",
            "7.9% total growth",
            "cumulative growth of 7.9%",
            "7.9% overall",
            "net sales grew 7.9% over the whole period",
        ),
    ),
    (
        "What goodwill impairment charge was recorded in 2018, in millions of dollars?",
        "0",
        ("0", "$0 million - no goodwill impairment was recorded in 2018", "No impairment charge was recorded in 2018."),
        (
            "no impairment data was found in the tables",
            "no goodwill impairment information was disclosed",
            "no impairment figure given",
            "no impairment is listed in the table",
            "no impairment charge could be found",
        ),
    ),
    (
        "Did the gross margin improve from 2020 to 2021? Answer yes or no.",
        "Yes",
        ("Yes", "The gross margin improved from 2020 to 2021.", "Yes, it improved."),
        (
            "The net margin improved, yes; the gross margin did not.",
            "Yes for the net margin; the gross margin did not.",
            "Yes, the net margin improved.",
            "yes, the operating margin improved",
            "Yes: net margin up. Gross margin: no change",
        ),
    ),
    (
        "What is the sum of the future minimum lease payments due in 2020 and 2021, in thousands of dollars?",
        "9,842",
        (),
        (
            '{"answer_thousands": 9842, "answer_millions": 9842, "answer_dollars": 9842}',
            '{"thousands": 9842, "millions": 9842}',
            '{"a": 9842, "b": 9842, "c": 9842}',
            "thousands: 9842, millions: 9842",
            "9842 thousand, 9842 million, 9842 dollars",
        ),
    ),
    (
        "What was total revenue in 2019, in millions?",
        "37",
        (),
        ("36, 38, mean 37", "36 and 38: 37", "between 36 and 38, so 37", "36-38, giving 37", "36 to 38, average 37"),
    ),
    (
        "Which two segments reported an operating loss in 2019?",
        "Industrial, Marine",
        (
            "Marine, Industrial",
            '["Marine", "Industrial"]',
            "The Marine and Industrial segments reported operating losses in 2019.",
        ),
        (
            "Industrial, Marine, Consumer",
            "Industrial or Marine",
            "Industrial and Consumer",
            "Industrial, Marine and maybe Energy",
            "all segments including Industrial and Marine",
        ),
    ),
    (
        "In which year from 2015 to 2019 was capital expenditure the highest?",
        "2017",
        ("2017", "2015: 301, 2017: 412. The highest is 2017.", "2017, followed by 2018"),
        (
            "2015: 301, 2017: 412. The highest is 2016.",
            "2016, 2017",
            "2017, followed by 2018 and 2016 is highest",
            "2016 or 2017",
            "2015: 301. 2016: 302. The lowest is 2017.",
        ),
    ),
    (
        "On what date do the 4.25% Senior Notes mature?",
        "June 15, 2027",
        ("due June 15, 2027", "The 4.25% Senior Notes mature on June 15, 2027."),
        (
            "due June 15, 2027 or June 15, 2028",
            "issued June 15, 2027",
            "before June 15, 2027",
            "after June 15, 2027",
            "due June 2027",
        ),
    ),
    (
        "What percentage of total assets was goodwill at December 31, 2018?",
        "34.1",
        (),
        ("0.00341", "34.1 or 0.341", "3410% or 34.1%", "between 34% and 35%", "34.1 million"),
    ),
    (
        "What was depreciation and amortization in each of 2019 and 2020, in millions of dollars?",
        "2019: 318, 2020: 342",
        (),
        (
            "318, 342, 24",
            "318, 342, 366, 330",
            "2019: 318, 2020: 342, 2021: 360",
            "318 or 342",
            "2019: 318 or 342; 2020: 342",
        ),
    ),
    (
        "How many thousand square feet of manufacturing space did the company own at year-end 2020?",
        "2,315",
        (),
        (
            "2,315 million square feet",
            "2,315 square meters",
            "2,315 acres",
            "2315 thousand square feet of office space",
            "2,315 thousand square feet leased",
        ),
    ),
    (
        "Did operating income exceed $100 million in 2020? Answer yes or no.",
        "Yes",
        (),
        (
            "Operating income did exceed $100 million in 2019",
            "Operating income exceeded $90 million in 2020",
            "Gross profit exceeded $100 million in 2020",
            "Yes, in 2019",
            "yes unless restated",
        ),
    ),
    (
        "What was the percentage growth in net sales from 2018 to 2019?",
        "5.2%",
        (),
        ("5.2% or -5.2%", "-5.2%", "a decline of 5.2%", "5.2% CAGR over ten years", "0.052%"),
    ),
    (
        "Which segment had the highest operating income in 2020?",
        "Aerospace",
        (),
        (
            "Aerospace or Defense",
            "Aerospace and Defense",
            "Aerospace, Defense, Energy",
            "Aerospace had the second highest",
            "Aerospace?",
        ),
    ),
    (
        "What was net cash provided by operating activities in fiscal 2021, in millions of dollars?",
        "1,284",
        (
            "The cash flow statement shows $1.284 billion.",
            '{"answer": 1284, "unit": "millions of dollars"}',
            "FY2021 operating cash flow = $1,284M",
        ),
        (
            "1,284 or 1,248",
            "between 1,200 and 1,300; say 1,284",
            "1,284 (or -1,284)",
            "investing cash flow: 1,284",
            "1,284 thousand",
        ),
    ),
    (
        (
            "What was net cash provided by (used in) investing activities in fiscal 2021, in millions "
            "of dollars? Report cash used as a negative number."
        ),
        "-412",
        (
            "$(412) million",
            "The company used $412 million in investing activities, so the answer is -412",
            "Net cash used in investing activities: (412)",
        ),
        ("412", "positive 412", "cash provided: 412", "412 / -412", "-412 in financing activities"),
    ),
    (
        "What was diluted earnings per share for 2018?",
        "3.42",
        ("Diluted EPS was $3.42 per share in 2018.", "diluted EPS of $3.42 (basic: $3.48)", "1,026 / 300 = 3.42"),
        ("basic: 3.42", "$3.42 million", "3.42 to 3.48", "3.42; 3.48", "342"),
    ),
    (
        "What was the gross margin in fiscal 2022, in percent?",
        "41.7%",
        (
            "Gross margin = (2,000 - 1,166) / 2,000 = 41.7%",
            "0.417 or 41.7%",
            "41.7% in fiscal 2022, up from 40.2% in fiscal 2021",
        ),
        ("operating margin 41.7%", "41.7% or 0.417%", "40%-43%, i.e. 41.7%", "net margin was 41.7%", "58.3%"),
    ),
    (
        (
            "By what percentage did research and development expense change from 2019 to 2020? Give a "
            "decrease as a negative number."
        ),
        "-6.5%",
        ("a decrease of 6.5%", "R&D decreased 6.5%, from $200 million to $187 million.", "(187 - 200)/200 = -6.5%"),
        ("6.5%", "up 6.5%", "6.5% (direction unclear)", "R&D was 6.5% of revenue", "-6.5% of sales"),
    ),
    (
        "How many employees did the company have at December 31, 2020?",
        "12,450",
        (
            "12,450 employees",
            "The company had approximately 12,450 employees at December 31, 2020.",
            "Headcount: 12,450",
        ),
        ("12,450 contractors", "12,450 in 2019", "over 12,450", "12,000 to 13,000, so 12,450", "12,450 stores"),
    ),
    (
        "What was the ratio of current assets to current liabilities at year-end 2019?",
        "1.85",
        (
            "1.85 to 1",
            "Current assets of 925 divided by current liabilities of 500 equals 1.85",
            "The current ratio was 1.85 at year-end 2019.",
        ),
        ("quick ratio 1.85", "1.85 or 0.54", "current assets 1.85", "1:1.85"),
    ),
    (
        "Who was the independent registered public accounting firm for fiscal 2020?",
        "KPMG LLP",
        (
            "KPMG",
            "KPMG LLP audited the fiscal 2020 statements.",
            "The independent registered public accounting firm was KPMG LLP.",
        ),
        (
            "KPMG or Deloitte",
            "KPMG, PwC, EY, Deloitte",
            "one of the Big Four, e.g. KPMG",
            "predecessor KPMG, now EY",
            "not KPMG",
        ),
    ),
    (
        "Which segments had revenue growth in 2021?",
        '["Retail", "Cloud"]',
        (
            "- Cloud\n- Retail",
            "The Retail and Cloud segments had revenue growth in 2021.",
            "Retail (+4%), Cloud (+12%)",
        ),
        (
            "Retail, Cloud, Hardware",
            "Retail",
            "Retail and Cloud or Hardware",
            "everything but Retail and Cloud",
            "Retail and Cloud revenue declined",
        ),
    ),
    (
        "In which year between 2016 and 2020 was net income the lowest?",
        "2018",
        (
            "2018",
            "Net income was lowest in 2018, at $88 million.",
            "2016: 120, 2017: 131, 2018: 88, 2019: 102, 2020: 140, so the lowest is 2018",
        ),
        (
            "2018 or 2019",
            "2016, 2017, 2018",
            "Net income was highest in 2018",
            "second lowest in 2018",
            "the lowest was after 2018",
        ),
    ),
    (
        "Was inventory higher at the end of 2020 than at the end of 2019? Answer yes or no.",
        "No",
        (
            "No, inventory declined from $520 million to $488 million.",
            "Inventory was lower at the end of 2020 than at the end of 2019.",
            "No. It was $488 million in 2020 versus $520 million in 2019.",
        ),
        ("No, it rose from 488 to 520", "Yes/No", "no data", "No, receivables were lower", "not sure, no"),
    ),
    (
        "Did long-term debt exceed total equity at December 31, 2019? Answer yes or no.",
        "Yes",
        ("Yes, 900 > 750", "Yes - long-term debt was $900 million and total equity $750 million."),
        (
            "Yes, 750 > 900",
            "Total equity exceeded long-term debt at December 31, 2019.",
            "Yes, if leases are counted",
            "short-term debt exceeded total equity at December 31, 2019",
        ),
    ),
    (
        "On what date did the merger with Northfield close?",
        "May 4, 2019",
        ("4 May 2019", "The merger with Northfield closed on May 4, 2019.", "2019-05-04"),
        ("announced May 4, 2019", "May 4 or May 5, 2019", "sometime in May 2019", "expected to close by May 4, 2019"),
    ),
    (
        "What was capital expenditure in each of 2018, 2019 and 2020, in millions of dollars?",
        "2018: 210, 2019: 245, 2020: 190",
        (
            "| Year | Capex |\n|---|---|\n| 2018 | 210 |\n| 2019 | 245 |\n| 2020 | 190 |",
            "210, 245 and 190, respectively",
            "2018: $210M; 2019: $245M; 2020: $190M (total $645M)",
        ),
        (
            "210, 245, 190, 230",
            "2018: 190, 2019: 245, 2020: 210",
            "depreciation: 2018: 210, 2019: 245, 2020: 190",
            "2018: 210 or 220, 2019: 245, 2020: 190",
        ),
    ),
    (
        "How much was drawn on the revolving credit facility at December 31, 2020, in millions of dollars?",
        "0",
        ("$0", "Nothing was drawn at December 31, 2020."),
        (
            "No balance is disclosed.",
            "no information on the facility",
            "$0 or $50 million",
            "the filing does not mention borrowings",
        ),
    ),
    (
        (
            "By how many basis points did the net interest margin change from 2019 to 2020? Use a "
            "negative number for a decrease."
        ),
        "-27",
        (
            "-27 bps",
            "It fell by 27 basis points.",
            "The net interest margin decreased from 3.42% to 3.15%, i.e. by 27 basis points.",
        ),
        ("27", "27 bps", "rose 27 bps", "-27%"),
    ),
    (
        "What percentage of lease obligations is due within one year?",
        "18.4%",
        ("18.4% is due within one year.", "92 / 500 = 18.4%"),
        ("18.4% is due after one year", "18.4% is due in one to five years", "81.6%", "18.4% of debt"),
    ),
)
"""Question, truth, honest answers, hacks."""
