"""The report is one well-formed, offline, inert page, the same bytes for the same plan, whatever the names in it."""

import json
import re
from html.parser import HTMLParser

import pytest

from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page
from tests.report_cases import NAMES, load, simulated

VOID = {"meta", "link", "br", "img", "wbr"}
ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "body", "header", "main", "footer", "section", "nav", "a",
    "h1", "h2", "h3", "p", "span", "b", "i", "div", "dl", "dt", "dd", "ul", "li", "figure", "figcaption", "details",
    "summary", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "svg", "rect", "path", "text", "script",
    "wbr",
}  # fmt: skip


class Walker(HTMLParser):
    """Check that tags nest, and collect what the page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.twin = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.extend((tag, name, value) for name, value in attrs)
        self.ids.extend(value or "" for name, value in attrs if name == "id")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.twin += data
        elif "style" not in self.stack:
            self.text.append(data)


def walk(page: str) -> Walker:
    walker = Walker()
    walker.feed(page)
    walker.close()
    assert walker.stack == []
    return walker


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed_and_inert(name: str) -> None:
    page = plan_page(load(name))
    walker = walk(page)
    assert page.startswith("<!DOCTYPE html>")
    assert walker.tags <= ALLOWED
    assert len(walker.ids) == len(set(walker.ids))
    for tag, attribute, value in walker.attributes:
        assert not attribute.startswith("on"), (tag, attribute)
        assert attribute not in {"src", "srcset", "action", "style", "xlink:href"}, (tag, attribute)
        if attribute == "href":
            assert value is not None
            assert value.startswith("#") or value == "data:,"
    assert "http" not in re.sub(r"http-equiv", "", page.split("<body>")[0])
    assert page.count("<script") == 1
    assert '<script type="application/json"' in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_is_the_plan(name: str) -> None:
    plan = load(name)
    assert Plan.model_validate(json.loads(walk(plan_page(plan)).twin)) == plan


def test_hostile_names_are_shown_as_text() -> None:
    page = plan_page(load("hostile"))
    walker = walk(page)
    text = "".join(walker.text)
    assert "<script>alert(" in text
    assert "{{7*7}}" in text
    assert "49" not in walker.text[0]
    assert "{% raw %}" in text
    assert not {"img", "iframe", "u", "kind", "pool"} & walker.tags
    body = page.split("<body>")[1]
    assert not set(body) & set("\u202e\u2066\u2028\u2029\x1b")
    assert "A" * 100 not in body.split('<script type="application/json"')[0]


def test_a_simulated_page_has_every_section_and_its_charts_with_their_data() -> None:
    page = plan_page(simulated(load("disaggregated")))
    assert page == plan_page(simulated(load("disaggregated")))
    walker = walk(page)
    names = {"fleet", "cost-and-capacity", "slos", "latencies", "what-binds", "alternatives", "workload", "sensitivity"}
    assert names | {"how-it-is-routed", "settings", "trust", "plan"} == set(walker.ids)
    links = {value[1:] for tag, attribute, value in walker.attributes if tag == "a" and attribute == "href" and value}
    assert links
    assert links <= set(walker.ids)
    labels = [value or "" for tag, name, value in walker.attributes if tag == "svg" and name == "aria-label"]
    starts = (
        "distribution of chat", "distribution of batch", "latency over limit against load", "share of chat that me",
        "share of batch that me", "roofline", "time of one step",
        "cost against latency", "share of requests by length",
    )  # fmt: skip
    assert [label[: len(start)] for label, start in zip(labels, starts, strict=True)] == list(starts)
    assert page.count("<figure") == page.count("<details><summary>Data") == len(labels)
