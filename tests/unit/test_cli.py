"""The command line: help, examples, errors and exit codes, JSON, and what each command leaves behind."""

from __future__ import annotations

import errno
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sgemm_tune import __version__
from sgemm_tune.arch import ARCHS, Arch
from sgemm_tune.cli import app, bench, doctor, report, search, stages
from sgemm_tune.cli import console as console_module
from sgemm_tune.cli.options import SearchRequest, stages_from
from sgemm_tune.cli.searching import announced
from sgemm_tune.kernel import ladder, stage_named
from sgemm_tune.problem import Precision
from sgemm_tune.store.configs import load_config
from sgemm_tune.store.results import ResultsFile
from tests.command_line import Cli, Ran

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"search": search, "bench": bench, "report": report, "stages": stages, "doctor": doctor}
HEAVY = {"cupy", "optuna", "pandas", "matplotlib", "numpy", "sqlalchemy"}
PLAN = "search --arch sm_90 --size 256 --stage naive --stage coalesced --trials 3 --jobs 1"


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below a directory with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, name: str) -> None:
    ran = cli(f"{name} --help")
    assert (ran.code, ran.err) == (0, "")
    assert COMMANDS[name].EXAMPLE in ran.out
    assert "Usage: sgemm-tune" in ran.out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "report"])
def test_json_is_offered_where_a_script_would_want_it(cli: Cli, name: str) -> None:
    assert "--json" in cli(f"{name} --help").out


