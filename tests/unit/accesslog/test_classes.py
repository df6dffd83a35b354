from __future__ import annotations

import pytest

from xds_control.policy.classes import DEFAULT_CLASSES, ClassesPolicy, ServiceClassPolicy


def test_the_default_classes_go_from_urgent_to_patient() -> None:
    classes = ClassesPolicy()
    assert list(classes.by_name()) == ["critical", "high", "medium", "low"]
    assert classes.default == "medium"
    queues = {one.name: one.max_queue_s for one in DEFAULT_CLASSES}
    assert (queues["critical"], queues["high"], queues["medium"]) == (0.01, 0.05, 0.2)
    order = [one.priority for one in DEFAULT_CLASSES]
    assert order == sorted(order, reverse=True)


def test_a_class_is_listed_once() -> None:
    twice = ServiceClassPolicy(name="a", priority=1)
    with pytest.raises(ValueError, match="class 'a' is listed more than once"):
        ClassesPolicy(default="a", items=(twice, twice))


def test_the_default_class_is_listed() -> None:
    with pytest.raises(ValueError, match="the default class 'medium' is not listed"):
        ClassesPolicy(items=(ServiceClassPolicy(name="a", priority=1),))
