"""Print what the networks of saved masters answer, as hashes: `python ask.py FOLDER ...`, each named like its net."""

import json
import sys
import warnings
from pathlib import Path

import torch
from nets import EXAMPLE, NETS, hash_logits

import firefly

if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    answers = {}
    for folder in map(Path, sys.argv[1:]):
        master = firefly.continual.Master(NETS[folder.name], EXAMPLE, folder)
        answers[folder.name] = {name: hash_logits(master.network(name)) for name in master.tasks}
    print(json.dumps(answers))
