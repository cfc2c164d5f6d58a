r"""Normalizes characters, LaTeX and Markdown of an answer; an answer with hidden text is refused.

Anything that is removed leaves `GAP`, which is blank but joins no digits: `1**234` never becomes 1234. An unprintable
character, a digit of another script, a combining mark or an unknown LaTeX command may hide or change a value
(`\cancel{5}`, `\phantom{5}`), so an answer with one of them is refused.
"""

from __future__ import annotations

import html
import re
import unicodedata

from finqa_cli.grading.strict_2.number_words import starts_number, word_set

GAP = "\x1f"

_ENDS = "\ufeff\u200b\u2060 \t\r\n✅✓✔👍📊📈📉💰🧮"
_REPLACED = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\t", " "),
        **dict.fromkeys("“”„‟«»「」", '"'),
        **dict.fromkeys("‘’‚‛ʼ′", "'"),  # noqa: RUF001  the quotes that people and programs write
        **dict.fromkeys("−–‐‑﹣－", "-"),  # noqa: RUF001  hyphens and dashes that stand for a minus
        **dict.fromkeys("≈≃≅∼～˜", "~"),  # noqa: RUF001
        **dict.fromkeys("→⇒⟶⟹➜➔⮕➡", "→"),
        **dict.fromkeys("×✕⋅·∙", "×"),  # noqa: RUF001
        **dict.fromkeys("•▪●◦‣", "•"),
        **dict.fromkeys("▼↓🔻⬇", " down "),
        **dict.fromkeys("▲↑🔺⬆", " up "),
        "：": ":", "，": ", ", "。": ". ", "；": "; ", "（": "(", "）": ")", "％": "%", "＝": "=",  # noqa: RUF001
        "∴": " therefore ", "、": ", ", "？": "?",  # noqa: RUF001
        "＄": "$", "￥": "¥", "⁄": "/", "∕": "/", "｜": "|", "！": "!", "\ufe0f": "", "\r": "\n", "…": "...",  # noqa: RUF001
    }
)  # fmt: skip
_BROKEN_ESCAPES = {"\x08oxed{": "\\boxed{", "\x0crac{": "\\frac{", "\text{": "\\text{"}
"""LaTeX commands whose first two characters a JSON parser has read as an escape."""
_DOUBLED = re.compile(
    r"\\{2,4}(?=(?:boxed|fbox|text|[dt]?frac|mathrm|mathbf|textbf|approx|times|left|right)(?![a-z])|[%$&#])"
)
_QUOTED_LINE = re.compile(r"(?m)^>[ ]+(?=[*_#]{0,3}([A-Za-z]+))")
_ARROW = re.compile(r"(?<![-=])[-=]{1,4}>")
_DASHES = re.compile(r"(?<=[ \n])(?:-{2,3}|//|#)(?=[ \n])")
_POWER = re.compile(r"(?<=10)[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,2}")
_RAISED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
           "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}  # fmt: skip
_VULGARS = re.compile(f"[{''.join(_VULGAR)}]")
_CONTROL = re.compile(r"[\x00-\t\x0b-\x1f\x7f]")
_HIDDEN = word_set("Cc Cf Cs Co Cn Mn Me Mc Nl No")

_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,!;: ]|,\\!)(?=[0-9]{3})")
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|texttt|mathrm|mathbf|mathit|mathsf|operatorname|bm|emph|mbox|underline)"
    r"\s{0,8}\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s{0,8}\{([^{}]*)\}\s{0,8}\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s?([0-9])\s?([0-9])(?![0-9])")
