"""YAML reduced to plain data, with the line of every value; and back. Knows no schema.

Accepted: one document of nested mappings and lists with strings, numbers, booleans and nulls. Rejected
before anything is built: anchors and aliases (they explode), tags (they construct), repeated keys, deep
nesting, huge files. Scalars follow the core schema of YAML 1.2, in which `1e-5` is a number; the
loaders of PyYAML follow 1.1, where it is text and `2025-11-29` an object. So PyYAML's safe parser gives the
events, and the data is built here.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sgemm_tune.errors import ConfigFileError

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 32

Scalar = str | int | float | bool | None

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_EMITTER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_PLAIN = re.compile(r"[A-Za-z]([\w ./,()+-]*[\w)])?", re.ASCII)
_NOT_PLAIN = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that some version of YAML takes for something else than text."""
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True)
class Node:
    """A value and where it starts.

    Attributes:
        line: counted from 1; of a mapping's value, the line of its key.
        value: a scalar, or nodes in a list or by key.
    """

    line: int
    value: Scalar | list[Node] | dict[str, Node]

    @property
    def plain(self) -> Any:
        """The value without lines, as `json.dumps` takes it."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain for node in self.value]
        return self.value

    def at(self, path: tuple[str | int, ...]) -> Node:
        """The node at `path`, or the last one on the way there."""
        if not path or not isinstance(self.value, dict | list):
            return self
        try:
            return self.value[path[0]].at(path[1:])  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return self


def read_yaml(path: Path) -> Node:
    """Parse the file at `path`.

    Raises:
        ConfigFileError: it cannot be read, or is not the YAML described above; one line with file and line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read: {error.strerror or error}: check the path") from error
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"{path}:1: is larger than {MAX_BYTES >> 20} MiB: check the path")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigFileError(
            f"{path}:{line}: is not UTF-8 (found byte 0x{data[error.start]:02x}): save it as UTF-8"
        ) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Node:
    """Parse `text`; messages call it `name`.

    Raises:
        ConfigFileError: it is not the YAML described above; one line with file and line.
    """
    try:
        return _Builder(name).build(yaml.parse(text, Loader=_PARSER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ConfigFileError(f"{name}:{line}: is not YAML ({one_line(problem)}): mend the syntax") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigFileError(f"{name}:{line}: has a character that YAML forbids: remove it") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigFileError(f"{name}:1: is not YAML ({one_line(str(error))}): mend the syntax") from None


@functools.lru_cache(maxsize=4096)  # a file says most of its words many times
def resolve(text: str) -> Scalar:
    """What an unquoted scalar means in the core schema of YAML 1.2.

    Raises:
        ValueError: infinity, not-a-number, or a number that overflows.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("must be a finite number")
    if len(text) <= 64 and _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError("must be a finite number")
        return number
    return text


def dump_yaml(data: Any, flow: Collection[str] = ()) -> str:
    """`data` as YAML that `read_yaml` gives back unchanged, its keys in their order.

    Args:
        data: nested dicts and lists of scalars.
        flow: keys whose values are written on one line.

    Raises:
        ValueError: a number that is not finite.
    """
    events = [
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_written(data, flow, in_flow=False),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    ]
    # without a width the emitter would fold long names over two lines
    text: str = yaml.emit(events, Dumper=_EMITTER, allow_unicode=True, width=10**6)
    return text


def _written(data: Any, flow: Collection[str], in_flow: bool) -> Iterator[Any]:
    if isinstance(data, dict):
        yield yaml.MappingStartEvent(None, None, True, flow_style=in_flow)
        for key, value in data.items():
            yield _scalar_event(key)
            yield from _written(value, flow, in_flow or key in flow)
        yield yaml.MappingEndEvent()
    elif isinstance(data, list):
        yield yaml.SequenceStartEvent(None, None, True, flow_style=in_flow or not data)
        for item in data:
            yield from _written(item, flow, in_flow)
        yield yaml.SequenceEndEvent()
    else:
        yield _scalar_event(data)


def _scalar_event(value: Scalar) -> Any:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _NOT_PLAIN
        return yaml.ScalarEvent(None, None, (plain, True), value, style=None if plain else '"')
    text = json.dumps(value, allow_nan=False)
    if isinstance(value, float) and "." not in text:
        text = text.replace("e", ".0e")  # 1e-05 is text to readers of YAML 1.1
    return yaml.ScalarEvent(None, None, (True, True), text)


class _Builder:
    """Turns parser events into nodes; its depth is bounded, so that it may recurse."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._path: list[str | int] = []

    def build(self, events: Iterator[Any]) -> Node:
        documents = 0
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second document starts here", "keep one document per file")
                root = self._node(next(events), events, 0)
        if root is None:
            raise ConfigFileError(f"{self.name}:1: is empty: write a configuration or remove the file")
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int, line: int = 0) -> Node:
        line = line or _line(event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self._refuse(event, f"anchors and aliases are not allowed (found {event.anchor})", "write it out")
        if event.tag is not None and event.tag != "!":
            self._refuse(event, f"tags are not allowed (found {one_line(event.tag)})", "remove the tag")
        if isinstance(event, yaml.ScalarEvent):
            return Node(line, self._scalar(event))
        if depth >= MAX_DEPTH:
            self._refuse(event, f"is nested more than {MAX_DEPTH} deep", "this is no configuration file")
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                self._path.append(len(items))
                items.append(self._node(event, events, depth + 1))
                self._path.pop()
            return Node(line, items)
        return Node(line, self._mapping(events, depth))

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be a single word", "write `key: value`")
            self._path.append(event.value)
            self._node(event, events, depth)  # refuses anchors and tags on keys
            if event.value in found:
                first = found[event.value].line
                self._refuse(event, f"is repeated (first on line {first})", "keep one of them")
            found[event.value] = self._node(next(events), events, depth + 1, _line(event))
            self._path.pop()
        return found

    def _scalar(self, event: Any) -> Scalar:
        text: str = event.value
        if not text.isprintable() and any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            self._refuse(event, "text holds half of a surrogate pair", "write the character itself")
        if not event.implicit[0]:
            return text
        try:
            return resolve(text)
        except ValueError as error:
            self._refuse(event, f"{error} (found {one_line(text)})", "write a number such as 0.5 or 1e-5")

    def _refuse(self, event: Any, problem: str, remedy: str) -> NoReturn:
        key = f"{dotted(self._path)}: " if self._path else ""
        raise ConfigFileError(f"{self.name}:{_line(event)}: {key}{problem}: {remedy}")


def _line(event: Any) -> int:
    number: int = event.start_mark.line + 1
    return number


def dotted(path: Iterable[str | int]) -> str:
    """`entries[3].params.BM`; empty for no path."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{one_line(str(key), 40)}"
    return text.removeprefix(".")


def one_line(text: str, limit: int = 80) -> str:
    """`text` without line ends or control characters, cut to `limit`."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
