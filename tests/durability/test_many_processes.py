"""Eight processes of fifty writes into one table and one YAML: nothing of anybody's is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sgemm_tune.store.configs import config_path, load_config
from sgemm_tune.store.results import ResultsFile
from tests.stored import ARCH

PROCESSES, WRITES = 8, 50

_WRITER = """
import sys
from pathlib import Path
from sgemm_tune.store.configs import config_path, merge_entries, merge_predicted
from sgemm_tune.store.results import ResultsFile
from tests.stored import ARCH, entry, good_row, own_stages, prediction

directory, number = Path(sys.argv[1]), int(sys.argv[2])
table, yaml = ResultsFile(directory / "results.csv"), config_path(directory, ARCH)
with own_stages():
    for i in range(int(sys.argv[3])):
        table.append([good_row(f"{number}-{i}")])
        # five shapes each, ten times over: the last time counts
        merge_entries(yaml, ARCH, [entry(m=1 + 100 * number + i % 5, ms=1 + i)])
    merge_predicted(yaml, ARCH, [prediction(1, m=1 + number), prediction(2, m=1 + number)])
"""


def test_every_row_and_every_entry_is_there(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(number), str(WRITES)],
            cwd=root,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    frame = ResultsFile(tmp_path / "results.csv").frame()
    assert sorted(frame["row_id"]) == sorted(f"{n}-{i}" for n in range(PROCESSES) for i in range(WRITES))
    assert (frame["status"] == "ok").all()
    config = load_config(config_path(tmp_path, ARCH))
    last = range(WRITES - 5, WRITES)
    assert [(entry.m, entry.ms) for entry in config.entries] == [
        (1 + 100 * number + i % 5, 1.0 + i) for number in range(PROCESSES) for i in last
    ]
    assert [(p.m, p.rank) for p in config.predicted] == [(1 + n, r) for n in range(PROCESSES) for r in (1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("h100.yaml", "h100.yaml.lock", "results.csv", "results.csv.lock")
    ]
