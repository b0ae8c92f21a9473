"""Subjects shared by all tests: real weights, loaded once, never changed."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import pytest
import torch

import probe
from probe.subject import Subject

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tiny() -> Subject:
    return probe.load("tiny")


@pytest.fixture(scope="session")
def minilm() -> Subject:
    return probe.load("minilm")


@pytest.fixture(scope="session")
def smollm2() -> Subject:
    return probe.load("smollm2")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets, where they lie beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the public data sets are not here")
    return folder
