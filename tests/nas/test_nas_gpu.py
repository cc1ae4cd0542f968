"""On a GPU: a search and an evaluation are captured, go on after a stop, and the step sees the rate of drop-path."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firefly.cli import main
from firefly.nas import Network, find_known, train_loss
from firefly.nas.plan import Plan
from firefly.nas.searching import make_loss, search
from firefly.nas.template import Template
from firefly.training import fit
from firefly.vision.data import Images

pytestmark = pytest.mark.gpu
PLAN = Plan((8,) * 5, (4,) * 5, (4,) * 5, nodes=2, sweeps=1, every=1, step_one=1.0, score_on=1, batch=16)


def make_images(count: int = 256) -> Images:
    labels = torch.arange(count) % 10
    images = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 90
    return Images((images + 15 * labels[:, None, None, None]).to(torch.uint8), labels, 10, "cifar10")


@pytest.mark.parametrize("asleep", [False, True])
def test_a_search_is_captured(asleep: bool, tmp_path: Path) -> None:
    plan = replace(PLAN, asleep=asleep)
    assert search(make_images(), plan, folder=tmp_path, deadline=0.0, progress=False) is None
    found = search(make_images(), plan, folder=tmp_path, progress=False, graph=True)
    assert found is not None and len(found.growths) == 5
    assert all(growth["split"] + growth["new"] > 0 for growth in found.growths)


def test_both_forms_agree_here() -> None:
    """In float32, whose convolutions round to TF32, and as a captured step of bf16."""
    template = Template(nodes=2).cuda()
    images = torch.randn(8, 3, 32, 32, device="cuda")
    plain = template(images)
    template.dense = True
    assert torch.allclose(plain, template(images), rtol=0.02, atol=0.02)
    losses = []
    for dense in (False, True):
        torch.manual_seed(0)
        model = Template(nodes=2, dense=dense)
        history = fit(model, make_images(), 2, batch=32, lr=0.01, loss=make_loss(torch.device("cuda")), progress=False)
        losses.append(history[-1].loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_the_captured_step_sees_the_rate() -> None:
    def learn(rate: float) -> list[float]:
        torch.manual_seed(0)
        model = Network(find_known("darts-v2"), 3, 8, drop_path=0.9, auxiliary=True)

        def prepare(epoch: int, history: object, network: torch.nn.Module) -> None:
            model.set_drop_path(rate if epoch else 0.0)

        options = {"loss": train_loss, "each_epoch": prepare, "cutout": 8, "graph": True, "progress": False}
        history = fit(model, make_images(), 2, batch=32, lr=0.01, **options)  # type: ignore[arg-type]
        return [row.loss for row in history.epochs]

    plain, dropped = learn(0.0), learn(1.0)
    assert plain[0] == pytest.approx(dropped[0], rel=1e-3)
    assert abs(plain[1] - dropped[1]) > 0.01


def test_the_commands(tmp_path: Path) -> None:
    runs = str(tmp_path)
    assert main(["nas", "search", "--quick", "--seeds", "0", "1", "--runs", runs]) == 0
    assert main(["nas", "evaluate", "--quick", "--runs", runs]) == 0
