# SPDX-License-Identifier: Apache-2.0
"""`pip install .` into a fresh environment, without network: what the wheel holds is enough to train a model.

The compilers' results come out of ccache, where the build of the tests has just put them.
"""
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Torch and what builds a wheel; not the package of the build folder.
SEARCHED = os.pathsep.join(str(ROOT / ".deps" / folder) for folder in ("libtorch", "python"))


def run(*command, folder):
    outcome = subprocess.run([str(part) for part in command], env=dict(os.environ, PYTHONPATH=SEARCHED), cwd=folder,
                             capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]
    return outcome.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The Python of a virtual environment that holds the wheel and nothing else, and the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    python = folder / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check")
    run(python, "-m", "pip", "wheel", "--no-build-isolation", *offline, "--wheel-dir", folder, ".", folder=ROOT)
    wheel, = folder.glob("shardtensor-*.whl")
    run(python, "-m", "pip", "install", *offline, wheel, folder=folder)
    return python, wheel


def test_the_wheel_holds_the_package_and_libshard_and_nothing_else(environment):
    names = zipfile.ZipFile(environment[1]).namelist()
    package = [name for name in names if ".dist-info/" not in name]
    assert all(name.startswith("shardtensor/") for name in package), package
    sources = {f"shardtensor/{path.name}" for path in (ROOT / "python/shardtensor").glob("*.py")}
    binaries = {name for name in package if ".so" in name}
    assert sources == set(package) - binaries
    assert "shardtensor/libshard.so" in binaries and any("/_C." in name for name in binaries), binaries


def test_an_installed_package_trains_a_model(environment):
    python, wheel = environment
    program = Path(__file__).with_name("wheel") / "train.py"
    assert run(python, program, folder=wheel.parent).strip() == str(python.parents[1])


def test_an_installed_package_brings_its_fixtures(environment):
    python, wheel = environment
    tests = wheel.parent / "test_mine.py"
    tests.write_text("import torch\nfrom shardtensor.testing import numerical_shard_tensor_check as same\n\n"
                     "def test_mine(on_ranks, scattered):\n"
                     "    on_ranks(2, lambda world: same(torch.nn.Linear(3, 2), [scattered(world, torch.ones(5, 3))]))\n")
    # Named in a conftest.py as well, as in a build tree.
    (wheel.parent / "conftest.py").write_text('pytest_plugins = ["shardtensor.pytest_plugin"]\n')
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, folder=wheel.parent)
