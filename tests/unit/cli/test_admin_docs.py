"""The commands and calls in docs/admin.md exist and take what they are shown with."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from google.protobuf import json_format

from tests.shared import REPOSITORY
from xds_control.admin.backend import BadRequest, NotOffered, NotReady, Unknown, UnknownEndpoint
from xds_control.admin.service import NothingToClear
from xds_control.cli import admin_client, options
from xds_control.cli.main import ADMIN, main
from xds_control.errors import XdsControlError
from xds_control.proto import admin_pb2 as pb

PAGE = (REPOSITORY / "docs" / "admin.md").read_text()
LINES = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
COMMANDS = [line for line in LINES if line.startswith("xds-control ")]
CALLS = [line for line in LINES if line.startswith("grpcurl ") and "Admin/" in line]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_take_what_is_shown(line: str) -> None:
    words = shlex.split(line)[1:]
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    rest = words[1:]
    if isinstance(command, click.Group):
        named = rest[0] in command.commands
        command, rest = command.commands[rest[0] if named else "list"], rest[1:] if named else rest
    command.make_context(str(command.name), rest)


@pytest.mark.parametrize("line", CALLS)
def test_calls_are_of_the_service(line: str) -> None:
    words = shlex.split(line)
    method = pb.DESCRIPTOR.services_by_name["Admin"].methods_by_name[words[-1].rpartition("/")[2]]
    assert words[-1] == f"{method.containing_service.full_name}/{method.name}"
    body = words[words.index("-d") + 1] if "-d" in words else "{}"
    json_format.Parse(body, getattr(pb, method.input_type.name)())


def test_every_command_is_told_of() -> None:
    told = {line.split()[1] for line in COMMANDS}
    assert ADMIN.keys() - told == {"log-level"}


def test_exit_codes_are_the_documented_ones() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    assert told == {
        options.EXIT_OK,
        options.EXIT_FAILED,
        options.EXIT_BAD_INPUT,
        options.EXIT_UNREACHABLE,
        admin_client.EXIT_NOT_ALLOWED,
    }


def test_error_codes_are_the_documented_ones() -> None:
    errors: list[type[XdsControlError]] = [BadRequest, NotOffered, NotReady, Unknown, UnknownEndpoint, NothingToClear]
    sentence = re.search(r"`xds-control-code`:(.*?)\. Looking", PAGE, re.DOTALL)
    assert sentence is not None
    assert set(re.findall(r"`([a-z-]+)`", sentence[1])) == {error.code for error in errors}
