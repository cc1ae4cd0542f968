"""Altered data files, a few of those that benchmarks/campaign_archives.py tries by the hundred."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "campaign_archives.py"


@pytest.fixture
def campaign():
    spec = importlib.util.spec_from_file_location("campaign_archives", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_altered_files_end_in_images_or_words(campaign):
    told = campaign.altered_archives(30)
    assert told["raw"] == [] and told["outside"] == []
    assert told["read"] > 2 and told["refused"] > 10 and told["read"] + told["refused"] == 30
    assert told["peak_bytes"] < 600_000_000


def test_the_campaign_sees_what_is_raw_and_what_is_outside(campaign, monkeypatch):
    def careless(path, folder, wanted, images):
        (folder / "elsewhere").write_text("")
        raise KeyError("raw")

    monkeypatch.setattr(campaign.download, "unpack", careless)
    told = campaign.altered_archives(6)
    assert told["raw"] and told["outside"] and "KeyError" in told["raw"][0] and "elsewhere" in told["outside"][0]
