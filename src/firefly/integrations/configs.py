"""What the config of a Hugging Face model can say of a grown one, found by trying: no table of architectures.

A model is made from a config with one number changed, without memory, and compared with one from the config as it is:
the dimensions that differ are what the number stands for. Layers have no configs of their own, so their widths must be
equal for the config to say them (`find_tied`). A grown model whose sizes the config can say gets a config that says
them, and `from_pretrained` loads it like any other; in another one's config the architecture itself is written down.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn

from firefly import checkpoint
from firefly.anatomy.widths import Anatomy
from firefly.checkpoint.architecture import architecture, list_growths
from firefly.checkpoint.model import find_sizes

KEY = "firefly"  # of the architecture in a config
HIDDEN = {"n_inner": "n_embd"}  # None in a config stands for four times the other
MOST = 8  # numbers of a config that are tried in every combination
Shapes = dict[str, tuple[int, ...]]
Change = dict[tuple[str, int], int]  # by how much these dimensions grow when a number does by one


def make_empty(model: nn.Module, config: Any, valid: bool = False) -> Any:
    """A model of this config without memory, or None if there is none, or if the config itself must be `valid`."""
    try:
        if valid and hasattr(config, "validate"):
            config.validate()
        with torch.device("meta"):
            return type(model)(config)
    except Exception:  # whatever the model's own checks raise
        return None


def list_shapes(model: nn.Module) -> Shapes:
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def spell_out(model: nn.Module, config: Any) -> Any:
    """A copy of the config in which the size of a head no longer depends on how many there are, as far as it can."""
    plain = copy.deepcopy(config)
    vars(plain).pop(KEY, None)
    clear = copy.deepcopy(plain)
    heads, hidden = getattr(clear, "num_attention_heads", None), getattr(clear, "hidden_size", None)
    if type(heads) is int and type(hidden) is int and heads and getattr(clear, "head_dim", None) is None:
        clear.head_dim = hidden // heads
    for name, other in HIDDEN.items():
        if getattr(clear, name, 0) is None:
            setattr(clear, name, 4 * getattr(clear, other))
    one, two = make_empty(model, plain), make_empty(model, clear)
    alike = one is not None and two is not None and list_shapes(one) == list_shapes(two)
    return clear if alike else plain


def probe(model: nn.Module, config: Any, valid: bool = False) -> dict[str, Change]:
    """What each number of the config stands for; with `valid`, of those that may be any number."""
    base = list_shapes(make_empty(model, config))
    found = {}
    for name, value in config.to_dict().items():
        if type(value) is not int or value < 1:
            continue
        other = copy.deepcopy(config)
        setattr(other, name, value + 1)
        empty = make_empty(model, other, valid)
        shapes = list_shapes(empty) if empty is not None else {}
        if shapes.keys() == base.keys():
            pairs = [(n, dim, a, b) for n in base for dim, (a, b) in enumerate(zip(base[n], shapes[n]))]
            change = {(n, dim): b - a for n, dim, a, b in pairs if a != b}
            if change:
                found[name] = change
    return found


def find_tied(model: nn.Module, anatomy: Anatomy) -> list[tuple[str, ...]]:
    """The widths that a number of the config stands for, together: grown alike, the config can say them."""
    known = probe(model, spell_out(model, model.config), valid=True).values()
    changes = [change for change in known if min(change.values()) > 0]  # more heads may mean smaller ones
    said = {place for change in changes for place in change}
    names = {place: find_widths(anatomy, *place) for place in list_places(anatomy)}
    free = {width.name for width in anatomy if width.pinned is None}
    unsaid = {name for place, some in names.items() if place not in said for name in some}
    groups: list[tuple[str, ...]] = []
    for change in changes:
        if all(names.get(place) for place in change):
            some = set().union(*(names[place] for place in change))
            groups += [tuple(sorted(some))] if some <= free - unsaid else []
    return sorted(set(groups))


def list_places(anatomy: Anatomy) -> list[tuple[str, int]]:
    return [(one.name, dim) for one in anatomy.layouts.values() if one.parameter for dim in range(len(one.dims))]


def find_widths(anatomy: Anatomy, tensor: str, dim: int) -> set[str]:
    """The widths along a dimension of a parameter."""
    return {run.width for run in anatomy.layouts[tensor].dims[dim] if run.width}


def say(model: Any) -> Any:
    """A config from which a model of the same sizes is made, or None."""
    config = spell_out(model, model.config)
    target, small = list_shapes(model), make_empty(model, config)
    if small is None:
        return None
    grown = list_shapes(small) != target
    steps = find_steps(list_shapes(small), target, probe(model, config)) if grown else {}
    for count in range(len(steps) + 1):
        for some in itertools.combinations(steps, count):
            other = copy.deepcopy(config)
            for name in some:
                setattr(other, name, getattr(other, name) + steps[name])
            made = make_empty(model, other, valid=True)
            if made is not None and list_shapes(made) == target and is_alike(model, small, made):
                return shorten(model, other, target)
    return None


def find_steps(base: Shapes, target: Shapes, changes: dict[str, Change]) -> dict[str, int]:
    """By how much a number of the config may have to rise: all that it stands for needs the same."""
    found = {}
    for name, change in changes.items():
        steps = {(target[n][dim] - base[n][dim]) / by for (n, dim), by in change.items()}
        step = steps.pop()
        if not steps and step > 0 and step == int(step):
            found[name] = int(step)
    return dict(list(found.items())[:MOST])


def is_alike(model: nn.Module, small: nn.Module, final: nn.Module) -> bool:
    """Whether all sizes of the grown model are the same in one made from the config.

    One that its forward does not need may have stayed what it was; then a tensor in its module has gone from that size
    to the other. A head of another size, say, is another function.
    """
    for grown, before, after in zip(model.modules(), small.modules(), final.modules()):
        old, new = find_sizes(before), find_sizes(after)
        shapes = zip(before.parameters(), after.parameters())
        moves = {move for one, other in shapes for move in zip(one.shape, other.shape)}
        for name, value in find_sizes(grown).items():
            if value != new.get(name) and (value != old.get(name) or (value, new.get(name)) not in moves):
                return False
    return True


def shorten(model: Any, config: Any, target: Shapes) -> Any:
    """The config without what was spelt out in vain."""
    for name in vars(config).keys() - vars(model.config).keys():
        other = copy.deepcopy(config)
        delattr(other, name)
        empty = make_empty(model, other, valid=True)
        config = other if empty is not None and list_shapes(empty) == target else config
    return config


def update_config(model: Any) -> bool:
    """Write into the model's config what it has grown into; whether plain `from_pretrained` can load it then.

    Call it after a growth, before `save_pretrained`. Where the config has no words for the sizes, the architecture is
    written down in it, and `firefly.integrations.transformers.from_pretrained` loads the model.
    """
    lower(model)
    config = say(model)
    if config is None and list_growths(model):
        setattr(model.config, KEY, describe(model))
        return False
    vars(model.config).pop(KEY, None)
    if config is not None:
        vars(model.config).update(vars(config))
        for one, other in zip(model.modules(), make_empty(model, config).modules()):
            vars(one).update(find_sizes(other))  # also those that no forward needs: the next growth is compared with it
    return True


def describe(model: Any) -> dict[str, Any]:
    """The architecture as far as the config does not say it: the rest, such as a head, may be another one later on."""
    whole, plain = architecture(model), copy.deepcopy(model.config)
    vars(plain).pop(KEY, None)
    small = make_empty(model, plain)
    if small is None:
        return whole
    said = architecture(small)
    shapes = {name: shape for name, shape in whole["shapes"].items() if shape != said["shapes"].get(name)}
    attributes = {
        path: {name: value for name, value in sizes.items() if value != said["attributes"].get(path, {}).get(name)}
        for path, sizes in whole["attributes"].items()
    }
    return whole | {"shapes": shapes, "attributes": attributes}


def lower(model: Any) -> None:
    """Let the config say no more than the model has: it may have become what it was before a growth."""
    config = spell_out(model, model.config)
    small, target = make_empty(model, config), list_shapes(model)
    base = {} if small is None else list_shapes(small)
    if base.keys() == target.keys() and any(a > b for n in base for a, b in zip(base[n], target[n])):
        for name, change in probe(model, config).items():
            step = min((target[n][dim] - base[n][dim]) // by for (n, dim), by in change.items())
            if step < 0 and min(change.values()) > 0:
                setattr(config, name, getattr(config, name) + step)
        vars(model.config).update(vars(shorten(model, config, list_shapes(make_empty(model, config)))))


def carry_architecture(model: Any) -> Any:
    """`firefly.carry_architecture` for a model with a config, which says what the model is after a state has come."""
    checkpoint.carry_architecture(model)
    if hasattr(model, "config") and follow_state not in model._load_state_dict_post_hooks.values():
        model.register_load_state_dict_post_hook(follow_state)
    return model


def follow_state(model: Any, keys: Any) -> None:
    """The hook of load_state_dict."""
    update_config(model)
