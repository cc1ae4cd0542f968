"""One thread per test process, and in those that tests start: they run side by side, and the models are small."""

import os

import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