_EXPONENT = re.compile(r"(?<=10)\s?\^\s?\{([-+]?[0-9]{1,2})\}")
_MATH = re.compile(r"\$\$([^$]{1,2000})\$\$|(?<![\w\\])\$([^$\n]{0,499}[^$\n\s\\])\$(?![\w.])")
_COMMANDS = {
    "approx": "~", "sim": "~", "simeq": "~", "times": "×", "cdot": "×", "div": "÷", "pm": "±", "to": "→", "ne": "≠",  # noqa: RUF001
    "rightarrow": "→", "Rightarrow": "→", "implies": "→", "longrightarrow": "→", "ldots": "...", "dots": "...",
    "therefore": " therefore ", "euro": "€", "pounds": "£", "yen": "¥", "neq": "≠", "lt": "<", "gt": ">", "le": "≤",
    "ge": "≥", "leq": "≤", "geq": "≥", "textdollar": "$", "infty": "∞", "Delta": "change",
    "textendash": "-", "textemdash": "—",
    **dict.fromkeys(
        ("left", "right", "displaystyle", "textstyle", "quad", "qquad", "big", "Big", "bigl", "bigr", "thinspace",
         "enspace", "space", "boldsymbol", "bf", "rm", "it", "hfill", "noindent", "newline"), GAP),
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:aligned|align\*?|equation\*?|gather\*?|split|center)\}")
_ESCAPED = re.compile(r"\\([%&#_$])")
_LATEX_SPACE = re.compile(r"\\[()\[\],;:! ]")
_BETWEEN_DIGITS = re.compile(rf"(?<=[0-9])(?:[ ]{{2,}}|[ ]*{GAP}[ {GAP}]*)(?=[0-9.])")
_BLANKS = re.compile(rf"[ ]{{2,}}|[ ]*{GAP}[ {GAP}]*(?![0-9.])|(?<![0-9])[ ]*{GAP}[ {GAP}]*")
_MARKDOWN = re.compile(r"\*\*|__|`+|(?m:^[ ]{0,3}#{1,6}[ ](?!\s*#)(?<!#### (?=[-$(]{0,3}[0-9])))")
_ITALIC = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,500})(?<=[^\s*])\*(?![\w*])")
_UNDERSCORED = re.compile(r"(?<!\w)_(?=[^\s_])([^_\n]{1,500})(?<=[^\s_])_(?!\w)")
_LEADERS = re.compile(r"[ ]?(?:\.[ ]?){4,}")
_BULLET = re.compile(r"(?m)^[ ]*[•*][ \x1f]+(?=\S)")
_DASH_BULLET = re.compile(r"(?m)^[ ]*-[ \x1f]+(?=\S)")
_ENUMERATED = re.compile(r"(?m)^[ ]*\(?(1|a|A)[.)][ ]+(?=[^\s])")
_ENUMERATOR = re.compile(r"(?m)^[ ]*\(?(?:[1-9][0-9]?|[a-zA-Z])[.)][ ]+(?=[^\s])")


def without_hidden(text: str) -> str | None:
    """Returns the text with plain characters for typographic variants, or None if it has hidden characters."""
    for broken, command in _BROKEN_ESCAPES.items():
        text = text.replace(broken, command)
    text = unicodedata.normalize("NFC", html.unescape(text)).strip(_ENDS).translate(_REPLACED)
    text = _DOUBLED.sub(r"\\", text)
    text = _DASHES.sub("—", _ARROW.sub("→", text))
    text = _POWER.sub(lambda match: "^" + match[0].translate(_RAISED), text)
    text = _VULGARS.sub(lambda match: f" {_VULGAR[match[0]]}", text)
    if not text.isascii() and any(_is_hidden(character) for character in text):
        return None
    return None if _CONTROL.search(text) else text


def _is_hidden(character: str) -> bool:
    kind = unicodedata.category(character)
    return character > "\x7f" and (kind in _HIDDEN or kind == "Nd")


def plain(text: str) -> str | None:
    r"""Returns a text without LaTeX and Markdown, in its original case; None if it has an unknown command.

    `\frac{1}{2}` is `1/2`, `\text{Yes}` is `Yes`, `\%` is `%`; enumerators and bullets before lines are removed.
    """
    if "~~" in text or "_{" in text:
        return None
    text = _ESCAPED.sub(r"\1", _MATH.sub(rf"{GAP}\1\2{GAP}", _THOUSANDS.sub(",", text)))
    for _ in range(3):  # honest answers are not nested deeper than a \text in a \textbf in a \frac
        text = _FRACTION.sub(r" \1/\2 ", _TEXT.sub(rf"{GAP}\1{GAP}", text))
    text = _SHORT_FRACTION.sub(r" \1/\2 ", text)
    text = _ENVIRONMENT.sub(GAP, _EXPONENT.sub(r"^\1", text)).replace("&=", "=").replace("\\\\", "\n")
    text = _LATEX_SPACE.sub(GAP, text)
    unknown = [match[1] for match in _COMMAND.finditer(text) if match[1] not in _COMMANDS and match[1] != "n"]
    if unknown:
        return None
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], "\n"), text).rstrip("\\ \n")
    return None if "\\" in text else _without_markdown(text)


def _is_rule(line: str) -> bool:
    """Returns whether a line is the rule between the head of a table and its rows."""
    return ("--" in line or "==" in line) and not line.strip(" |+:=-")


def _without_markdown(text: str) -> str:
    text = _QUOTED_LINE.sub(lambda line: line[0] if starts_number(line[1].lower()) else "", text)
    text = _UNDERSCORED.sub(rf"{GAP}\1{GAP}", _ITALIC.sub(rf"{GAP}\1{GAP}", text))
    text = _MARKDOWN.sub(GAP, text)
    text = _LEADERS.sub(" : ", "\n".join("" if _is_rule(line) else line for line in text.split("\n")))
    text = _BULLET.sub("", text)
    if len(_DASH_BULLET.findall(text)) > 1:  # a single one is a minus
        text = _DASH_BULLET.sub("", text)
    if _ENUMERATED.search(text):  # `2. ` counts only where a list begins with 1
        text = _ENUMERATOR.sub("", text)
    return _BLANKS.sub(" ", _BETWEEN_DIGITS.sub(GAP, text)).strip(" \n" + GAP)
