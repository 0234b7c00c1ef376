"""Roles, scopes, and what may be granted."""

from itertools import pairwise

import pytest

from ondot.model.access import LOCAL, RIGHTS_OF, SPECIAL, Caller, Right, Role, rights_of
from ondot.model.errors import Forbidden
from ondot.model.ids import DEFAULT_TENANT
from tests.proves import proves


def _caller(role: Role, *, scopes: set[Right] | None = None, pools: set[str] | None = None) -> Caller:
    return Caller(DEFAULT_TENANT, "ci", role, rights_of(role, scopes), None if pools is None else frozenset(pools))


@proves("T7")
def test_each_role_of_a_tenant_has_the_rights_of_the_one_before_it() -> None:
    order = [Role.VIEWER, Role.OPERATOR, Role.EDITOR, Role.ADMIN, Role.OWNER]
    for less, more in pairwise(order):
        assert RIGHTS_OF[less] < RIGHTS_OF[more]
    assert RIGHTS_OF[Role.WORKER] == {Right.WORK}


@proves("T1")
def test_scopes_narrow_a_role_and_add_only_the_special_rights() -> None:
    assert rights_of(Role.EDITOR, {Right.JOBS_WRITE, Right.SHELL}) == {Right.JOBS_WRITE, Right.SHELL}
    assert rights_of(Role.VIEWER, {Right.JOBS_WRITE}) == frozenset()
    assert not rights_of(Role.EDITOR) & SPECIAL
    assert rights_of(Role.ADMIN) >= SPECIAL


@proves("T1")
@pytest.mark.parametrize("right", list(Right))
def test_a_refusal_names_the_right(right: Right) -> None:
    with pytest.raises(Forbidden, match=right.value):
        _caller(Role.ADMIN, scopes=set()).require(right)


@proves("T1")
def test_nobody_grants_more_than_they_have() -> None:
    admin, editor = _caller(Role.ADMIN), _caller(Role.EDITOR)
    assert admin.may_grant(Role.EDITOR, {Right.JOBS_WRITE, Right.SECRETS_USE})
    assert admin.may_grant(Role.WORKER)
    assert not admin.may_grant(Role.OWNER)
    assert LOCAL.may_grant(Role.OWNER)
    assert not editor.may_grant(Role.EDITOR, {Right.JOBS_WRITE, Right.SHELL})
    assert not _caller(Role.ADMIN, scopes={Right.KEYS_MANAGE}).may_grant(Role.VIEWER)
    assert not _caller(Role.ADMIN, pools={"batch"}).may_grant(Role.VIEWER)
    assert not _caller(Role.ADMIN, pools={"batch"}).may_grant(Role.VIEWER, pools={"batch", "gpu"})
    assert _caller(Role.ADMIN, pools={"batch", "gpu"}).may_grant(Role.VIEWER, pools={"batch"})
