"""`firefly show` and `firefly export`: what a run has become is told without its code, and leaves it unchanged."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import firefly
from firefly.checkpoint.archive import read
from firefly.cli import main
from firefly.commands import export, loaders
from firefly.errors import FireflyError

CODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    head = nn.Flatten(), nn.Linear(3 * 16, 4), nn.ReLU(), nn.Linear(4, 3)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), *head)


def make_loaders():
    x = torch.randn(48, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, torch.arange(48) % 3), 16, shuffle=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has grown once."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "shown_here.py").write_text(CODE)
    words = ["grow", "shown_here:make_model", "--data", "shown_here:make_loaders", "--budget", "neurons=3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*words, "--every", "1", "--epochs", "2", "--steps", "2", "--out", "run", "--quiet"]) == 0
    return folder / "run"


def test_show_tells_what_is_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr().out
    content, tensors = read(run / "epoch-2")
    assert f"{content['parameters']:,} parameters" in said and "grown from shown_here:make_model" in said
    (growth,) = content["history"]
    for name, (before, after) in growth["widths"].items():
        assert [name, str(before), str(after)] in [line.split() for line in said.splitlines()]
    for name, tensor in tensors.items():
        if name.startswith("model/") and tensor.dim():
            shape = " x ".join(map(str, tensor.shape))
            line = next(line for line in said.splitlines() if line.startswith(f"{name.removeprefix('model/')} "))
            assert shape in line and line.endswith(f"{tensor.numel():,}")
    assert (
        f"{growth['parameters'][0]:,} -> {growth['parameters'][1]:,}" in said
        and "training loss after epoch 1: " in said
    )
    assert ["neurons", "after", "epoch", "0", "1"] in [line.split() for line in said.splitlines()]
    assert max(map(len, said.replace(str(run), "run").splitlines())) <= 80


def test_the_architecture_it_prints_rebuilds_the_network(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["show", str(run), "--json"]) == 0
    architecture = json.loads(capsys.readouterr().out)
    monkeypatch.syspath_prepend(run.parent)
    from shown_here import make_model  # type: ignore[import-not-found]

    model = firefly.rebuild(make_model(), architecture)
    saved = {name: tensor.shape for name, tensor in read(run / "epoch-2")[1].items()}
    assert all(saved[f"model/{name}"] == tensor.shape for name, tensor in model.state_dict().items())


def test_a_plain_checkpoint_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    firefly.save(tmp_path, nn.Linear(2, 3))
    assert main(["show", str(tmp_path)]) == 0
    assert "9 parameters" in (said := capsys.readouterr().out) and "no growth so far" in said


def test_onnx_answers_as_the_model(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(run.parent)
    assert main(["export", "run", "--to", "onnx"]) == 0
    assert "for batches of any size" in capsys.readouterr().out
    from shown_here import make_model

    model = firefly.load(run / "epoch-2", make_model()).eval()
    inputs = torch.randn(5, 1, 6, 6)
    session = onnxruntime.InferenceSession(run / "model.onnx", providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    assert torch.allclose(torch.as_tensor(answers), model(inputs), atol=1e-5)


def test_torch_export_answers_as_the_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["export", "run", "--to", "torch", "--out", str(tmp_path / "mine.pt2")]) == 0
    words = ["export", str(run / "epoch-2"), "--to", "torch", "--out", str(tmp_path / "again.pt2")]
    assert main(words) == 2 and "give --shape" in capsys.readouterr().err
    assert main([*words, "--shape", "2,1,6,6"]) == 2 and "give --model" in capsys.readouterr().err
    assert main([*words, "--shape", "2,1,6,6", "--model", "shown_here:make_model"]) == 0
    one, other = (torch.export.load(tmp_path / name).module() for name in ("mine.pt2", "again.pt2"))
    inputs = torch.randn(3, 1, 6, 6)
    assert torch.equal(one(inputs), other(inputs))


def test_a_folder_is_no_file_to_write(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    for out, said in (("run", "that is a folder"), ("nowhere/model.pt2", "there is no folder nowhere")):
        assert main(["export", "run", "--to", "torch", "--out", out]) == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_an_answer_that_is_wrong_for_other_batches_only_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    def write(model: nn.Module, call: object, path: Path, dynamic: bool) -> object:
        path.write_text("")
        return lambda given: [one * (wrong if len(one) == 3 else 1) for one in export.answer(model, given)]

    monkeypatch.setattr(export, "write_torch", write)
    with pytest.raises(FireflyError, match="answers otherwise"):
        export.export(nn.Linear(2, 2), torch.randn(2, 2), "torch", tmp_path / "model.pt2")


def test_a_file_that_cannot_be_asked_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(model: nn.Module, call: object, path: Path, dynamic: bool) -> object:
        path.write_text("")
        return lambda given: [torch.zeros(7)]

    monkeypatch.setattr(export, "write_torch", write)
    with pytest.raises(FireflyError, match=r"cannot be exported to torch: the shapes of the answers differ"):
        export.export(nn.Linear(2, 2), torch.randn(2, 2), "torch", tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_an_input_that_the_model_ignores_does_not_shift_the_others(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")

    class Ignores(nn.Module):
        def forward(self, a: torch.Tensor, unused: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - b

    call = (torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 3))
    assert export.export(Ignores(), call, "onnx", tmp_path / "model.onnx") == (0.0, "any size")


MASKED = """
import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up, self.down = nn.Embedding(9, 4), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, words, mask, labels=None):
        x = self.words(words)
        scores = (x @ x.mT).masked_fill(mask[:, None] == 0, -torch.inf)
        answers = self.down(torch.relu(self.up((scores.softmax(-1) @ x).mean(1))))
        loss = None if labels is None else nn.functional.cross_entropy(answers, labels)
        return {"answers": answers} | ({} if loss is None else {"loss": loss})


