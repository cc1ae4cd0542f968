"""How much `pip install firefly-descent` downloads, by platform: versions as uv resolves them, sizes as PyPI has them.

    python benchmarks/download_size.py --python 3.12

Needs uv and PyPI. Only metadata is fetched, no wheel. What comes with CUDA (nvidia-*, cuda-*, triton) is told apart:
the wheels of https://download.pytorch.org/whl/cpu do without.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

PLATFORMS = {  # uv's name, and how the names of fitting wheels end
    "Linux x86-64": ("x86_64-unknown-linux-gnu", r"linux\w*_x86_64|none-any"),
    "Linux arm64": ("aarch64-unknown-linux-gnu", r"linux\w*_aarch64|none-any"),
    "macOS arm64": ("aarch64-apple-darwin", r"macosx\w*_(arm64|universal2)|none-any"),
    "Windows x86-64": ("x86_64-pc-windows-msvc", r"win_amd64|none-any"),
}
CUDA = re.compile(r"nvidia-|cuda-|triton")
INDEX = "https://pypi.org"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the version of Python (3.12)")
    parser.add_argument("--extra", action="append", default=[], help="an extra of the package, too; more than once")
    args = parser.parse_args()
    wanted = read_requirements(args.extra)
    print(f"{'platform':<16} {'torch':>8} {'packages':>9} {'torch MB':>9} {'CUDA MB':>8} {'rest MB':>8} {'all MB':>8}")
    for platform, (name, ending) in PLATFORMS.items():
        pins = resolve(wanted, name, args.python)
        sizes = {package: find_size(package, version, ending, args.python) / 1e6 for package, version in pins.items()}
        torch, cuda = sizes["torch"], sum(size for package, size in sizes.items() if CUDA.match(package))
        whole = sum(sizes.values())
        print(
            f"{platform:<16} {pins['torch']:>8} {len(pins):>9} {torch:>9.0f} {cuda:>8.0f} {whole - torch - cuda:>8.0f} "
            f"{whole:>8.0f}"
        )


def read_requirements(extras: list[str]) -> list[str]:
    """What the package needs, as pyproject.toml says."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]


def resolve(wanted: list[str], platform: str, python: str) -> dict[str, str]:
    """{package: version} that would be installed."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-config", "--no-annotate", "--no-header", "-q"]
    command += ["--python-platform", platform, "--python-version", python, "--default-index", f"{INDEX}/simple"]
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=True)
    lines = (line.partition(";")[0].strip() for line in done.stdout.splitlines())
    return dict(line.split("==") for line in lines if "==" in line)


def find_size(package: str, version: str, ending: str, python: str) -> int:
    """Bytes of the wheel for this platform, or of the source where there is none."""
    with urllib.request.urlopen(f"{INDEX}/pypi/{package}/json", timeout=60) as answer:
        files: list[dict[str, Any]] = json.load(answer)["releases"][version]
    wheels = [file for file in files if re.search(rf"({ending})\w*\.whl$", file["filename"].replace(".manylinux", ""))]
    tag = f"cp{python.replace('.', '')}-"
    own = [file for file in wheels if f"-{tag}" in file["filename"]] or [
        file for file in wheels if re.search(r"-(py3|py2\.py3|cp3\d+-abi3)-", file["filename"])
    ]
    return int((own or wheels or files)[0]["size"])


if __name__ == "__main__":
    main()
