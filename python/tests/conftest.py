"""Set-up of all tests."""

import importlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> None:
    """Lets tests press Ctrl-C, which a process that was started in the background ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs each test in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def package() -> Callable[[str], ModuleType]:
    """Imports a package that Grove itself does not need; where it is missing, the test is skipped.

    ``GROVE_REQUIRE_PACKAGES=1`` makes that a failure.
    """
    return importlib.import_module if os.environ.get("GROVE_REQUIRE_PACKAGES") == "1" else pytest.importorskip
