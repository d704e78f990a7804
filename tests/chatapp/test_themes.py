"""Themes: files that load, and colours that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from themes import DEFAULT, ThemeError, load_themes, parse_theme, remark

THEMES = {theme.name: theme for theme in load_themes()}


def contrast(one: str, two: str) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour: str) -> float:
        channels = [value / 255 for value in Color.parse(colour).rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_each_is_told_by_the_comment_at_its_beginning_an_own_one_first(tmp_path: Path) -> None:
    assert all(remark(name, tmp_path).endswith(".") for name in THEMES)
    assert remark("beacon", tmp_path).startswith("High contrast")
    (tmp_path / "ink.toml").write_text("\n#  Mine, at night\nprimary = '#fff'\n")
    (tmp_path / "bare.toml").write_text("primary = '#fff'\n")
    assert [remark(name, tmp_path) for name in ("ink", "bare", "none", "a\0b")] == ["Mine, at night", "", "", ""]


def test_there_are_dark_and_light_ones_and_the_default_is_one() -> None:
    assert {theme.dark for theme in THEMES.values()} == {True, False}
    assert DEFAULT in THEMES


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("ground", ["background", "surface"])
def test_text_can_be_read(name: str, ground: str) -> None:
    theme = THEMES[name]
    assert contrast(theme.foreground or "", getattr(theme, ground)) >= 7
    for role in ("primary", "secondary", "accent", "success", "warning", "error"):
        assert contrast(getattr(theme, role), getattr(theme, ground)) >= 4.5, role


def test_there_are_a_dozen_and_some_of_high_contrast_both_dark_and_light() -> None:
    assert len(THEMES) >= 12
    roles = ("primary", "secondary", "accent", "success", "warning", "error")
    strong = {
        theme.dark
        for theme in THEMES.values()
        if contrast(theme.foreground or "", theme.background or "") >= 18
        and all(contrast(getattr(theme, role), theme.background or "") >= 7 for role in roles)
    }
    assert strong == {True, False}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("primary = ", "not valid TOML"),
        ("dark = true", "no primary"),
        ("primary = '#fff'\ncolour = 'red'", "no use for colour"),
        ("primary = 'nonsense'", "'nonsense' as its primary"),
        ("primary = '#fff'\ndark = 'yes'", "true or false"),
        pytest.param("x = " + "[" * 3000, "nested too deeply", id="nested"),
        pytest.param("x = " + "1" * 5000, "not valid TOML", id="long number"),
        ("primary = '#fff'\nbackground = 'transparent'", "ansi_default"),
        ("primary = '#fff'\n[variables]\nfoo = '}'", "no use for foo among its variables"),
        ("primary = '#fff'\n[variables]\nbackground = 'red'", "no use for background among its variables"),
        ("primary = '#fff'\n[variables]\nbackground-darken-1 = 'red 50%'", "cannot be mixed: .*'red 50%'"),
        ("primary = '#fff'\n[variables]\nborder = 'nocolour'", "'nocolour' as its border, which is no colour"),
        ("primary = '#fff'\n[variables]\nborder = 'auto 60%'", "no colour"),
        ("primary = '#fff'\n[variables]\nborder = 'red } 50%'", "no colour"),
        ("primary = '#fff'\n[variables]\nborder = ''", "no colour"),
        ("primary = '#fff'\n[variables]\ntext-muted = 'auto 60'", "no colour"),
        ("primary = '#fff'\n[variables]\ninput-cursor-text-style = 'wobbly'", "no style of text"),
        ("primary = '#fff'\n[variables]\nblock-cursor-text-style = ''", "no style of text"),
    ],
)
def test_a_faulty_file_is_refused_with_its_fault(text: str, says: str) -> None:
    with pytest.raises(ThemeError, match=says):
        parse_theme(text, "mine")
