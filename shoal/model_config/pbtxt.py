"""config.pbtxt and its JSON form: parsing into the ModelConfig message, and the message as Triton's JSON prints it.

Imports protobuf (0.1 s), so only the poller imports this. The message class is tritonclient's.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import descriptor_pool, json_format, text_format
from google.protobuf.message import Message

from shoal import triton_messages
from shoal.errors import InvalidArgumentError
from shoal.model_config import files
from shoal.model_config.messages import Config

#: The largest configuration in bytes (ours: the largest of Triton's examples has 20 KiB).
MAX_BYTES = 1 << 20

#: A FieldDescriptor: protobuf's C and Python implementations have one each, without a common class.
_Field: TypeAlias = Any

_UNKNOWN = re.compile(r'(Message|Enum) type "([\w.]+)" has no (?:field|value) (?:named|with number) "?(\w+)')

#: A string without a closing quote is matched up to the end of the text: otherwise the search would start again at each
#: escaped quote in it, which takes quadratic time.
_STRING_OR_LAST_COMMA = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*"?)|,(?P<before>\s*[\]}])')


def read(path: Path) -> str:
    """The text of a config.pbtxt.

    Raises InvalidArgumentError for any file but a regular one of at most MAX_BYTES in UTF-8.
    """
    try:
        data = files.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, f"{error.strerror}; put a text file there that the server's user can read") from error
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"it is larger than {MAX_BYTES} bytes; a model configuration is a short text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8; save the file as plain UTF-8 text") from error


def parse(text: str, path: Path) -> Config:
    """`text` as a configuration; `path` is only named in errors.

    Raises InvalidArgumentError with the parser's line and column and, for an unknown name, the closest known one. A
    text of MAX_BYTES takes 1.5 s.
    """
    message = new_message()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        # The parser puts "line:column : 'the whole line': " in front; the position is given once, in words.
        reason = re.sub(r"^\d+:\d+ : ", "", str(error))
        where = f"line {line}, column {column}: " if line else ""
        raise _unreadable(path, f"{where}{reason}{_advice(reason)}") from error
    except ValueError as error:  # a number that the enum does not have: protobuf checks only this so late
        raise _unreadable(path, str(error)) from error
    try:
        return to_config(message)
    except InvalidArgumentError as error:
        raise _unreadable(path, str(error)) from error


def parse_json(text: str) -> Config:
    """`text`, a ModelConfig in JSON, as a configuration.

    The text is read as by Triton: names in snake_case or camelCase, unknown ones refused, 64-bit integers as numbers or
    strings, enums by name in any case or by number. Raises InvalidArgumentError with the reason alone as its sentence.
    """
    if len(text) > MAX_BYTES:
        raise InvalidArgumentError(f"it is larger than {MAX_BYTES} bytes; a model configuration is a short text")
    message = new_message()
    try:
        fields = _load_json(text)
        if not isinstance(fields, dict):
            raise InvalidArgumentError("it is not a JSON object")
        json_format.ParseDict(_spelled(fields, message.DESCRIPTOR), message)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(str(error)) from error
    return to_config(message)


def to_text(config: Config) -> str:
    """A configuration as the text of a config.pbtxt; fields at their defaults are left out."""
    return str(text_format.MessageToString(json_format.ParseDict(config, new_message())))


def _load_json(text: str) -> Any:
    """The JSON as Python objects; as in Triton's reader, a comma after the last element is accepted."""
    try:
        return json.loads(text)
    except ValueError:
        cleaned = _STRING_OR_LAST_COMMA.sub(lambda found: found["string"] or found["before"], text)
        if cleaned == text:
            raise
    return json.loads(cleaned)


def to_config(message: Message) -> Config:
    """The JSON form of `message`, with 64-bit integers as numbers and maps sorted by key.

    A field that can tell "unset" from its default (a sub-message, a member of a oneof) is present only if it is set,
    every other one always. Raises InvalidArgumentError for an enum's number that has no name, which protobuf accepts.
    """
    return {
        field.name: _value(getattr(message, field.name), field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def new_message() -> Message:
    """An empty ModelConfig message."""
    message: Message = triton_messages.model_config().ModelConfig()
    return message


def _value(value: Any, field: _Field) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        element = kind.fields_by_name["value"]
        return {str(key): _single(value[key], element) for key in sorted(value)}
    if field.is_repeated:
        return [_single(element, field) for element in value]
    return _single(value, field)


def _single(value: Any, field: _Field) -> Any:
    if field.message_type is not None:
        return to_config(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        if named is None:
            known = ", ".join(sorted(field.enum_type.values_by_name))
            raise InvalidArgumentError(f"'{field.name}' is {value}, must be one of {known}")
        return named.name
    return value


def _spelled(fields: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """JSON `fields` with the names of enums as the message has them: KIND_CPU for kind_cpu and kind-cpu."""
    known = {**descriptor.fields_by_camelcase_name, **descriptor.fields_by_name}
    # Unknown names are left to the parser, which refuses them with a better sentence.
    return {name: _spelled_value(value, known[name]) if name in known else value for name, value in fields.items()}


def _spelled_value(value: Any, field: _Field) -> Any:
    kind = field.message_type
    if isinstance(value, list):
        return [_spelled_value(element, field) for element in value]
    if field.enum_type is not None and isinstance(value, str):
        return value.upper().replace("-", "_")
    if kind is None or not isinstance(value, dict):
        return value
    if kind.GetOptions().map_entry:
        return {key: _spelled_value(element, kind.fields_by_name["value"]) for key, element in value.items()}
    return _spelled(value, kind)


#: Words of other programs for datatypes, and Triton's.
_ELSEWHERE = {
    "FLOAT": "FP32", "FLOAT32": "FP32", "DOUBLE": "FP64", "FLOAT64": "FP64", "HALF": "FP16", "FLOAT16": "FP16",
    "BFLOAT16": "BF16", "INT": "INT32", "LONG": "INT64", "BOOLEAN": "BOOL", "BYTES": "STRING", "STR": "STRING",
}  # fmt: skip


def _advice(reason: str) -> str:
    """Advice on what to write instead of a field or an enum value that does not exist."""
    unknown = _UNKNOWN.search(reason)
    if unknown is None:
        return ""
    kind, full_name, written = unknown.groups()
    pool = descriptor_pool.Default()
    if kind == "Message":
        known = list(pool.FindMessageTypeByName(full_name).fields_by_name)
    else:
        known = list(pool.FindEnumTypeByName(full_name).values_by_name)
    # By length "FP32" is closer to TYPE_BF16 than to TYPE_FP32: an ending counts more than the spelling.
    meant = _ELSEWHERE.get(written.upper().removeprefix("TYPE_"), written)
    close = [name for name in known if name.endswith(f"_{meant}")] or difflib.get_close_matches(written, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else f" It knows: {', '.join(sorted(known))}."


def _unreadable(path: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"failed to read text proto from {path}: {reason}")
