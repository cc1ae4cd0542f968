"""Everything that can be wrong with the words of `firefly grow`: one line that says what, and the way out."""

import sys
from pathlib import Path

import pytest

from firefly.cli import main

ODD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(32, 4), torch.arange(32) % 3
fine = lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
shape = lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 3))
frozen = lambda: fine().requires_grad_(False)
single = lambda: nn.Linear(4, 3)
a_class = lambda: nn.Linear
loaders = lambda: (DataLoader(TensorDataset(x, y), 8), DataLoader(TensorDataset(x, y), 8))
tensors = lambda: (x, y)
once = lambda: (batch for batch in [(x, y)])
empty = lambda: []
words = lambda: "cifar10"
samples = lambda: (TensorDataset(x, y), TensorDataset(x, y))
three = lambda: (*loaders(), loaders()[0])
classes = lambda: [(x, y + 5)]
nothing = lambda: None
strange = lambda: {"training": [(x, y)]}
mixed = lambda: {"train": [(x, y)], "valid": [(x, y)]}
numbers = lambda: [5, 6]
alone = lambda: [x]
floats = lambda: [(x, torch.randn(32, 3))]
columns = lambda: [(x, torch.randn(32, 1))]
infinite = lambda: [(x * torch.inf, y)]
bad_test = lambda: ([(x, y)], [])
wide_test = lambda: ([(x, y)], [(torch.randn(4, 5), y[:4])])
named = lambda: [{"inputs": x, "labels": y}]
yes_or_no = lambda: [(x, torch.randn(32) > 0)]
scalar = lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
normed = lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
leftover = lambda: [(x[:8], y[:8]), (x[:1], y[:1])]
needs = lambda size: [(x, y)]
a_model = fine()
meta = lambda: fine().to("meta")


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = fine()

    def forward(self, x):
        return {"logits": self.inner(x)}


class Torn(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, place):
        if place == 20:
            raise OSError("the disk is torn")
        return x[place], y[place]


torn = lambda: DataLoader(Torn(), 8, num_workers=1)
whole = lambda: [(x, y.float())]


def raises():
    raise KeyError("inner")


class Breaks:
    def __iter__(self):
        raise ValueError("no file")


