"""A group whose commands are imported when they are used: listing and completing their names costs nothing."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

WHOLE = 1000
"""A length in which every first sentence has room."""

Source = tuple[str, str, str]
"""Module, name of the command in it, and the first sentence of its help."""


class LazyGroup(click.Group):
    """sources: command → where it is."""

    def __init__(self, *args: Any, sources: Mapping[str, Source] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sources = dict(sources or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*self.commands, *self._sources})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now; None when there is none of this name."""
        if cmd_name not in self.commands and cmd_name in self._sources:
            module, name, _help = self._sources[cmd_name]
            self.add_command(getattr(importlib.import_module(module), name), cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; for a name that is none, an error with the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1) if args else []
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and first sentences, whole ones."""
        rows = [(name, self._short(name).get_short_help_str(WHOLE)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin with what was typed, and options."""
        found = [
            CompletionItem(name, help=self._short(name).get_short_help_str())
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _short(self, name: str) -> click.Command:
        """The command, or what stands for it in a list."""
        return self.commands.get(name) or click.Command(name, help=self._sources[name][2])
