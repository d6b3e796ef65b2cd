"""Text tables stay aligned and within their width, whatever the cells hold."""

from hypothesis import given, settings
from hypothesis import strategies as st

from reports.document import Column
from reports.text import clean, display_width, fit, wrap
from reports.views.terminal import render_table

CELL = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=30).map(clean)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=6), st.integers(20, 90))
@settings(deadline=None, max_examples=80)
def test_every_line_fits_and_columns_start_together(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column("first", shrink=True), Column("second"), Column("third", "right")]
    lines, one = render_table(rows, columns, width).split("\n"), 1 + len(rows)
    assert len(lines) in {one, 2 * one + 1}  # in one table, or in two with a blank line between them
    assert all(display_width(line) <= width for line in lines)


def test_columns_without_room_stand_below_each_other_with_no_number_cut() -> None:
    rows = [["H100", "1,979.25", "12,345.67", "999"], ["B200", "4,500.00", "98,765.43", "1,000"]]
    columns = [Column("GPU"), *(Column(name, "right") for name in ("fp8", "all", "W"))]
    assert render_table(rows, columns, 16).split("\n") == [
        "GPU        fp8",
        "H100  1,979.25",
        "B200  4,500.00",
        "",
        "GPU         all",
        "H100  12,345.67",
        "B200  98,765.43",
        "",
        "GPU       W",
        "H100    999",
        "B200  1,000",
    ]
    assert "\n\n" not in render_table(rows, columns, 40)


@given(st.text(max_size=400))
@settings(deadline=None, max_examples=100)
def test_cleaned_text_holds_nothing_that_moves_the_cursor_or_turns_the_line(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) <= 60
    assert not any(char in cleaned for char in "\n\r\t\x1b\u202e\u2066\u200f\u2028\x00")


@given(st.text(st.characters(codec="utf-8", categories=("L", "Zs")), max_size=200), st.integers(5, 60))
@settings(deadline=None, max_examples=60)
def test_wrapped_and_fitted_lines_fit(text: str, width: int) -> None:
    text = clean(text, 200)
    assert all(display_width(line) <= width for line in wrap(text, width))
    assert display_width(fit(text, width)) <= width
