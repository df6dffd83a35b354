"""Structured logs: one event a line on standard error, no secrets, no prompt text."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_threshold = LEVELS["info"]


def set_level(level: str) -> None:
    """The least severe level that is written from now on, by every logger of this process."""
    global _threshold
    _threshold = LEVELS[level]


def _filter(_logger: Any, method: str, event: Any) -> Any:
    if LEVELS.get(method, logging.ERROR) < _threshold:
        raise structlog.DropEvent
    return event


def configure(level: str = "info", form: str = "auto", **context: Any) -> None:
    """Sets up logging for this process.

    form: auto (text on a terminal, else JSON), json or text. context goes on each line.
    """
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if as_text else structlog.processors.JSONRenderer()
    )
    set_level(level)
    structlog.configure(
        processors=[
            _filter,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s", force=True
    )


def logger(name: str) -> Any:
    """A logger whose first argument is the event name."""
    return structlog.get_logger().bind(logger=name)
