"""A template is code from a stranger: it ends, soon and in a sentence, and reaches nothing."""

from __future__ import annotations

import tracemalloc

import pytest
from small_vocabulary import IM_END, metadata

from runtime import template_sandbox
from runtime.chat_template import ChatTemplate, TemplateError
from runtime.protocol import Message
from runtime.tokenizer import Tokenizer

SMALL = Tokenizer.from_metadata(metadata())
HI = (Message("user", "hi"),)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}text{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=1) %}{% for i in range(9) %}{% set n.x = [n.x] * 9 %}{% endfor %}{{ n.x|tojson }}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 7 ** (10**10) }}",
        "{{ 'a'|center(10**10) }}",
        "{{ 'a'.center(10**10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '%9999999999d'|format(1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{n}}'.format(1, n=10**10) }}",
        "{{ (5).to_bytes(10**10, 'big') }}",
        "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}",
        "{% set a = 'a' * 1000000 %}{{ a|replace('a', a) }}",
        "{% set a = 'a' * 1000000 %}{{ ([a] * 99999)|join }}",
        "{% set a = 'a' * 1000000 %}{{ ([{'x': a}] * 99999)|map(attribute='x')|join }}",
        "{% set a = [1] * 99999 %}{{ ([a] * 9999)|sum(start=[]) }}",
        "{% set a = 'a' * 1000000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
        *(
            "{% set a = 'a' * 500000 %}{% set b = (2).from_bytes(('a' * 99999).encode()) %}{% set c = [a ~ 1, a ~ 2] %}"
            "{% set d = [1] * 9999 %}{% for i in range(300) %}{% if " + expression + " %}{% endif %}{% endfor %}"
            for expression in (
                *("'ab' in a", "'ab' not in a", "c[0] == c[1]", "a[::-1]", "a is lower", "c[0] is eq(c[1])", "c|sort"),
                *("1.5 in range(99999)", "c|select('eq', a)|list", "d|unique|list", "d|list"),
                *("b // 3 ** 900", "b - 1", "b / b", "b is divisibleby(3 ** 900)", "b == b", "{b: 1}", "{}[b]", "-b"),
                *("2.5|round(-99999)", "('<!---->' * 9999)|striptags", "(('<!---->' * 9999)|safe).striptags()"),
                "loop.changed(a)",
            )
        ),
        "{% for i in range(99) %}{% for j in range(99999) if none %}{% endfor %}{% endfor %}",
        "{% set a = ('a' * 100000)|safe %}{{ a.replace('a', a)|length }}",
        "{% set n = namespace(x=(1,)) %}{% for i in range(40) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}",
        "{% set n = namespace(x=(1,)) %}{% for i in range(999) %}{% set n.x = (n.x,) %}{% endfor %}{{ {n.x: 1}.x }}",
    ],
)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_WORK", 25_000_000)  # a tenth, for the sake of time
    with pytest.raises(TemplateError, match="more work than any conversation needs"):
        ChatTemplate(source, SMALL).render(HI, thinking=True)


def test_in_little_memory() -> None:
    source = "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{{ n.x }}{% endfor %}"
    template = ChatTemplate(source, SMALL)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            template.render(HI, thinking=True)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", ["{{ range.__globals__ }}", "{{ '{0.__class__}'.format(1) }}"])
def test_python_is_out_of_reach(source: str) -> None:
    assert ChatTemplate(source + "!", SMALL).render(HI, thinking=True).text == "!"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include 'secret' %}",
        "{% import 'secret' as s %}",
        "{{ 1 // 0 }}",
        "{{ missing.field }}",
        "{{ lipsum() }}",
        "{{ {1: range}|tojson }}",
    ],
)
def test_what_is_not_allowed_or_fails_is_a_sentence(source: str) -> None:
    with pytest.raises(TemplateError, match="The model's chat template ") as failure:
        ChatTemplate(source, SMALL).render(HI, thinking=True)
    assert str(failure.value).isprintable()


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a'|nonsense }}", "{% for %}", "{{ " + "(" * 9999, "{% endfor %}", "x" * 1_000_001]
)
def test_what_cannot_be_compiled_is_a_sentence(source: str) -> None:
    with pytest.raises(TemplateError, match="The model's chat template "):
        ChatTemplate(source, SMALL)


def test_its_own_refusal_is_told_harmlessly() -> None:
    template = ChatTemplate("{{ raise_exception('No\\n\x1b[31m tools!') }}", SMALL)
    with pytest.raises(TemplateError) as refusal:
        template.render(HI, thinking=True)
    assert str(refusal.value) == r"The model's chat template refuses this conversation: No \x1b[31m tools!."


def test_a_stopped_rendering_does_not_count_for_the_next() -> None:
    source = "{% if messages[0].content == ' ' %}{{ 'a' * 10**10 }}{% endif %}{{ messages[0].content }}"
    template = ChatTemplate(source, SMALL)
    with pytest.raises(TemplateError):
        template.render([Message("user", " ")], thinking=True)
    assert template.render(HI, thinking=True).text == "hi"


def test_ten_thousand_messages_are_not_too_much() -> None:
    source = (
        "{% for m in messages[::-1] %}{% if (m.content|trim).startswith('<tool_response>') %}?{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content|trim ~ '<|im_end|>\\n' }}{% endfor %}"
    )
    messages = [Message("user" if i % 2 == 0 else "assistant", "hello") for i in range(10_001)]
    assert ChatTemplate(source, SMALL).render(messages, thinking=True).ids.count(IM_END) == 10_001


def test_operators_and_tests_work_as_ever() -> None:
    source = (
        "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'b' in 'abc' }}{{ 'x' not in {'x': 1} }}{{ 7 // 2 }}{{ 7 - 2 }}"
        "{{ 2 in [1, 2]|map('int') }}{{ 7 / 2 }}{{ -7 }}{{ [1, 2, 3][::-1] }}{{ 'abc'[1:] }}{{ {'a' ~ 'b': 1}['ab'] }}"
        "{{ 9 is divisibleby 3 }}{{ 'a' is in ['a'] }}{{ 3 is odd }}{{ x is defined }}{{ none == x }}{{ 1 >= 2 }}"
        "{{ 'a' is eq 'b' }}"
        "{% for n in [1, 2, 3] if n > 1 %}{{ n }}{% endfor %}{{ [1, 2]|select('gt', 1)|first }}{{ 2.675|round(2) }}"
    )
    text = ChatTemplate(source, SMALL).render(HI, thinking=True).text
    assert text == "TrueFalseTrueFalse35True3.5-7[3, 2, 1]bc1TrueTrueTrueFalseFalseFalseFalse2322.67"


def test_filters_work_as_ever() -> None:
    source = (
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='role')|list|length }}"
        "{{ ['b', 'a']|sort|join(', ') }}{{ 'x'|default('y') }}{{ {'k': 1}|items|list }}{{ 'A' ~ 1 ~ none }}"
        "{{ '%02d|%s' % (7, 'z') }}{{ '{} {a}'.format(1, a=2) }}{{ [1] + [2] }}{{ 'ab' * 2 }}{{ 2 ** 5 }}"
        "{{ 'ab'|replace('a', 'c')|upper }}{{ [3, 4]|sum }}{{ ' t '|trim }}"
    )
    text = (
        ChatTemplate(source, SMALL)
        .render([Message("user", "u"), Message("assistant", "a"), Message("user", "v")], thinking=True)
        .text
    )
    assert text == "2a, bx[('k', 1)]A1None07|z1 2[1, 2]abab32CB7t"
