"""frontend/openai/chat_template.py: templates as tokenizers have them, and hostile ones, which end soon."""

from time import thread_time

import pytest

from shoal.frontend.openai.chat_template import render
from shoal.frontend.openai.errors import InvalidRequestError

MESSAGES = [{"role": "user", "content": " hé "}, {"role": "assistant", "content": "ho"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
#: In the manner of today's models.
USUAL = """{{ bos_token }}{% for m in messages %}
{%- if loop.first and m['role'] != 'user' %}{{ raise_exception('the first message must be a user\\'s') }}{% endif %}
<|{{ m.role }}|>{{ m['content'] | trim ~ eos_token }}
{%- if loop.last and add_generation_prompt %}<|assistant|>{% endif %}{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}"""


def test_a_conversation_becomes_a_prompt() -> None:
    assert render("m", USUAL, MESSAGES, TOKENS) == "<s><|user|>hé</s><|assistant|>ho</s><|assistant|>"
    assert render("m", "{{ messages[0] | tojson }}{{ deep }}", MESSAGES, {"deep": True}) == (
        '{"role": "user", "content": " hé "}True'
    )
    assert render("m", "{{ messages | join('-', attribute='role') }}{{ ', '.join(['a', 'b']) }}", MESSAGES, {}) == (
        "user-assistanta, b"
    )
    assert render("m", "{{ 'a.b'.replace('.', '-') }}{{ 'x' | indent(2, true) }}", MESSAGES, {}) == "a-b  x"


def test_a_template_may_refuse_a_conversation() -> None:
    with pytest.raises(InvalidRequestError, match=r"^the chat template of model 'm' refuses .* must be a user's") as no:
        render("m", USUAL, MESSAGES[1:], TOKENS)
    assert no.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 60,
        "{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 60,
        "{% set x = [1] %}" + "{% set x = x + x %}" * 60,
        "{% set x = 'aaaaaaaa' %}" + "{% set x = [x, x] | join %}" * 60,
        "{% set x = 'aaaaaaaa' %}" + "{% set x = ''.join([x, x]) %}" * 60,
        "{% set x = 'aaaaaaaa' %}" + "{% set x = x | replace('a', x) %}" * 9,
        "{% set x = 'aaaaaaaa' %}" + "{% set x = x.replace('a', x) %}" * 9,
        "{{ range(99999) | join('a' * 99999) }}",
        "{{ ('a' * 99999).join(range(99999) | map('string')) }}",
        "{{ lipsum(9999999) }}",
        "{{ ('a ' * 99999) | wordwrap(1, wrapstring='a' * 99999) }}",
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * [1] }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ 'a'.center(9999999999) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | indent(9999999999) }}",
        "{{ [1] | tojson(indent=9999999999) }}",
        "{% for m in range(99999) %}" + "a" * 99 + "{% endfor %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include 'file' %}",
        "{% if %}",
        "{{ messages[9].role.first }}",
    ],
)
def test_a_hostile_template_fails_within_its_bounds(template: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat template"):
        render("m", template, MESSAGES, TOKENS)


def test_steps_that_go_through_long_lists_end_by_their_cpu_time() -> None:
    """Each step may take a millisecond; all of them took ten seconds, in which the lane answered no other request."""
    template = "{% for i in range(9000) %}{% set x = range(99999) | sum %}{% endfor %}"
    begun_s = thread_time()
    with pytest.raises(InvalidRequestError, match=r"it takes more than 0\.5 s of CPU time"):
        render("m", template, MESSAGES, {})
    assert thread_time() - begun_s < 2
