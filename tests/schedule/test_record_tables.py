"""Tables of records: the same function on arrays, compiled, and on objects, interpreted."""

import numpy as np
import pytest

from depgraph.schedule.events_jit import table
from depgraph.system.compiled import compiled_on_records, interpreted

ACCOUNT = np.dtype([("owner", np.int32), ("is_open", np.bool_), ("balance", np.float64)])


def pay(accounts, amount):
    """Pay into every account that is open."""
    for k in range(len(accounts)):
        account = accounts[k]
        if account.is_open:
            account.balance += amount


def accounts():
    return table(ACCOUNT, 3, owner=np.arange(3), is_open=[True, False, True], balance=1.0)


def test_fields_that_are_not_given_are_0():
    assert table(ACCOUNT, 2, owner=7).tolist() == [(7, False, 0.0)] * 2


@pytest.mark.parametrize("run", [interpreted(pay), compiled_on_records(pay)])
def test_what_a_function_writes_into_records_is_in_the_table(run):
    paid = accounts()
    run(paid, 2.0)
    assert paid.tolist() == [(0, True, 3.0), (1, False, 1.0), (2, True, 3.0)]


@pytest.mark.jit_only
def test_what_is_compiled_writes_the_same():
    paid = accounts()
    compiled_on_records(pay).code_for((paid, 2.0))(paid, 2.0)
    assert paid["balance"].tolist() == [3.0, 1.0, 3.0]
