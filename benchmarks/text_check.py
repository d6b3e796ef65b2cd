"""How the texts that people read do: banned phrases, sentences over 30 words, and Flesch reading ease.

    python benchmarks/text_check.py [--sentences]

Read are the terminal answers and the reports of the plans in tests/plans, the pages of deployments in
tests/golden/deploy, README.md and docs. Banned phrases are those of tests/test_language.py. Code, tables, formulas
and headings are no sentences; in the terminal and the report, only paragraphs count.

Flesch reading ease = 206.835 - 1.015 words per sentence - 84.6 syllables per word; 60 to 70 is plain English. Syllables
are groups of vowels (a, e, i, o, u, y), less a silent e at the end of a word, and one at least; a number is one word of
one syllable, a sign is no word. --sentences prints every sentence over 30 words. Seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from optimizer.plans.plan import Plan, parse_plan  # noqa: E402
from reports.answers.plan import plan_document, plan_page  # noqa: E402
from tests.test_language import banned, prose, sentences  # noqa: E402

MOST_WORDS = 30
PLANS = ("colocated", "disaggregated", "infeasible")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", action="store_true")
    options = parser.parse_args()
    print(f"{'text':44} {'banned':>6} {'sentences':>9} {f'over {MOST_WORDS}':>8} {'Flesch':>6}")
    for name, said in texts():
        long = [one for one in said if len(words(one)) > MOST_WORDS]
        ease = f"{flesch(said):6.0f}" if said else "     -"
        print(f"{name:44} {len(banned(' '.join(said))):6} {len(said):9} {len(long):8} {ease}")
        for one in long if options.sentences else ():
            print(f"    {one}")


def texts() -> Iterator[tuple[str, list[str]]]:
    """Every text by its name, as sentences."""
    for name in PLANS:
        plan = parse_plan((ROOT / "tests" / "plans" / f"{name}.json").read_bytes())
        yield f"terminal, {name}", answer(plan, brief=True)
        yield f"terminal -v, {name}", answer(plan, brief=False)
        for title, paragraphs in report(plan):
            yield f"report, {name}: {title}"[:44], split("\n\n".join(paragraphs))
    for page in sorted((ROOT / "tests" / "golden" / "deploy").glob("*.txt")):
        found = re.search(r"=== README\.md\n(.*?)(?=^=== |\Z)", page.read_text("utf-8"), re.S | re.M)
        if found is not None:
            yield f"deployment, {page.stem}", split(prose(found[1]))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield page.relative_to(ROOT).as_posix(), split(prose(page.read_text("utf-8")))


def answer(plan: Plan, *, brief: bool) -> list[str]:
    """The sentences of a plan's answer on the terminal."""
    document = plan_document(plan, brief=brief)
    paragraphs = [*document.headline, *(said for section in document.sections for said in section.sentences)]
    return split("\n\n".join(str(said) for said in paragraphs))


class Paragraphs(HTMLParser):
    """The paragraphs and items of a page by its sections."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[str, list[str]]] = [("top", [])]
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in {"h2", "p", "li", "dd"}:
            self.inside = tag
            if tag != "h2":
                self.sections[-1][1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "h2":
            self.sections.append((data.strip(), []))
        elif self.inside:
            self.sections[-1][1][-1] += data


def report(plan: Plan) -> list[tuple[str, list[str]]]:
    """The paragraphs of each section of the report."""
    parser = Paragraphs()
    parser.feed(plan_page(plan))
    return [(title, paragraphs) for title, paragraphs in parser.sections if paragraphs]


def split(text: str) -> list[str]:
    """Sentences of at least four words: shorter ones are labels, cells of tables and ends of lists."""
    return [said for said in sentences(text) if len(words(said)) > 3]


def words(sentence: str) -> list[str]:
    return [word for word in sentence.split() if any(letter.isalnum() for letter in word)]


def syllables(word: str) -> int:
    """Syllables of a word; see the rule above."""
    letters = re.sub(r"[^a-z]", "", word.lower())
    groups = len(re.findall(r"[aeiouy]+", letters))
    silent = letters.endswith("e") and not letters.endswith("le")
    return max(groups - silent, 1)


def flesch(said: list[str]) -> float:
    every = [word for sentence in said for word in words(sentence)]
    return 206.835 - 1.015 * len(every) / len(said) - 84.6 * sum(map(syllables, every)) / len(every)


if __name__ == "__main__":
    main()
