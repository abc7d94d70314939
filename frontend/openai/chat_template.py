"""A model's chat template: turns a conversation into the prompt that the model was trained on.

The template is Jinja, as tokenizers carry it (`chat_template` in tokenizer_config.json), and comes with the model's
configuration (shoal/model_config/chat_templates.py). It is a model's artefact and is not trusted: it runs in Jinja's
sandbox, with bounds on its steps and its CPU time, and makes no text longer than MAX_CHARS. Front-end processes.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from time import thread_time
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes, pass_environment
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from shoal.frontend.openai.errors import InvalidRequestError
from shoal.memo import memoized

#: The most characters of a prompt, and of each text that a template makes while it builds the prompt (ours).
MAX_CHARS = 4 << 20
#: The most steps of loops and calls of one rendering (ours). A conversation takes about one step for each message.
MAX_STEPS = 30_000
#: The CPU time at which a rendering ends at its next step (ours): a lane answers no other request meanwhile. MAX_STEPS
#: steps take up to 0.3 s, but for filters and operators that go through a long list or text.
MAX_CPU_S = 0.5
_ITERATE, _CONCAT = "shoal_iterate", "shoal_concat"


class _LimitError(Exception):
    """A rendering exceeds one of the limits above, or uses what could exceed them."""


def render(model: str, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """The prompt for a conversation; `variables` are further names that the template may use, or other values of
    `add_generation_prompt`, `tools` and `documents`. Raises InvalidRequestError where the template is malformed,
    refuses the conversation, or exceeds a limit."""
    pieces: list[str] = []
    num_chars = 0
    try:
        code = _code(template)
        environment = _Environment()  # its CPU time counts from here on
        compiled = Template.from_code(environment, code, environment.make_globals(None))
        names = {"add_generation_prompt": True, "tools": None, "documents": None, **variables, "messages": messages}
        for piece in compiled.generate(names):
            num_chars += len(piece)
            if num_chars > MAX_CHARS:
                raise _LimitError(f"its prompt is longer than {MAX_CHARS} characters")
            pieces.append(piece)
    except TemplateError as error:
        raise InvalidRequestError(
            f"the chat template of model '{model}' refuses the messages: {error}", "messages"
        ) from None
    except Exception as error:  # noqa: BLE001  a template is a program of the model's, which may fail in any way
        raise InvalidRequestError(
            f"the chat template of model '{model}' fails with {type(error).__name__}: {error}", "messages"
        ) from None
    return "".join(pieces)


@memoized("chat_template", 64)
def _code(template: str) -> Any:
    return _Environment().compile(template)


#: Methods of strings, and filters, that make a long text of a short one (by a width). They are forbidden: no
#: tokenizer's template uses them.
_PADDING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate", "wordwrap", "urlize"}
)
_MAX_INDENT = 64


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the names that templates of tokenizers expect (those of transformers), and with limits. Each
    rendering has an environment of its own, which counts the rendering's steps."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], cache_size=0)
        self.filters = _FILTERS
        del self.globals["lipsum"]  # makes filler text of any length
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        self.globals[_ITERATE] = self._iterate
        self.globals[_CONCAT] = self._concat
        self._num_steps = 0  # changed by _step
        self._end_s = thread_time() + MAX_CPU_S

    def _step(self) -> None:
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise _LimitError(f"it takes more than {MAX_STEPS} steps")
        if thread_time() > self._end_s:
            raise _LimitError(f"it takes more than {MAX_CPU_S:g} s of CPU time")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        limited = _Limits().visit(tree)
        assert isinstance(limited, nodes.Template)
        return limited

    def _iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for each in iterable:
            self._step()
            yield each

    def _concat(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def wrap_str_format(self, value: Any) -> Any:
        return None  # no wrapper around `str.format`: then `is_safe_attribute` refuses the method

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _PADDING)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._step()
        text = getattr(obj, "__self__", None)
        if isinstance(text, str) and obj.__name__ in _GROWING:
            return _GROWING[obj.__name__](text, *args, **kwargs)
        made = super().call(context, obj, *args, **kwargs)
        if isinstance(made, str):
            _check_length(len(made))
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and not (isinstance(left, int) or isinstance(right, int)):
            _check_length(sum(len(each) for each in (left, right) if _is_sized(each)))
        elif operator == "*":
            # A product of two numbers is bounded, too: repeated, it would get as many digits as `**` makes.
            sizes = [each if isinstance(each, int) else len(each) for each in (left, right) if _is_sized(each)]
            _check_length(sizes[0] * sizes[1] if len(sizes) == 2 else 0)
        elif operator == "**" or (operator == "%" and isinstance(left, str)):
            raise _LimitError(f"the operator {operator} is not available to it")
        return super().call_binop(context, operator, left, right)


class _Limits(NodeTransformer):
    """Puts limits into a template: each loop's iterable and each `~` goes through a function that counts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Call(nodes.Name(_ITERATE, "load"), [node.iter], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_CONCAT, "load"), node.nodes, [], None, None, lineno=node.lineno)


def _is_sized(value: Any) -> bool:
    return isinstance(value, (int, str, list, tuple))


def _check_length(num_chars: int) -> None:
    if num_chars > MAX_CHARS:
        raise _LimitError(f"a text of it is longer than {MAX_CHARS} characters")


def _limited(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(filter_)  # keeps the marks by which Jinja passes arguments
    def limited(*args: Any, **kwargs: Any) -> Any:
        made = filter_(*args, **kwargs)
        if isinstance(made, str):
            _check_length(len(made))
        return made

    return limited


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    num = text.count(old) if old else len(text) + 1
    _check_length(len(text) + (num if count is None or count < 0 else min(num, count)) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _join(separator: str, parts: Iterable[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


@pass_environment
def _join_filter(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    return _join(str(d), value if attribute is None else map(make_attrgetter(environment, attribute), value))


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    if indent is not None and indent > _MAX_INDENT:
        raise _LimitError(f"an indent of {indent} is more than {_MAX_INDENT}")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=bool(more.get("sort_keys")))
    _check_length(len(text))
    return text


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, int) or width > _MAX_INDENT:
        raise _LimitError(f"an indent of {width} is no number up to {_MAX_INDENT}")
    return str(do_indent(text, width, first, blank))


def _raise_exception(sentence: str) -> None:
    raise TemplateError(sentence)


_FILTERS: dict[str, Callable[..., Any]] = {
    name: _limited(filter_) for name, filter_ in FILTERS.items() if name not in _PADDING
} | {"tojson": _to_json, "replace": _replace, "join": _join_filter, "indent": _limited(_indent)}
#: Methods of strings whose results may be much longer than their arguments.
_GROWING: dict[str, Callable[..., str]] = {"replace": _replace, "join": _join}
