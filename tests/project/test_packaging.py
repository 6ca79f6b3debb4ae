"""The folder mapping holds: what is in the checkout is in the wheel, and both run anywhere."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import FOLDERS, PYPROJECT, ROOT, copy_packages

SETUPTOOLS = PYPROJECT["tool"]["setuptools"]

NOT_IN_THE_WHEEL = (
    "samples/accelsim/", "samples/ci/", "samples/README.md", "samples/timing/overlap/",
    "samples/validation/hardware.cu", "samples/validation/children.cu", "samples/validation/pdl.cu",
    "samples/validation/forks.cu", "samples/validation/subpartitions.cu",
    "samples/validation/README.md", "samples/suite/README.md", "samples/suite/hints.csv.xz",
    "samples/validation/measured/h100-again", "samples/validation/measured/h100-forks",
    "samples/validation/measured/h100-nodes", "samples/validation/measured/h100-placement",
    "samples/validation/measured/h100-hardware",
    "samples/validation/measured/h100-pdl", "samples/validation/measured/h100-unseen",
    "samples/validation/measured/h100-later", "samples/validation/measured/h100-fresh",
    "samples/validation/measured/h200",
    "samples/validation/measured/predicted.csv", "samples/simulator/README.md",
    "samples/models/measured/", "samples/papers/flashoverlap.csv", "samples/papers/flux.csv",
    "samples/workloads/decode_layers.toml", "samples/workloads/inception_block.toml",
    "samples/workloads/launches_", "samples/workloads/uneven_tiles.toml",
    "samples/workloads/whole_waves.toml", "depgraph/system/x86-64-v3/",
)  # fmt: skip


def package_folder(package):
    parent = package
    while parent not in FOLDERS:
        parent = parent.rpartition(".")[0]
    return ROOT.joinpath(FOLDERS[parent], *package[len(parent) :].split(".")[1:])


def files_in_package_folders():
    return [
        file
        for folder in FOLDERS.values()
        for file in sorted((ROOT / folder).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]


def packaged_data():
    return {
        f"{package} {pattern}": set(package_folder(package).glob(pattern))
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
    }


def installed_name(file):
    """Return where a file of the checkout lies in the wheel."""
    for package, folder in FOLDERS.items():
        if file.is_relative_to(ROOT / folder):
            inside = file.relative_to(ROOT / folder).as_posix()
            return f"{package.replace('.', '/')}/{inside}"
    raise ValueError(file)


def is_left_out(file):
    return file.relative_to(ROOT).as_posix().startswith(NOT_IN_THE_WHEEL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of what the wheel is made of, at a place that no installation points to."""
    copy = copy_packages(tmp_path_factory.mktemp("copy") / "checkout")
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    """Return a wheel built from a copy of the copy, since a build leaves files behind."""
    work = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(checkout, work / "source")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    result = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", work, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = work.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return a folder that holds what the wheel installs."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def import_all(folder, path=None):
    """Return the files behind depgraph's packages as a Python started in `folder` sees them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    program = (
        "import importlib, json, sys;"
        "print(json.dumps([importlib.import_module(name).__file__ for name in sys.argv[1:]]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *FOLDERS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [Path(file) for file in json.loads(result.stdout)]


def test_the_top_level_folders_stand():
    fixed = ["parsers", "depgraph", "reports", "cli", "samples", "tests", "benchmarks", "docs"]
    assert [folder for folder in fixed if not any((ROOT / folder).iterdir())] == []


def test_every_folder_with_modules_is_a_listed_package():
    folders = {
        file.parent
        for file in files_in_package_folders()
        if file.suffix == ".py" and not is_left_out(file)
    }
    assert folders == {package_folder(package) for package in SETUPTOOLS["packages"]}


def test_every_package_has_an_init():
    packages = SETUPTOOLS["packages"]
    assert [p for p in packages if not (package_folder(p) / "__init__.py").is_file()] == []


def test_every_data_file_is_listed():
    listed = set().union(*packaged_data().values())
    unlisted = [
        file.relative_to(ROOT).as_posix()
        for file in files_in_package_folders()
        if file.suffix != ".py" and file not in listed and not is_left_out(file)
    ]
    assert unlisted == []


def test_every_listed_pattern_finds_data():
    assert [pattern for pattern, files in packaged_data().items() if not files] == []


def test_the_wheel_holds_the_package_folders_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {
        installed_name(file) for file in files_in_package_folders() if not is_left_out(file)
    }


def test_the_wheel_brings_its_licence_and_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        information = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        assert "licenses/LICENSE" in information
        entry_points = archive.read(information["entry_points.txt"]).decode()
    assert "depgraph = depgraph.cli:main" in entry_points


def test_an_installed_wheel_runs_from_another_folder(installed, tmp_path):
    files = import_all(tmp_path, path=installed)
    assert [file.relative_to(installed).as_posix() for file in files] == [
        f"{package.replace('.', '/')}/__init__.py" for package in FOLDERS
    ]


def test_a_checkout_runs_uninstalled(checkout):
    files = import_all(checkout)
    assert files == [checkout / folder / "__init__.py" for folder in FOLDERS.values()]


def test_a_checkout_and_an_installed_wheel_do_not_mix(checkout, installed):
    # In a checkout Python finds ./depgraph first: the other folders must then come from there too.
    files = import_all(checkout, path=installed)
    assert files == [checkout / folder / "__init__.py" for folder in FOLDERS.values()]
