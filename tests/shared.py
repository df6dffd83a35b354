"""Finds the folder of cases, samples and traces that the product is tried on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_dir() -> Path | None:
    """The shared folder: XDS_CONTROL_SHARED, or `shared/` beside the repository; None when absent."""
    named = os.environ.get("XDS_CONTROL_SHARED")
    for candidate in ([Path(named)] if named else []) + [REPOSITORY.parent / "shared", REPOSITORY / "shared"]:
        if candidate.is_dir():
            return candidate
    return None


def shared_path(relative: str) -> Path:
    """A file in the shared folder; skips the test, saying why, when the folder or the file is absent."""
    root = shared_dir()
    if root is None:
        pytest.skip("the shared folder of cases is not beside this checkout (set XDS_CONTROL_SHARED)")
    path = root / relative
    if not path.exists():
        pytest.skip(f"{relative} is not in the shared folder")
    return path
