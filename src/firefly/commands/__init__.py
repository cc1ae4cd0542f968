"""What the command line does with a model or a run of yours: `grow`, `show`, `export`, the page of runs.

Each command is a file with `add_arguments(parser)` and `run(args)`; nothing here is needed to use Firefly from Python.
"""
