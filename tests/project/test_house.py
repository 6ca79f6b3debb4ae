"""The house stays in order: names and sizes that a reader can hold, and rooms on their floors."""

import ast
from collections import Counter

from checkout import FOLDERS, PYPROJECT, ROOT

PACKAGES = tuple(FOLDERS.values())

LINES_OF_A_COMPILED_FUNCTION = 120
ARGUMENTS_OF_A_COMPILED_FUNCTION = 11
LINES_OF_A_CLASS = 250


def definitions(kind, pattern="*.py"):
    """Yield the definitions of a kind in all modules, each with where it stands."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob(pattern)):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kind):
                    yield f"{path.relative_to(ROOT).as_posix()}: {node.name}", node


def lines_of(node):
    return node.end_lineno - node.lineno + 1


def lines_without_docstring(function):
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return lines_of(function) - (lines_of(first) if has_docstring else 0)


def arguments_of(function):
    given = function.args
    return len(given.posonlyargs + given.args + given.kwonlyargs)


def layers():
    (contract,) = (c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if "layers" in c)
    return [name.strip() for floor in contract["layers"] for name in floor.split("|")]


def test_a_compiled_function_is_read_at_a_sitting():
    too_large = {
        where
        for where, function in definitions(ast.FunctionDef, "*_jit.py")
        if lines_without_docstring(function) > LINES_OF_A_COMPILED_FUNCTION
        or arguments_of(function) > ARGUMENTS_OF_A_COMPILED_FUNCTION
    }
    assert too_large == set()


def test_a_class_is_read_at_a_sitting():
    too_large = {
        where for where, node in definitions(ast.ClassDef) if lines_of(node) > LINES_OF_A_CLASS
    }
    assert too_large == set()


def test_compiled_functions_stand_in_modules_that_say_so():
    decorated = {
        where.partition(":")[0]
        for where, function in definitions(ast.FunctionDef)
        for decorator in function.decorator_list
        if ast.unparse(decorator).startswith(("compiled", "numba.", "njit"))
    }
    assert {path for path in decorated if not path.endswith("_jit.py")} == set()


def test_no_two_modules_of_the_core_share_a_name():
    names = Counter(path.stem for path in (ROOT / "depgraph").rglob("*.py"))
    assert [name for name, n in names.items() if n > 1 and name != "__init__"] == []


def test_every_room_of_the_core_has_its_floor():
    rooms = {path.parent.name for path in (ROOT / "depgraph").glob("*/__init__.py")}
    alone = {path.stem for path in (ROOT / "depgraph").glob("[!_]*.py")}
    assert sorted(layers()) == sorted(rooms | alone)


def test_the_tests_have_the_rooms_of_what_they_test():
    rooms = {path.name for path in (ROOT / "depgraph").iterdir() if path.is_dir()} | set(PACKAGES)
    # The tests of depgraph/torch: on the path of tests, a folder named torch would be PyTorch.
    others = {"faults", "parallelize", "project", "support", "__pycache__"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders <= rooms | others


def test_mypy_knows_every_module_whose_types_numba_infers():
    (override,) = (
        o for o in PYPROJECT["tool"]["mypy"]["overrides"] if "disallow_untyped_defs" in o
    )
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*_jit.py")
    }
    named = {m if m.startswith("depgraph.") else f"depgraph.{m}" for m in modules}
    assert set(override["module"]) == named | {"depgraph.system.compiled"}
