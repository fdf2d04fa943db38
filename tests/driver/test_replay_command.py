"""What the commands over recorded files say where they are given nothing, or no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvshare_research.driver import replay
from kvshare_research.report import sweep


def test_no_log_a_missing_log_and_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([]) == 2
    assert "at least one log" in capsys.readouterr().err
    assert replay.main([str(tmp_path / "none.log")]) == 1
    told = capsys.readouterr().err
    assert "No such file" in told
    assert "damaged" not in told
    (tmp_path / "bad.log").write_bytes(b"nothing")
    assert replay.main([str(tmp_path / "bad.log")]) == 1
    assert "damaged" in capsys.readouterr().err
    for main in (replay.main, sweep.main):
        assert main(["--help"]) == 0
        assert capsys.readouterr().out.startswith("python -m kvshare_research.")
