"""The code of docs/recipes.md runs, in order, as one script."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import firefly

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("accelerate", "lightning", "transformers", "tensorboard"):
        pytest.importorskip(name)
    importlib.import_module("accelerate.state").AcceleratorState._reset_state(True)  # whatever a test before has chosen
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), scope)
        found.append(dict(scope))
    plain, resumed, accelerated, loaded, lit, carrying, hugging, tied, logged = found[1:]
    for grown, fresh in ((plain["model"], resumed["fresh"]), (accelerated["model"], loaded["small"])):
        assert firefly.architecture(fresh)["history"] and len(dict(grown.named_parameters())) == 6
        states = grown.state_dict(), fresh.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert plain["average"].module[0].out_features == plain["model"][0].out_features > 6
    for now in (resumed["fresh_optimizer"], loaded["optimizer"]):
        assert {p.shape for p in now.state} == {state["exp_avg"].shape for state in now.state.values()}
    assert len(lit["growth"].history) == 2 and lit["net"].net[0].out_features > 6
    assert firefly.architecture(carrying["net"])["widths"]["net.0"] > 6
    assert any((tmp_path / "tensorboard").iterdir()) and logged["model"][0].out_features > 6
    assert (
        sum(p.numel() for p in hugging["gpt"].parameters())
        > sum(p.numel() for p in hugging["trainer"].model.parameters()) - 1
    )
    assert int(capsys.readouterr().out.splitlines()[-1]) == tied["model"].config.n_inner > 24
