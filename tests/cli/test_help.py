"""Help and usage of every command."""

import importlib

import click
import pytest
from checkout import ROOT

from depgraph.cli.app import COMMANDS
from depgraph.cli.options.shared import Command


def command_of(name):
    return importlib.import_module(f"depgraph.cli.commands.{name.replace('-', '_')}").command


def test_help_lists_every_command_with_what_it_does(program):
    outcome = program("--help")
    assert (outcome.code, outcome.err) == (0, "")
    words = " ".join(outcome.out.split())
    for name, summary in COMMANDS.items():
        assert f"{name} {summary}" in words


def test_no_command_is_a_question_for_help(program):
    assert program() == program("--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_begins_its_help_as_the_list_says(name):
    first_paragraph = command_of(name).help.strip().split("\n\n")[0]
    assert " ".join(first_paragraph.split()) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_explained(name):
    command = command_of(name)
    assert isinstance(command, Command)
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []
    flags = {flag for option in options for flag in option.opts}
    assert {"-q", "--quiet", "-v", "--verbose", "--debug"} <= flags


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_command(program, name, flag):
    outcome = program(name, flag)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: depgraph {name} ")


def test_every_module_with_a_command_is_in_the_list():
    modules = (ROOT / "cli" / "commands").glob("*.py")
    assert {m.stem.replace("_", "-") for m in modules if "\ndef command(" in m.read_text()} == set(
        COMMANDS
    )


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["extract"],
        ["extract", "--no-such-option", "x"],
        ["extract", "--granularity", "64", "x"],
        ["extract", "--deps", "raw,rar", "x"],
        ["extract", "--kernels", "5:3", "x"],
        ["extract", "--kernels", "a:b", "x"],
        ["extract", "--jobs", "0", "x"],
        ["extract", "--format", "yaml", "x"],
        ["bound", "--sms", "0"],
        ["bound", "--sms", "eighty"],
        ["bound", "--sms", "16:8"],
        ["bound", "--sms", ""],
        ["show"],
        ["show", "nothing"],
        ["show", "a", "b", "kernels"],
        ["show", "block"],
        ["show", "block", "1:2:3"],
        ["show", "block", "one"],
        ["export", "--what", "edges"],
        ["export", "--what", "edges", "-o", "edges.xls"],
        ["export", "--what", "graph", "-o", "graph.parquet"],
        ["export", "--what", "nothing", "-o", "x.csv"],
    ],
)
def test_wrong_usage_is_explained_and_gives_2(program, words):
    outcome = program(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage: depgraph" in outcome.err
    assert "Error: " in outcome.err
    assert "Traceback" not in outcome.err
