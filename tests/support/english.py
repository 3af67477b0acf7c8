"""The prose of a package: its docstrings, comments and pages, and how much of it is hard to read.

`python -m support.english DIRECTORY` (with `tests` on the path) prints the rates of any package.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONG = 30
"""Words above which a sentence counts as long."""
FIRST_LINE = 80
"""Maximum length of the first line of a docstring, in characters."""

_VERBS = "is|was|are|were|it|they|nobody|has|had|can|may|must|stands|comes|goes|this|that|the|a|an|one|we|you"
ODD = {
    "a clause as a noun": re.compile(rf"\b(?:[Ww]hat|[Ww]ho) (?:{_VERBS})\b"),
    "nobody, somebody, whoever": re.compile(r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever)\b"),
    "stands, stood": re.compile(r"\b[Ss]t(?:ands|ood)\b"),
    "goes on": re.compile(r"\b(?:goes|go|went|gone) on\b"),
    "anew, meanwhile, beside": re.compile(r"\b(?:anew|meanwhile|besides?)\b", re.IGNORECASE),
    "but for": re.compile(r"\b[Bb]ut for\b"),
    "is told": re.compile(r"\b(?:is|are|was|were|be) told\b"),
}
"""Private grammar of this project's first versions, by name."""

_FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"(?:^|\n)[ \t]*\n((?:    .*\n?)+)")
_ENTRY = re.compile(r"^ +[`*\w.]+ ?(?:\([^)]*\))?: ", re.MULTILINE)
_BREAK = re.compile(r"\n\s*\n|\n\s*(?:[-*#>|]|\d+\.)|(?<=[.!?:;])[)\"'`*]*\s+|\|")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_RAISES = re.compile(r"^ *Raises:\n((?: +.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a block of comments or a page, and its place (`file:line`)."""

    place: str
    text: str
    is_docstring: bool = False


def texts_in(root: Path, suffix: str = ".py") -> Iterator[Text]:
    """Yield the prose of all modules, or of all pages, below a directory."""
    for path in sorted([root] if root.is_file() else root.rglob(f"*{suffix}")):
        name = path.relative_to(root.parent).as_posix()
        source = path.read_text(encoding="utf-8")
        if suffix == ".md":
            yield Text(name, _FENCED.sub("", source))
        else:
            yield from _docstrings_of(source, name)
            yield from _comments_of(source, name)


def _docstrings_of(source: str, name: str) -> Iterator[Text]:
    """Yield docstrings, those of constants and attributes too."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for number, each in enumerate(body):
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield Text(f"{name}:{each.lineno}", each.value.value.strip(), is_docstring=number == 0)


def _comments_of(source: str, name: str) -> Iterator[Text]:
    """Yield comments, joined over consecutive lines, without directives of tools."""
    lines, last = list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"# ?(?:type:|noqa|ruff|pragma|--)|#!", token.string):
            continue
        if token.start[0] != last + 1 and lines:
            yield Text(f"{name}:{last}", "\n".join(lines))
            lines = []
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield Text(f"{name}:{last}", "\n".join(lines))


def words_of(text: str) -> int:
    """Return the number of words."""
    return len(_WORD.findall(text))


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without its examples. A list item or a table cell is at least one sentence."""
    text = re.sub(r"`[^`\n]*`", "code", _ENTRY.sub("\n\n", _EXAMPLE.sub("\n\n", text)))
    for part in _BREAK.split(text):
        if words_of(part) > 2:
            yield " ".join(part.split()).lstrip("*-#> ")


def long_first_lines(texts: list[Text]) -> list[str]:
    """Return the places of docstrings whose first line is too long."""
    return [each.place for each in texts if each.is_docstring and len(each.text.split("\n")[0]) > FIRST_LINE]


def unconditional_raises(texts: list[Text]) -> list[str]:
    """Return the entries of `Raises:` sections that begin with no condition."""
    found = list[str]()
    for each in texts:
        for section in _RAISES.findall(each.text):
            indent = min(len(line) - len(line.lstrip()) for line in section.splitlines() if line.strip())
            for line in section.splitlines():
                entry = re.match(rf" {{{indent}}}([\w.]+): (.*)", line)
                if entry and not re.match(r"(?:If|When|Unless|On|With|Only|Always|While)\b|`", entry[2]):
                    found.append(f"{each.place} {entry[1]}: {entry[2]}")
    return found


def rates_of(texts: list[Text]) -> dict[str, float]:
    """Return the rates of a package: odd grammar per 1,000 words, and the shares of long sentences and first lines."""
    words = sum(words_of(each.text) for each in texts) / 1000
    lengths = [words_of(sentence) for each in texts for sentence in sentences_of(each.text)]
    docstrings = sum(each.is_docstring for each in texts)
    return {
        "thousand words": words,
        **{name: sum(len(odd.findall(each.text)) for each in texts) / words for name, odd in ODD.items()},
        "words in a sentence, mean": sum(lengths) / len(lengths),
        "sentences over 30 words, %": 100 * sum(length > LONG for length in lengths) / len(lengths),
        "first lines over 80, %": 100 * len(long_first_lines(texts)) / max(docstrings, 1),
        "raises without a condition, %": 100
        * len(unconditional_raises(texts))
        / max(1, sum(len(re.findall(r"(?m)^ +\w+: ", s)) for t in texts for s in _RAISES.findall(t.text))),
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        suffix = ".md" if path.suffix == ".md" or "--pages" in sys.argv else ".py"
        if not argument.startswith("--"):
            print(
                argument,
                *(f"{name}: {rate:.2f}" for name, rate in rates_of([*texts_in(path, suffix)]).items()),
                sep="\n  ",
            )