breaks = Breaks
loss = lambda model, batch: model(batch[0])
late = lambda model, batch: batch[5]
step = 5
"""
GROW = ["grow", "odd_here:fine", "--data", "odd_here:loaders", "--every", "1", "--epochs", "2", "--out", "run"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd_here.py").write_text(ODD)
    (tmp_path / "lacks.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "a-file").write_text("text")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_here", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "nowhere_at_all:make"}, "there is no module 'nowhere_at_all' (not in "),
        ({"model": "lacks:make"}, "lacks imports it: install a_package_that_is_not_there"),
        ({"model": "odd_here.py:fine"}, "e.g. odd_here:fine"),
        ({"model": "./odd_here.py:fine"}, "e.g. odd_here:fine"),
        ({"model": "odd_here"}, "write MODULE:FUNCTION"),
        ({"model": "odd_here:fin"}, "did you mean fine?"),
        ({"model": "odd_here:qqqqq"}, "it has "),
        ({"model": "odd_here:step"}, "is a int, not a function"),
        ({"model": "odd_here:words"}, "must return an nn.Module, not str"),
        ({"model": "odd_here:a_class"}, "not type itself: give it brackets"),
        ({"model": "odd_here:raises"}, "raised KeyError: 'inner' (in odd_here.py, line "),
        ({"model": "odd_here:shape"}, "float32 [8, 4], int64 [8]"),
        ({"model": "odd_here:frozen"}, "unfreeze some"),
        ({"model": "odd_here:single"}, "nothing can grow"),
        ({"--data": "odd_here:nothing"}, "are a NoneType, not a DataLoader or a list"),
        ({"--data": "odd_here:tensors"}, "return DataLoader(TensorDataset("),
        ({"--data": "odd_here:once"}, "can be read only once"),
        ({"--data": "odd_here:empty"}, "the loader is empty"),
        ({"--data": "odd_here:bad_test"}, "the test batches are none"),
        ({"--data": "odd_here:words"}, "are a str"),
        ({"--data": "odd_here:samples"}, "return DataLoader(TensorDataset(...), 128, shuffle=True)"),
        ({"--data": "odd_here:three"}, "returned 3 things: return a loader, a pair (train, test)"),
        ({"--data": "odd_here:classes"}, "answers float32 [32, 3] and the targets int64 [32]: Target "),
        ({"--data": "odd_here:classes"}, "there are 3 answers, for classes from 0 on, and a target is 7"),
        ({"--data": "odd_here:whole"}, "classes are whole numbers: targets.long(); for numbers to be met there is"),
        ({"model": "odd_here:Pair"}, "answers (dict) and the targets int64 [8]: "),
        ({"model": "odd_here:Pair"}, "takes what it needs of them, --loss MODULE:FUNCTION"),
        ({"model": "odd_here:a_model"}, "is a Sequential, not a function: name one that makes it"),
        ({"model": "odd_here:meta"}, "the model cannot be taken to cpu: Cannot copy out of meta tensor"),
        ({"--loss": "nll"}, "--loss nll is for log-probabilities, which are below 0; cross_entropy takes scores"),
        ({"--loss": "ce"}, "known are cross_entropy, mse"),
        ({"--budget": "parameters=0.3"}, "a share is written parameters=30%"),
        (
            {"--budget": "parameters=7"},
            "that is 7 parameters, and one more neuron costs 8 or more (0): give parameters=8",
        ),
        ({"--budget": "parameters=1%"}, "that is 0 parameters, and one more neuron costs 8"),
        ({"--budget": "neurons=2,flops=13"}, "give flops=14 at least"),
        ({"--budget": "multiples=8"}, "join it, e.g. neurons=64,multiples=8"),
        ({"--budget": "layers=2"}, "no layer is dormant, so that limits nothing: add --deepen"),
        ({"--budget": "neurons=2,layers=2"}, "no layer is dormant"),
        ({"--data": "odd_here:floats", "--loss": "nll"}, "answers float32 [32, 3] and the targets float32 [32, 3]"),
        ({"--data": "odd_here:strange"}, "returned a dict with training"),
        ({"--data": "odd_here:mixed"}, "a dict with train, valid"),
        ({"--data": "odd_here:numbers"}, "make it (inputs, targets)"),
        ({"--data": "odd_here:needs"}, "works without arguments"),
        ({"--data": "odd_here:breaks"}, "raised ValueError: no file (in odd_here.py, line "),
        ({"--data": "odd_here:columns", "--loss": "mse"}, "compares them number by number"),
        ({"--data": "odd_here:columns", "--loss": "mse"}, "give targets of that shape"),
        ({"model": "odd_here:scalar", "--data": "odd_here:yes_or_no", "--loss": "bce"}, "targets.view(32, 1)"),
        ({"--data": "odd_here:alone"}, "a batch is a Tensor, not (inputs, targets): --loss own for models that"),
        ({"--data": "odd_here:named"}, "a batch is a dict, not (inputs, targets): --loss own for models that"),
        ({"--data": "odd_here:wide_test"}, "on the first batch of the test, (float32 [4, 5], int64 [4]), raised"),
        ({"--data": "odd_here:infinite"}, "scale the inputs"),
        ({"--loss": "cross-entropy"}, "known are cross_entropy, mse"),
        ({"--loss": "wrong"}, "known are cross_entropy, mse"),
        ({"--loss": "odd_here:step"}, "no function loss(model, batch)"),
        ({"--loss": "odd_here:loss"}, "shape"),
        ({"--loss": "odd_here:late"}, "raised IndexError"),
        ({"--loss": "own"}, "--loss own on the first batch, (float32 [8, 4], int64 [8]), raised TypeError"),
        ({"--budget": "200k"}, "'200k' is no budget; write parameters=200k"),
        ({"--budget": "parameter=200k"}, "did you mean parameters=200k?"),
        ({"--budget": "parameters=many"}, "'many' is no amount of parameters"),
        ({"--budget": "parameters="}, "is no amount"),
        ({"--budget": "parameters=0"}, "must be above 0"),
        ({"--budget": "parameters=-5"}, "is no amount"),
        ({"--budget": "multiples=2.5"}, "is no amount of multiples"),
        ({"--budget": "parameters=10,"}, "'' is no budget"),
        ({"--budget": ""}, "'' is no budget"),
        ({"--every": "2"}, "it would never grow"),
        ({"--every": "0"}, "--every 0"),
        ({"--epochs": "0"}, "--epochs 0"),
        ({"--times": "0"}, "--times 0"),
        ({"--new": "-1"}, "--new -1"),
        ({"--new": "0", "--method": "gradmax"}, "only adds brand-new"),
        ({"--new": "3", "--method": "splitting"}, "only splits"),
        ({"--seed": "-1"}, "--seed -1"),
        ({"--lr": "-1"}, "--lr -1"),
        ({"--lr": "nan"}, "--lr nan"),
        ({"--weight-decay": "inf"}, "--weight-decay inf"),
        ({"--optimizer": "sgdd"}, "did you mean sgd?"),
        ({"--optimizer": "magic"}, "known are sgd, adam, adamw"),
        ({"--optimizer": "odd_here:raises"}, "raised TypeError"),
        ({"--optimizer": "odd_here:step"}, "raised TypeError"),
        ({"--optimizer": "odd_here:list"}, "has no 'list'"),
        ({"--optimizer": "torch.optim:LBFGS"}, "LBFGS"),
        ({"--schedule": "sine"}, "cosine, step, constant"),
        ({"--method": "luck"}, "method='luck': give firefly.baselines.…(), or a name: fast-splitting, firefly"),
        ({"--method": "gradmx"}, "did you mean 'gradmax'?"),
        ({"--method": "nash"}, "call firefly.baselines.nash(model, loss, batches, example="),
        ({"--method": "autogrow"}, "call firefly.baselines.autogrow(model, loss, batches, example="),
        ({"--evry": "3"}, "there is no option --evry; did you mean --every?"),
        ({"--zzzzzz": "3"}, "there is no option --zzzzzz (help: firefly grow --help)"),
        ({"--every": "ten"}, "argument --every: invalid int value: 'ten' (help: firefly grow --help)"),
        ({"--device": "quantum"}, "quantum"),
        ({"--out": "a-file"}, "--out a-file is a file"),
        ({"--out": "a-file/inside"}, "a-file"),
        ({"--out": "full"}, "holds no run, but thesis.tex"),
        ({"--out": "nul\0byte"}, "nul"),
        ({"--data": None}, "the following arguments are required: --data (help: firefly grow --help)"),
    ],
    ids=lambda value: "+".join(f"{key} {text}" for key, text in value.items()) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_in_words(
    here: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str | None], said: str
) -> None:
    words = [change.get("model") or GROW[1], *GROW[2:]]
    for key, value in change.items():
        if key == "model":
            continue
        if key in words:
            place = words.index(key)
            del words[place : place + 2]
        words += [key, value] if value is not None else []
    try:
        code = main(["grow", *words, "--quiet"])
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    assert code == 2 and said in printed.err and "Traceback" not in printed.err
    assert printed.err.startswith("firefly") and printed.err.count("\n") == 1
    assert not (here / "run").exists() and (here / "full" / "thesis.tex").exists()


def test_a_batch_that_the_model_refuses_in_the_middle_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch norm cannot learn from one sample, and the last batch has one."""
    words = ["grow", "odd_here:normed", *GROW[2:], "--quiet", "--data", "odd_here:leftover", "--budget", "neurons=1"]
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert "batch 2 of epoch 1, (float32 [1, 4], int64 [1]), raised ValueError: Expected more than 1" in printed
    assert printed.count("\n") == 1


def test_what_a_worker_of_the_loader_raised_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grow", "odd_here:fine", *GROW[2:], "--quiet", "--data", "odd_here:torn"]) == 2
    assert "the loader raised OSError: the disk is torn" in capsys.readouterr().err


def test_a_device_that_is_not_here_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Known to torch, but not in this build or machine."""
    assert main([*GROW, "--quiet", "--device", "xla"]) == 2
    assert "the model cannot be taken to xla: " in capsys.readouterr().err


def test_a_folder_with_another_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GROW, "--steps", "2", "--quiet"]) == 0
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    for more, said in (
        (["--seed", "5"], "made with seed=0, this call has 5"),
        (["--budget", "neurons=5"], "made with budget='parameters=30%', this call has 'neurons=5'"),
        (["--epochs", "3"], "made with epochs=2, this call has 3"),
        (["--data", "odd_here:floats"], "made with data="),
    ):
        assert main([*GROW, "--steps", "2", "--quiet", *more]) == 2
        printed = capsys.readouterr().err
        assert said in printed and "another folder, to start anew" in printed
    assert before == {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
