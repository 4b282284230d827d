"""Fixtures for all tests: real upstream code, sandboxes made of it, and a seed that is new in every run."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

import hypothesis
import pytest

from fixtures import fetch
from tests.sandbox import make_sandbox

SEED = "CPFIX_TEST_SEED"


def pytest_configure() -> None:
    """Draw the run's seed before any worker starts: they inherit it."""
    os.environ.setdefault(SEED, str(secrets.randbits(32)))
    # a busy machine is no failure; what fails can be run again from the blob
    hypothesis.settings.register_profile("cpfix", deadline=None, max_examples=50, print_blob=True)
    hypothesis.settings.load_profile("cpfix")


def pytest_report_header() -> str:
    """How to run with the same numbers again."""
    return f"{SEED}={os.environ[SEED]}"


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Mark what runs on real wheels, so that `-m "not upstream"` is what needs no download."""
    for item in items:
        if {"upstream", "sandbox"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("upstream")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say the seed where a test that uses it fails."""
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"{SEED}={os.environ[SEED]} draws the same numbers again"))
    return report


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPFIX_STATE_DIR", raising=False)  # a developer's own, never to be written into
    monkeypatch.setenv("CPFIX_VERIFY", "none")  # most trees hold too little to be run


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number that is new in every run and differs between tests, whatever their order."""
    text = f"{os.environ[SEED]} {request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@pytest.fixture
def rng(seed: int) -> random.Random:
    """The standard library's generator, seeded with `seed`."""
    return random.Random(seed)


@pytest.fixture(scope="session")
def upstream() -> Callable[[str, str], Path]:
    """`upstream(project, version)`: the unpacked wheel in the shared cache. Read it, never write into it."""
    return fetch.path


@pytest.fixture
def sandbox(tmp_path: Path) -> Callable[..., Path]:
    """`sandbox({"nemo": "2.5.3"}, full=False, extra=())`: a site-packages folder in this test's folder."""

    def make(versions: Mapping[str, str], full: bool = False, extra: Iterable[str] = ()) -> Path:
        return make_sandbox(tmp_path, versions, full=full, extra=extra)

    return make
