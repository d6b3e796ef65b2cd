"""What a person reads is plain English: no banned phrase, and no sentence that is too long to read once.

Pages, help texts and golden outputs have no phrase of `BANNED`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from reports.answers.plan_details import WORDS

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = sorted((ROOT / "docs").glob("*.md"))
GOLDENS = sorted(path for ending in ("txt", "md") for path in GOLDEN.rglob(f"*.{ending}"))
HELP = sorted((GOLDEN / "cli").glob("help*.txt"))
MOST_WORDS = 40
MOST_PAGES = 14
"""Pages that say how to use pdplan and how it works; theory/ and appendix/ have the rest."""
MOST_WORDS_OF_A_PAGE = 1_500
MOST_WORDS_OF_A_SENTENCE = 30
MOST_TERMS = 40

BANNED = yaml.safe_load((ROOT / "tests" / "banned_phrases.yaml").read_text("utf-8"))


def prose(text: str) -> str:
    """A Markdown page without fenced blocks, code in the line, addresses, and indented commands and formulas."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"^ {4,}(?![*-]).*$", "", text, flags=re.M)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "` `", text)


def banned(text: str) -> list[str]:
    """The banned phrases of a text, each with the words around it."""
    text = " ".join(text.split())
    return [
        f"{text[max(found.start() - 30, 0) : found.end() + 30]!r}: {say}"
        for phrase, say in BANNED.items()
        for found in re.finditer(rf"\b(?:{phrase})\b", text, re.I)
    ]


def sentences(text: str) -> list[str]:
    """Sentences of prose: paragraphs, items of lists and cells of tables are ends too."""
    lines = re.sub(r"^\s*(?:[*-]|\d+\.) ", "\n\n", text, flags=re.M)
    lines = re.sub(r"^#.*$|^\|[-: |]*\|$", "\n\n", lines, flags=re.M)
    lines = re.sub(r"\s*\|\s*", "\n\n", lines)
    return [
        " ".join(sentence.split())
        for paragraph in re.split(r"\n\s*\n", lines)
        for sentence in re.split(r"(?:(?<=[.:;?!])|(?<=[.:;?!]\*\*))\s+", paragraph)
    ]


def help_prose(text: str) -> str:
    """A help text as paragraphs: each option one, commands of the examples none."""
    text = re.sub(r"^    pdplan .*$", "", text, flags=re.M)
    return re.sub(r"^  (?=-|[a-z]+  |\S+=)", "\n\n", text, flags=re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_banned_phrase(page: Path) -> None:
    assert banned(prose(page.read_text("utf-8"))) == []


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_golden_outputs_have_no_banned_phrase(path: Path) -> None:
    assert banned(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", [PAGES[0], *HELP], ids=lambda path: path.name)
def test_no_sentence_is_too_long(path: Path) -> None:
    text = path.read_text("utf-8")
    text = help_prose(text) if path in HELP else prose(text)
    assert [said for said in sentences(text) if len(said.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_a_page_is_short_and_so_are_its_sentences(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(text.split()) <= MOST_WORDS_OF_A_PAGE
    spoken = ([word for word in said.split() if any(map(str.isalnum, word))] for said in sentences(prose(text)))
    assert [" ".join(said) for said in spoken if len(said) > MOST_WORDS_OF_A_SENTENCE] == []


def test_the_glossary_page_says_what_the_report_says() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    terms = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert [term for term, meaning in WORDS if f"| {term} | {meaning} |" not in page] == []
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) <= MOST_TERMS


def test_a_new_engineer_reads_few_pages_and_a_readme_of_at_most_150_lines() -> None:
    assert len(SHORT) <= MOST_PAGES
    assert len(PAGES[0].read_text("utf-8").splitlines()) <= 150
