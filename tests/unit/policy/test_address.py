from __future__ import annotations

import pytest

from xds_control.policy.address import canonical_address, check_listen, is_loopback, join_address, split_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8000", ("10.0.0.1", 8000)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("vllm-0.svc.cluster.local:8000", ("vllm-0.svc.cluster.local", 8000)),
        ("localhost:1", ("localhost", 1)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_addresses_are_split(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected
    assert split_address(join_address(*expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", ":80", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:99999999999999999999", "10.0.0:80",
     "256.1.1.1:80", "fd00::1:80", "[fd00::1]", "[10.0.0.1]:80", "[zz]:80", "a b:80", "host:80x", "host:٣", "-a:80",
     "http://x:80", "a..b:80", "10.0.0.1:+80", "10.0.0.1:00006553599", "[fe80::1%a\r\nx-evil: 1]:80",
     "[fe80::1%eth0 x]:80", "[fe80::1%]:80", "a\n:80", "a:80\n", "\ud800:80", "a\0b:80"],
)  # fmt: skip
def test_bad_addresses_say_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        split_address(text)


def test_a_url_is_told_apart_from_an_ipv6_address() -> None:
    with pytest.raises(ValueError, match="leave out what is not host or port"):
        split_address("http://10.0.0.1:8000")


def test_one_address_has_one_spelling() -> None:
    assert canonical_address("[FD00:0:0::1]:80") == "[fd00::1]:80"
    assert canonical_address("Host.Example:80") == "host.example:80"


def test_listening_needs_an_ip_address() -> None:
    check_listen("127.0.0.1:80", "listen")
    with pytest.raises(ValueError, match="listen: 'localhost:80' has to be an IP address"):
        check_listen("localhost:80", "listen")
    assert is_loopback("127.0.0.1:1")
    assert is_loopback("[::1]:1")
    assert not is_loopback("0.0.0.0:1")
