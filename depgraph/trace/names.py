"""Names of GPU functions: demangled, and cut down to what every tool agrees on."""

import ctypes
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache

_MANGLED = re.compile(r"_{1,4}Z[A-Za-z0-9_$.]+\Z")
_CLONE_MARK = re.compile(r"(?<!\s)\s*\[clone [^\[\]]*\]|\.kd\Z")
_UNNAMED_SCOPE = re.compile(
    r"\(anonymous namespace\)|<unnamed>|\{anonymous\}|\{unnamed[^{}]*\}|`anonymous namespace'"
)
_OPERATOR = re.compile(
    r"\boperator\s*(?:\(\s*\)|\[\s*\]|<=>|<<=|>>=|->\*|<<|>>|->|&&|\|\||\+\+|--|[-+*/%^&|=!<>]="
    r"|[-+*/%^&|~!=<>,])"
)
_CONVERSION = re.compile(r"\boperator\s+(?=[A-Za-z_])")
_QUALIFIERS = re.compile(r"(?:\s|const\b|volatile\b|&|noexcept\b)*\Z")
_PREFIX = re.compile(r"_+Z(?P<nested>N[rVKRO]*)?(?:St|S[0-9A-Z]*_)?")
_LENGTH = re.compile(r"[1-9][0-9]{0,5}")
_CLOSING = {"(": ")", "<": ">", "{": "}", "[": "]"}
_SHIELD = str.maketrans("()[]<>", "\1\2\3\4\5\6", " ")
_UNSHIELD = str.maketrans("\0\1\2\3\4\5\6", " ()[]<>")


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """Return the C++ spelling of a mangled name; the name itself where C++ gives none."""
    if not _MANGLED.match(name):
        return name
    cxa_demangle = _cxa_demangle()
    return name if cxa_demangle is None else cxa_demangle(name) or name


@lru_cache(maxsize=4096)
def base_name(name: str) -> str:
    """Return the bare function name that all tools agree on; different kernels may share one."""
    spelled = demangle(name.strip())
    if _MANGLED.match(spelled):
        return _last_mangled_component(spelled)
    # Brackets and blanks that belong to a word are replaced, so that brackets can be counted.
    shielded = _UNNAMED_SCOPE.sub("unnamed", _CLONE_MARK.sub("", spelled))
    shielded = _OPERATOR.sub(lambda match: match.group().translate(_SHIELD), shielded)
    scopes = _without_brackets(_CONVERSION.sub("operator\0", shielded)).split("::")
    words = next((scope.split() for scope in reversed(scopes) if scope.strip()), [spelled])
    return words[-1].lstrip("*&").translate(_UNSHIELD) or spelled


def _without_brackets(name: str) -> str:
    """Drop every bracketed group, and all from the parameter list of the function on."""
    kept: list[str] = []
    open_groups: list[str] = []
    waiting = Counter[str]()  # as often as each stands in `open_groups`
    parameters_at: int | None = None
    for character in name:
        if character in _CLOSING:
            if character == "(" and not open_groups:
                parameters_at = len(kept)
            open_groups.append(_CLOSING[character])
            waiting[_CLOSING[character]] += 1
        elif not open_groups:
            kept.append(character)
        elif waiting[character] and (character != ">" or open_groups[-1] == ">"):
            closed = ""
            while closed != character:  # beyond it, a `<` that compared two numbers
                closed = open_groups.pop()
                waiting[closed] -= 1
    text = "".join(kept)
    if parameters_at is not None and _QUALIFIERS.match(text, parameters_at):
        return text[:parameters_at]
    return text


def _last_mangled_component(name: str) -> str:
    """Read the last plain identifier in front of the template arguments of a mangled name."""
    prefix = _PREFIX.match(name)
    if prefix is None:
        return name
    found = name
    position = prefix.end()
    while digits := _LENGTH.match(name, position):
        start = digits.end()
        position = start + int(digits.group())
        if position > len(name):
            break
        found = name[start:position]
        if not prefix["nested"]:
            break
    return found


@cache
def _cxa_demangle() -> Callable[[str], str | None] | None:
    library = "libc++.1.dylib" if sys.platform == "darwin" else "libstdc++.so.6"
    try:
        function = getattr(ctypes.CDLL(library), "__cxa_demangle")
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.restype = None
    free.argtypes = [ctypes.c_void_p]

    def demangle_with_library(name: str) -> str | None:
        address = function(name.encode("ascii"), None, None, None)
        if address is None:
            return None
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            free(address)

    return demangle_with_library
