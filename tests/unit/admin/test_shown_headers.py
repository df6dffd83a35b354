from __future__ import annotations

from xds_control.admin.request_views import shown_headers
from xds_control.policy.headers import PROMPT_TOKENS


def test_credentials_are_hidden_and_counts_of_tokens_are_not() -> None:
    set_by_policy = {"authorization": "Bearer s3cret", "x-auth-token": "s3cret", "api-key": "s3cret"}
    set_by_policy |= {"ocp-apim-subscription-key": "s3cret", "x-auth": "s3cret", "x-client-credential": "s3cret"}
    shown = shown_headers({**set_by_policy, PROMPT_TOKENS: "812", "x-tier": "gold"})
    assert shown == {**dict.fromkeys(set_by_policy, "(hidden)"), PROMPT_TOKENS: "812", "x-tier": "gold"}
