"""House rules that no linter knows: who imports whom, who prints, how long modules are, what is claimed."""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path

import pytest

from sgemm_tune.compiler.sources import source_text
from sgemm_tune.kernel import ladder

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sgemm_tune"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
LONGEST = 320

UPSTAIRS = {"search", "store", "bench", "report", "cli"}
"""Parts that use the lower ones, and are never used by them."""


def _name(path: Path) -> str:
    """`sgemm_tune.cli.console` of its file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _part(module: str) -> str:
    """The part of the package that a module belongs to: `cli` of `sgemm_tune.cli.console`."""
    return [*module.split("."), ""][1]


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """Every module that a file imports anywhere, except for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _own_imports(path: Path) -> set[str]:
    """The parts of this package that a file imports."""
    return {_part(name) for name in _imports(path) if name.startswith("sgemm_tune.")} - {"__version__", ""}


@functools.cache
def _parts() -> dict[str, frozenset[str]]:
    """Which parts each part imports directly."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        part = _part(_name(path))
        if part:
            found.setdefault(part, set()).update(_own_imports(path) - {part})
    return {part: frozenset(imports) for part, imports in found.items()}


def _reachable(part: str) -> set[str]:
    # the ladder's declarations are loaded by the registry when it is first asked: no step upwards
    seen: set[str] = set()
    waiting = [part]
    while waiting:
        here = waiting.pop()
        onwards = _parts()[here] - seen - ({"stages"} if here == "registry" else set())
        seen |= onwards
        waiting += onwards
    return seen


def _users_of(library: str) -> set[str]:
    return {
        _part(_name(path))
        for path in MODULES
        if any(name.split(".")[0] == library for name in _imports(path))
    }


def test_the_graph_of_imports_was_read() -> None:
    assert {"errors", "kernel", "cli"} <= set(_parts())
    assert "kernel" in _reachable("cli")


def test_the_foundation_stands_on_nothing() -> None:
    assert _reachable("errors") == set()
    assert _reachable("problem") == {"errors"}
    assert _reachable("arch") == {"errors"}


def test_imports_point_one_way() -> None:
    circles = sorted(part for part in _parts() if part in _reachable(part))
    assert circles == []


@pytest.mark.parametrize("part", ["kernel", "stages", "compiler", "measure", "device", "model"])
def test_lower_parts_know_nothing_of_upper_ones(part: str) -> None:
    assert _reachable(part) & UPSTAIRS == set()


def test_nothing_imports_the_command_line_but_its_entry() -> None:
    users = {_name(path) for path in MODULES if "cli" in _own_imports(path) and _part(_name(path)) != "cli"}
    assert users == {"sgemm_tune.__main__"}


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("cupy", {"compiler", "device"}),
        ("cupy_backends", {"device"}),
        ("pynvml", {"device"}),
        ("optuna", {"search"}),
        ("matplotlib", {"report"}),
        ("typer", {"cli"}),
        ("rich", {"cli"}),
        ("yaml", {"store"}),
    ],
)
def test_a_library_is_imported_where_it_belongs(library: str, users: set[str]) -> None:
    found = _users_of(library)
    assert found <= users
    assert found, f"nothing imports {library} any more: take it out of here and of pyproject.toml"


def test_only_the_command_line_prints_and_exits() -> None:
    loud = []
    for path in MODULES:
        if _part(_name(path)) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit"):
                loud.append(f"{_name(path)}:{node.lineno}")
    assert loud == []


def test_modules_are_short_enough_for_one_duty() -> None:
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [_name(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []


def test_kernels_are_those_that_were_validated_on_a_gpu() -> None:
    report = ROOT / "results" / "validation.json"
    if not report.exists():
        pytest.skip("results/validation.json is not there yet: the GPU run writes it")
    validated = json.loads(report.read_text(encoding="utf-8"))
    hashes = {source: kernel["source_hash"] for source, kernel in validated["kernels"].items()}
    assert hashes == {stage.source: source_text(stage.source).digest for stage in ladder()}
    assert validated["device"]
    of_kernels = ("tests/gpu/test_stages.py", "tests/gpu/test_sanitizer.py", "tests/gpu/test_measure.py")
    assert not [name for name in validated.get("failures", ()) if name.startswith(of_kernels)]
    assert re.match(r"\d{4}-\d{2}-\d{2}", validated["date"])


_FIGURE = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:TFLOP/s|GFLOP/s)|(\d+\.\d+)\s*(?:x|×|times)\s+cuBLAS|(\d+\.\d+)\s*%"
)


def figures_in(text: str) -> set[str]:
    """Rates and ratios that a text claims, as it writes them."""
    return {next(group for group in match.groups() if group) for match in _FIGURE.finditer(text)}


def test_figures_are_recognised() -> None:
    text = "reaches 48.31 TFLOP/s, 0.94x cuBLAS or 94.2 % of it at 4096, after 205 GFLOP/s; 128x128x8 tiles"
    assert figures_in(text) == {"48.31", "0.94", "94.2", "205"}


def test_every_figure_of_the_readme_was_measured() -> None:
    evidence = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for folder in ("results", "docs")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".md", ".csv", ".json", ".txt")
    )
    claimed = figures_in((ROOT / "README.md").read_text(encoding="utf-8"))
    unproven = {
        figure for figure in claimed if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", evidence)
    }
    assert unproven == set()
