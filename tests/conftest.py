"""One thread per test process: the tests run side by side, and the models are small."""

import torch

torch.set_num_threads(1)
