"""`load` does all or nothing for model, optimiser, grower and random state, and says in words what it cannot use."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from runs import OPTIMIZERS, Grower, Mlp, fingerprint, make_run, refuses, same
from torch import nn

import firefly
from firefly.checkpoint import load, save
from firefly.checkpoint.archive import hash_json
from firefly.errors import FireflyError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from attacks.interrupts import Aim, interrupt


@pytest.fixture
def run(tmp_path):
    model, optimizer = make_run(OPTIMIZERS["Adam"])
    save(tmp_path / "run", model, optimizer, Grower([1]))
    return tmp_path / "run"


def rewrite(folder, change):
    """Alter the JSON of a checkpoint, with a checksum that fits."""
    content = json.loads((folder / "checkpoint.json").read_text())
    content.pop("checksum")
    change(content)
    (folder / "checkpoint.json").write_text(json.dumps(content | {"checksum": hash_json(content)}))


def make_fresh():
    model = Mlp()
    return model, torch.optim.Adam(model.parameters(), lr=0.5), Grower([2])


# ---- what cannot be used ---------------------------------------------------------------------------------------------


def set_at(*path, value):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


ALTERED = {
    "schema": (set_at("schema", value=float("inf")), "altered"),
    "schema as text": (set_at("schema", value="1"), "altered"),
    "file": (set_at("file", value="../../etc/passwd"), r"content\['file'\] = '\.\./\.\./etc/passwd'"),
    "file with a zero": (set_at("file", value="\0"), r"content\['file'\]"),
    "strides": (set_at("strides", "model/fc1.weight", value=[1, 1]), "fc1.weight' has no strides that fit"),
    "negative strides": (set_at("strides", "model/fc1.weight", value=[-4, 1]), r"strides.*fc1\.weight.*-4"),
    "no strides": (set_at("strides", value={}), "no strides"),
    "attributes": (set_at("attributes", "fc1", "in_features", value="4"), r"in_features'\] = '4'"),
    "ties": (set_at("ties", value={"fc1.bias": "nothing"}), r"ties to tensors that it lacks: fc1\.bias"),
    "ties as a list": (set_at("ties", value=[]), r"content\['ties'\] = \[\]"),
    "a lost tensor": (set_at("optimizer", "state", "$dict", 0, 1, "exp_avg", value={"$tensor": "x"}), "means nothing"),
    "a wrong tensor": (
        set_at("optimizer", "state", "$dict", 0, 1, "exp_avg", value={"$tensor": "model/fc1.weight"}),
        r"exp_avg of fc2\.bias",
    ),
    "a number that is none": (set_at("grower", "history", value={"$float": "much"}), "means nothing"),
    "unhashable keys": (set_at("grower", value={"$dict": [[[], 1]]}), "means nothing"),
    "groups": (set_at("optimizer", "param_groups", value=[]), "do not fit its names"),
    "numbers of parameters": (set_at("optimizer", "param_groups", 0, "params", value=[5, 4, 3, 2, 1, 0]), "do not fit"),
    "a rate": (set_at("optimizer", "param_groups", 0, "lr", value="fast"), "lr='fast' in group 0.*has 0.5"),
    "betas": (set_at("optimizer", "param_groups", 0, "betas", value=[0.9]), r"betas=\[0.9\]"),
    "state of no parameter": (set_at("optimizer", "state", "$dict", 0, 0, value=77), "parameter 77 of 6"),
    "steps": (
        set_at("optimizer", "state", "$dict", 0, 1, "step", value="many"),
        "counts the steps of fc2.bias by .many",
    ),
    "an optimizer": (set_at("optimizer", value=3), "optimizer = 3"),
    "a grower": (set_at("grower", value=[]), r"does not fit the given Grower \(TypeError"),
    "layers": (set_at("deeper", value=[{"path": "fc1"}]), r"deeper'\]\[0\]\['path'\] = 'fc1'"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_checkpoint_is_refused_by_name(run, what):
    change, words = ALTERED[what]
    rewrite(run, change)
    refuses(run, words, *make_fresh())


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"schema": 1e999}', '{"schema": 1' + "0" * 5000 + "}"]
)
def test_json_that_python_cannot_read_is_refused(run, text):
    (run / "checkpoint.json").write_text(text)
    refuses(run, "altered", *make_fresh())


LAYER = {"path": "fc1.deeper.0", "channels": 9, "space": 0, "kernel": 1, "norm": False, "activation": "ReLU"} | {
    "dtype": "float32"
}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("activation", "Linear", "activation 'Linear'"),
        ("activation", "Nothing", "activation 'Nothing'"),
        ("activation", "functional", "activation 'functional'"),
        ("dtype", "int64", "dtype 'int64'"),
        ("dtype", "randn", "dtype 'randn'"),
        ("channels", -1, "channels"),
        ("space", 4, "space"),
        ("path", "fc1.deeper.3", r"the layer fc1\.deeper\.3 but none before it"),
        ("path", "nowhere.deeper.0", r"of another model|none of"),
    ],
)
def test_altered_layers_are_refused_by_name(tmp_path, key, value, words):
    model = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
    firefly.deepen(model, torch.randn(2, 4), sites=["0"])
    save(tmp_path, model)
    place = value.replace("fc1", "0") if key == "path" else value
    rewrite(tmp_path, set_at("deeper", 0, key, value=place))
    refuses(tmp_path, words.replace("fc1", "0"), nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3)))


# ---- what fails late -------------------------------------------------------------------------------------------------


def test_a_random_state_that_torch_refuses_undoes_everything(run):
    rewrite(run, lambda content: content["strides"].pop("rng/cpu"))
    refuses(run, "rng/cpu", *make_fresh())
    model, _ = make_run(OPTIMIZERS["Adam"])
    kept = torch.get_rng_state()
    torch.get_rng_state = lambda: torch.zeros(7, dtype=torch.uint8)
    try:
        save(run, model, grower=Grower([1]))
    finally:
        torch.get_rng_state = torch.default_generator.get_state
    assert torch.equal(torch.get_rng_state(), kept)
    refuses(run, "generators.*without rng=", Mlp(), None, Grower([2]))


class Half(Grower):
    """It takes a part of its state, and breaks."""

    def load_state_dict(self, state):
        self.history = state["history"]
        raise KeyError("best")


def test_a_grower_that_breaks_has_its_history_back(run):
    model, optimizer, _ = make_fresh()
    refuses(run, r"does not fit the given Half \(KeyError: 'best'\)", model, optimizer, Half([2]))


def test_a_plateau_refuses_the_state_of_another_schedule_and_all_stays(tmp_path):
    model, example = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(4, 2)
    save(tmp_path, model, grower=firefly.Firefly(model, example, schedule=firefly.Every(3)))
    grower = firefly.Firefly(model, example, schedule=firefly.Plateau(2))
    grower.due(0, 1.0)
    grower.history = [{"kept": True}]
    refuses(tmp_path, "Plateau|grower", model, None, grower)
    assert grower.history == [{"kept": True}] and grower.schedule.state_dict() == {"best": 1.0, "waited": 0}


def test_an_optimizer_that_breaks_undoes_model_and_grower(run):
    class Broken(torch.optim.Adam):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            raise RuntimeError("too late")

    Broken.__name__ = "Adam"
    model = Mlp()
    refuses(run, "does not take the saved state: too late", model, Broken(model.parameters(), lr=0.5), Grower([2]))


def test_extra_state_that_breaks_undoes_everything(tmp_path):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = torch.tensor([1.0])

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, state):
            if state.sum() > 5:
                raise ValueError("too much")
            self.extra = state

    def make():
        return nn.Sequential(nn.Linear(2, 2), Picky(), Mlp(), Picky())

    model = make()
    model[1].extra, model[3].extra = torch.tensor([2.0]), torch.tensor([9.0])
    save(tmp_path, model)
    refuses(tmp_path, r"3\._extra_state.*too much", make())


def test_an_interrupt_at_any_line_of_a_load_leaves_all_or_nothing(run):
    files = ("/firefly/checkpoint/", "/firefly/surgery/")
    count, parts = Aim(files=files), make_fresh()
    ends = [fingerprint(*parts)[1:]]
    assert interrupt(lambda: load(run, *parts, rng=True), count) == "done"
    ends.append(fingerprint(*parts)[1:])
    start = ends[0][-1]
    for at in range(1, count.seen, max(1, count.seen // 150)):
        torch.set_rng_state(start)
        parts = make_fresh()
        torch.set_rng_state(start)
        kinds = [id(p) for p in parts[1].param_groups[0]["params"]]
        outcome = interrupt(lambda: load(run, *parts, rng=True), Aim(at, files))  # noqa: B023
        assert outcome == "interrupted"
        now = fingerprint(*parts)[1:]
        grown = parts[0].hidden == 9
        assert [id(p) for p in parts[0].parameters()] == now[1][0], at
        assert grown or now[1][0] == kinds, at
        for k in (0, 2, 3, 4):  # sizes, state, history, random state
            assert same(now[k], ends[grown][k]), (at, k)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [save, load])
def test_wrong_arguments_are_named(tmp_path, run, function):
    model, optimizer, _ = make_fresh()
    before = fingerprint(model, optimizer)
    for given, words in (
        ((run, "model"), r"nn\.Module, not str"),
        ((run, None), r"nn\.Module, not NoneType"),
        ((3, model), "folder=3"),
        ((None, model), "folder=None"),
        (("a\0b", model), "folder="),
        ((run, model, "adam"), r"torch\.optim\.Optimizer, not str"),
        ((run, model, model.parameters()), r"torch\.optim\.Optimizer, not generator"),
        ((run, model, optimizer, 7), "grower must be.*not int"),
        ((run, model, optimizer, model), "grower must be.*not Mlp"),
        ((run / "checkpoint.json", model), "checkpoint.json"),
        ((run / "checkpoint.json" / "deeper", model), "checkpoint.json"),
    ):
        with pytest.raises(FireflyError, match=words):
            function(*given)
    assert same(fingerprint(model, optimizer), before)


def test_an_optimizer_of_another_model_is_not_saved(tmp_path):
    with pytest.raises(FireflyError, match="none of this model's parameters"):
        save(tmp_path / "run", Mlp(), torch.optim.Adam(Mlp().parameters()))
    assert not (tmp_path / "run").exists()


def test_a_state_that_holds_itself_is_not_saved(tmp_path):
    history: list = []
    history.append(history)
    with pytest.raises(FireflyError, match="nested too deeply"):
        save(tmp_path / "run", Mlp(), grower=Grower(history))