def test_the_program_lists_its_commands(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    assert all(re.search(rf"^[│ ]+{name} ", shown.out, re.MULTILINE) for name in COMMANDS)
    bare = cli("")
    assert bare.code == 2
    assert "Usage: sgemm-tune" in bare.out


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    assert cli("--version") == Ran(0, f"sgemm-tune {__version__}\n", "")


def examples() -> list[str]:
    """Every `sgemm-tune ...` line of the README's code blocks, and every command's own example."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    found = [line.split(" && ")[-1].removeprefix(".venv/bin/") for line in lines]
    own = [module.EXAMPLE for module in COMMANDS.values()]
    return sorted(
        {line.partition(" #")[0].strip() for line in [*found, *own] if line.startswith("sgemm-tune ")}
    )


def test_examples_were_found() -> None:
    assert len(examples()) > len(COMMANDS)
    assert {line.split()[1] for line in examples()} >= set(COMMANDS)


@pytest.mark.parametrize("line", examples())
def test_examples_parse(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    commands: Any = typer.main.get_command(app)
    commands.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("arguments", [[], ["search"], ["bench"], ["report"], ["stages"], ["doctor"]])
def test_help_loads_nothing_heavy_and_is_quick(arguments: list[str]) -> None:
    program = (
        "import sys, time\n"
        "from sgemm_tune.cli import run\n"
        f"assert run({[*arguments, '--help']!r}) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        f"print(sorted(loaded & {HEAVY!r}), time.process_time(), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, _, seconds = done.stderr.strip().rpartition(" ")
    assert heavy == "[]"
    assert float(seconds) < 2.0


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        f"import sgemm_tune, sys; sys.exit(bool({HEAVY!r} & {{n.partition('.')[0] for n in sys.modules}}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_python_m_is_the_same_program() -> None:
    command = [sys.executable, "-m", "sgemm_tune", "--version"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        == f"sgemm-tune {__version__}\n"
    )


def test_the_help_of_search_names_the_true_choices_and_defaults(cli: Cli) -> None:
    from sgemm_tune.model.plan import PLAN_SECONDS, PLAN_TRIALS
    from sgemm_tune.search.samplers import SAMPLERS
    from sgemm_tune.search.types import SearchSettings

    text = cli("search --help").out
    options = dict(re.findall(r"^│ (--[a-z-]+) (.*?)(?=^│ --|^╰)", text, re.MULTILINE | re.DOTALL))
    defaults = SearchSettings()
    assert all(re.search(rf"\b{name}\b", options["--sampler"]) for name in SAMPLERS)
    assert f"[default: ({defaults.sampler})]" in options["--sampler"]
    assert f"[default: ({defaults.trials}, or {PLAN_TRIALS} for a plan)]" in options["--trials"]
    assert defaults.timeout is None
    assert f"[default: (none, or {PLAN_SECONDS:.0f} for a plan)]" in options["--timeout"]
    assert "[default: (4096)]" in options["--size"]


def test_the_readme_opens_with_two_commands_for_a_bare_machine() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = text.partition("## What it does")[0]
    commands = re.findall(r"^```sh\n(.*?)\n```", opening, re.MULTILINE | re.DOTALL)
    assert [command.count("\n") for command in commands] == [0, 0]
    first, second = (command.split(" && ") for command in commands)
    assert first[:-1] == second[:-1], "both set up the same environment"
    assert first[-1].endswith("sgemm-tune search --arch sm_90 --size 4096")
    assert second[-1].endswith("pytest")
    picked = re.search(r"grep .*'(\^.*\$)' README\.md", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert picked is not None
    assert re.findall(picked.group(1), text, re.MULTILINE) == [commands[1]], ".ci/run takes the second"


# ------------------------------------------------------------------------------------------------ errors

MISSPELT = "schema: 1\narch: sm_90\nentrys: []\n"
GOOD = "schema: 1\narch: sm_90\nentries: []\npredicted: []\n"

BAD = [
    ("search --arch sm_999", 2, r"unknown architecture 'sm_999'.*sm_90 \(h100\).*sm_121"),
    ("search --arch ''", 2, "unknown architecture"),
    ("search --size 0", 2, "size is 0: .*at least 1"),
    ("search --size -1", 2, "size is -1: .*at least 1"),
    ("search --size 4096 --size -7", 2, "size is -7"),
    ("search --size many", 2, "--size.*valid integer"),
    ("search --shape 4096x4096", 2, "shape is '4096x4096': give MxNxK"),
    ("search --shape 0x1x1", 2, "each at least 1"),
    ("search --stage vectorised", 2, "unknown stage 'vectorised'.*vectorized"),
    ("search --stage tf32_mma --precision fp32", 2, "tf32_mma is tf32, not fp32: give --precision tf32"),
    ("search --stage naive --precision tf32", 2, "naive is fp32, not tf32"),
    ("search --stage naive --stage tf32_mma", 2, "different precisions do not compete"),
    ("search --precision fp8", 2, "unknown precision 'fp8'.*fp32, tf32"),
    ("search --trials 0", 2, "--trials is 0: give at least 1"),
    ("search --timeout -1", 2, "--timeout is -1: give more than 0"),
    ("search --timeout 0", 2, "--timeout is 0"),
    ("search --timeout nan", 2, "--timeout is nan"),
    ("search --jobs 0", 2, "--jobs is 0"),
    ("search --seed -1", 2, "--seed is -1"),
    ("search --device -1", 2, "--device is -1"),
    ("search --sampler annealing", 2, "unknown sampler 'annealing'.*tpe"),
    ("search --configs-dir taken", 1, "cannot write to taken: .* is no directory"),
    ("search --results-dir taken/results", 1, "cannot write to taken/results: .*taken is no directory"),
    ("search --nope", 2, "No such option.*--nope"),
    ("search surplus", 2, "unexpected extra argument"),
    ("bench", 2, "nothing to measure: give --config FILE, --ladder or both"),
    ("bench --config configs/h100.yaml --size 256", 2, "--size and --stage restrict the ladder"),
    ("bench --ladder --size 0", 2, "size is 0"),
    ("bench --ladder --stage none", 2, "unknown stage 'none'"),
    ("bench --ladder --seed -1", 2, "--seed is -1"),
    ("bench --ladder --results-dir taken", 1, "taken is no directory"),
    ("bench --config missing.yaml", 1, "missing.yaml: cannot be read"),
    ("bench --config misspelt.yaml", 1, r"misspelt.yaml:3: entrys: is no known key: did you mean 'entries'"),
    ("bench --config configs/h100.yaml", 1, "GPU|driver"),
    ("bench --ladder", 1, "GPU|driver"),
    ("bench --config configs/h100.yaml --json", 1, "GPU|driver"),
    ("report", 1, "nothing to report"),
    ("report --results-dir taken", 1, "taken"),
    ("stages --arch hopper2", 2, "unknown architecture 'hopper2'"),
    ("stage", 2, "No such command 'stage'"),
]


@pytest.mark.parametrize(("line", "code", "words"), BAD, ids=[line for line, _, _ in BAD])
def test_bad_input_gets_one_line_and_changes_no_file(
    cli: Cli, here: Path, line: str, code: int, words: str
) -> None:
    (here / "taken").write_text("a file", encoding="utf-8")
    (here / "misspelt.yaml").write_text(MISSPELT, encoding="utf-8")
    (here / "configs").mkdir()
    (here / "configs" / "h100.yaml").write_text(GOOD, encoding="utf-8")
    before = snapshot(here)
    ran = cli(line)
    assert ran.code == code
    assert ran.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", ran.err)
    assert re.search(words, ran.err)
    assert snapshot(here) == before


def test_a_plan_refuses_a_damaged_file_before_it_compiles(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgemm_tune.cli.planning.plan", _never)
    (here / "configs").mkdir()
    (here / "configs" / "h100.yaml").write_text(MISSPELT, encoding="utf-8")
    before = snapshot(here)
    ran = cli(PLAN)
    assert ran.code == 1
    assert "did you mean 'entries'" in ran.err
    assert snapshot(here) == before


def _never(*arguments: object, **options: object) -> None:
    raise AssertionError("must not be called")


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "results.csv"), 1, "results.csv: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1, "/root/x: Permission denied"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, words: str
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr("sgemm_tune.cli.planning.plan", refuse)
    ran = cli(PLAN)
    assert ran.code == code
    assert re.fullmatch(rf"error: [^\n]*{words}[^\n]*\n", ran.err)


def test_a_fault_of_ours_keeps_its_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgemm_tune.cli.planning.plan", _never)
    with pytest.raises(AssertionError, match="must not be called"):
        cli(PLAN)


# -------------------------------------------------------------------------------------------- plan, report


def test_without_a_gpu_search_says_so_first_and_plans(cli: Cli, here: Path) -> None:
    ran = cli(PLAN)
    assert ran.code == 0
    first, second = ran.out.splitlines()[:2]
    assert re.fullmatch(r"cannot measure: .*(GPU|driver).*; planning for sm_90 instead", first)
    assert second.startswith("Predicted, never run: fp32 256x256x256 on NVIDIA H100")
    assert "sgemm-tune bench --config configs/h100.yaml" in ran.out
    assert "dropped: " in ran.out
    config = load_config(here / "configs" / "h100.yaml")
    assert config.entries == []
    assert [entry.rank for entry in config.predicted] == [1, 2, 3]
    frame = ResultsFile(here / "results" / "results.csv").frame()
    assert set(frame["source"]) == {"predicted"}
    assert frame["ms"].isna().all()
    assert len(frame) == 3
    assert cli(PLAN).code == 0
    assert len(ResultsFile(here / "results" / "results.csv").frame()) == 3, "the same plan adds no rows"


def test_a_plan_as_json_is_one_document_and_report_shows_it(cli: Cli, here: Path) -> None:
    ran = cli(f"{PLAN} --shape 128x64x32 --json")
    assert ran.code == 0
    planned = json.loads(ran.out)
    assert (planned["mode"], planned["arch"]) == ("predicted", "sm_90")
    assert [result["shape"] for result in planned["results"]] == ["256x256x256", "128x64x32"]
    for result in planned["results"]:
        assert result["source"] == "predicted"
        assert result["shortlist"][0]["predicted_ms"] > 0
        assert "ms" not in result["shortlist"][0]
    assert "cannot measure" in ran.err

    shown = cli("report --json")
    assert shown.code == 0
    document = json.loads(shown.out)
    assert [section["predicted"] for section in document["sections"]] == [True]
    assert all(Path(file).is_file() for file in document["files"])
    printed = cli("report --output elsewhere")
    assert "predicted, never run" in printed.out
    assert (here / "elsewhere" / "report.md").is_file()


@pytest.mark.parametrize(("arch", "file"), [("sm_100", "b200"), ("rtx5090", "rtx5090"), ("12.1", "gb10")])
def test_a_plan_is_kept_under_its_architecture(cli: Cli, here: Path, arch: str, file: str) -> None:
    assert cli(f"search --arch {arch} --size 64 --stage naive --trials 1").code == 0
    assert [path.name for path in (here / "configs").glob("*.yaml")] == [f"{file}.yaml"]


def test_a_plan_without_a_candidate_fails_and_stores_no_shortlist(cli: Cli, here: Path) -> None:
    ran = cli("search --size 64 --stage naive --timeout 0.001")
    assert ran.code == 1
    assert "no candidate is left, and nothing was stored as a shortlist" in ran.out
    assert not (here / "configs" / "h100.yaml").exists()


def test_without_arch_and_gpu_the_plan_is_for_hopper(cli: Cli) -> None:
    assert "planning for sm_90 instead" in cli("search --size 64 --stage naive --trials 1").out


def test_directories_can_be_chosen(cli: Cli, here: Path) -> None:
    line = "search --size 64 --stage naive --trials 1 --configs-dir a/b --results-dir c"
    assert cli(line).code == 0
    assert (here / "a" / "b" / "h100.yaml").is_file()
    assert (here / "c" / "results.csv").is_file()
    assert {path.name for path in here.iterdir()} == {"a", "c"}


# ---------------------------------------------------------------------------------------------- stages


def test_stages_lists_the_ladder(cli: Cli) -> None:
    shown = cli("stages")
    assert shown.code == 0
    listed = json.loads(cli("stages --arch h100 --json").out)
    assert listed["arch"] == "sm_90"
    assert [stage["name"] for stage in listed["stages"]] == [stage.name() for stage in ladder()]
    for stage in listed["stages"]:
        assert stage["legal"] > 0
        assert stage["name"] in shown.out
        assert stage["precision"] in shown.out


def test_stages_named_decide_the_precision() -> None:
    precision, found = stages_from(["tf32_mma"], None)
    assert (precision, [stage.name() for stage in found]) == (Precision.TF32, ["tf32_mma"])
    precision, found = stages_from(None, None)
    assert precision is Precision.FP32
    assert {stage.precision for stage in found} == {Precision.FP32}
    assert "tf32_mma" not in [stage.name() for stage in found]


def test_each_shape_has_the_stages_that_suit_it_unless_they_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[SearchRequest] = []

    def note(request: SearchRequest, arch: Arch, *, as_json: bool) -> None:
        requests.append(request)

    monkeypatch.setattr("sgemm_tune.cli.planning.run_plan", note)
    assert cli("search --arch sm_90 --shape 4096x16x512 --shape 8192x64x64 --size 1024").code == 0
    assert cli("search --arch sm_90 --size 1024 --stage tma --stage skinny").code == 0
    by_shape, named = [
        {problem.shape: [stage.name() for stage in stages] for problem, stages in request.asked.items()}
        for request in requests
    ]
    assert by_shape["4096x16x512"] == [*by_shape["1024x1024x1024"], "skinny"]
    assert "skinny" not in by_shape["1024x1024x1024"]
    assert named == {"1024x1024x1024": ["tma", "skinny"]}

    several, alone = (announced(request, ARCHS["sm_90"]) for request in requests)
    assert [line.partition(" at ")[2] for line in several] == ["1024x1024x1024", "4096x16x512, 8192x64x64"]
    legal = sum(len(stage_named(name).legal(ARCHS["sm_90"])) for name in ("tma", "skinny"))
    assert alone == [f"{legal} fp32 configurations of tma, skinny"]


# --------------------------------------------------------------------------------------------- console


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.73456, "2.735"),
        (0.0079123, "0.007912"),
        (152.23, "152.2"),
        (12345.6, "12346"),
        (0.0, "-"),
        (None, "-"),
    ],
)
def test_times_have_four_digits_whatever_their_size(value: float, text: str) -> None:
    assert console_module.milliseconds(value) == text


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    console_module.print_json({"a": float("nan"), "b": Precision.TF32, "c": (Path("x"), {"d": float("inf")})})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": "tf32", "c": ["x", {"d": None}]}


def test_reasons_are_counted_most_frequent_first() -> None:
    assert console_module.counted({"spill": 2, "wrong": 5, "rules": 0}) == "5 wrong, 2 spill"
    assert console_module.counted({}) == "none"