def make_batches():
    words = torch.randint(1, 9, (6, 5), generator=torch.Generator().manual_seed(0))
    return [{"words": words, "mask": torch.ones(6, 5).long(), "labels": torch.arange(6) % 2}]
"""


def test_the_inputs_it_is_tried_with_are_such_as_the_batches_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask of zeros hides all words: there are no answers to compare."""
    (tmp_path / "masked_here.py").write_text(MASKED)
    monkeypatch.chdir(tmp_path)
    words = [
        "grow",
        "masked_here:Masked",
        "--data",
        "masked_here:make_batches",
        "--loss",
        "own",
        "--budget",
        "neurons=1",
    ]
    assert main([*words, "--every", "1", "--epochs", "2", "--steps", "2", "--out", "run", "--quiet"]) == 0
    assert main(["export", "run", "--to", "torch"]) == 0
    assert "differ from the model's by at most" in capsys.readouterr().out
    recipe = json.loads((tmp_path / "run" / "fit.json").read_text())["recipe"]
    example = loaders.make_example(recipe["example"], recipe["ranges"])
    assert example["mask"].min() == 1 and 1 <= example["words"].min() < example["words"].max() <= 8


def test_keyword_inputs_and_a_batch_that_cannot_change(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask).view(2, -1)

    example = {"x": torch.randn(2, 3), "mask": torch.ones(2, 3)}
    worst, batches = export.export(Named(), example, "torch", tmp_path / "named.pt2")
    assert worst == 0 and batches == "2"


def test_a_network_that_answers_otherwise_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(model: nn.Module, call: object, path: Path, dynamic: bool) -> object:
        path.write_text("")
        return lambda given: [2 * one for one in export.answer(model, given)]

    monkeypatch.setattr(export, "write_torch", write)
    with pytest.raises(FireflyError, match="answers otherwise"):
        export.export(nn.Linear(2, 2), torch.randn(2, 2), "torch", tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("how", ["wrong", "stopped", "full"])
def test_what_was_exported_before_stays_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def write(model: nn.Module, call: object, path: Path, dynamic: bool) -> object:
        path.write_text("half")
        if how != "wrong":
            raise KeyboardInterrupt if how == "stopped" else OSError("no space left")
        return lambda given: [2 * one for one in export.answer(model, given)]

    (tmp_path / "model.pt2").write_text("whole")
    monkeypatch.setattr(export, "write_torch", write)
    with pytest.raises((FireflyError, KeyboardInterrupt)):
        export.export(nn.Linear(2, 2), torch.randn(2, 2), "torch", tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").read_text() == "whole"


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FireflyError, match=r"onnxruntime is not installed: pip install 'firefly-descent\[onnx\]'"):
        export.export(nn.Linear(2, 2), torch.randn(2, 2), "onnx", tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nowhere"], "'nowhere' is no folder"),
        (["show", "."], "holds no run"),
        (["show", "nul\0byte"], "is no folder"),
        (["export", "nowhere", "--to", "onnx"], "'nowhere' is no folder"),
        (["export", ".", "--to", "tflite"], "invalid choice"),
    ],
)
def test_what_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2 and said in capsys.readouterr().err
