"""The constants that a CUDA source has for a configuration, computed from its text: without a compiler."""

from __future__ import annotations

import math
import re
from functools import cache
from types import CodeType

from sgemm_tune.compiler.sources import source_text
from sgemm_tune.kernel import DEFINE_PREFIX, Kernel

_COMMENT = re.compile(r"//[^\n]*")
_CONSTANT = re.compile(r"^constexpr (?:int|unsigned) (\w+) =\s*([^;]*);", re.MULTILINE)


class Constants(dict[str, int]):
    """Those of one source with one set of defines, by name; each is computed when it is asked for."""

    def __init__(self, kernel: Kernel) -> None:
        defines = (define.removeprefix("-D").split("=") for define in kernel.defines)
        super().__init__((name, int(value)) for name, value in defines)
        self._texts = _expressions(kernel.source)

    def __missing__(self, name: str) -> int:
        known = {"__builtins__": {}, "common_divisor": math.gcd, "FLOAT_SIZE": 4}
        if name in known or name not in self._texts:
            raise KeyError(name)
        self[name] = int(eval(self._texts[name], known, self))
        return self[name]


def text_of(source: str) -> str:
    """A source and its headers without comments, all white space a single blank."""
    return " ".join(_all_of(source).split())


def _all_of(source: str) -> str:
    found = source_text(source)
    return _COMMENT.sub("", "\n".join([*(text for _, text in found.headers), found.text]))


@cache
def _expressions(source: str) -> dict[str, CodeType]:
    found = _CONSTANT.findall(_all_of(source))
    assert len({name for name, _ in found}) == len(found), "a constant has one meaning"
    assert any(DEFINE_PREFIX in text for _, text in found)
    return {name: compile(_python(text), name, "eval") for name, text in found}


def _python(text: str) -> str:
    """A constant expression of C++ whose numbers are not negative, as Python writes it."""
    text = text.replace("sizeof(float)", "FLOAT_SIZE").replace("/", "//")
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    return f"({_choices(' '.join(text.split()))})"


def _choices(text: str) -> str:
    """`a ? b : c`, which Python writes in another order, also within parentheses."""
    depth, out, begin = 0, "", 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "(" and depth == 1:
            out, begin = out + text[begin : at + 1], at + 1
        elif letter == ")" and depth == 0:
            out, begin = out + _choices(text[begin:at]), at
        elif letter == "?" and depth == 0:
            return _chosen(out + text[begin:at], text[at + 1 :])
    return out + text[begin:]


def _chosen(condition: str, rest: str) -> str:
    depth = 0
    for at, letter in enumerate(rest):
        if letter == ":" and depth == 0:
            return f"({_choices(rest[:at])}) if ({condition}) else ({_choices(rest[at + 1 :])})"
        depth += (letter in "(?") - (letter in "):")
    raise ValueError(f"? without : in {rest!r}")
