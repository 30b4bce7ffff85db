"""What must hold of every plan of the search, on a few random graphs.

`examples/planner_properties.py` tries it on thousands.
"""

import pytest
from oracles import planner_properties


# Where nothing is known, what the search finds is luck, too. Clocks are of a machine with
# other work.
@pytest.mark.parametrize("seed", range(12, 24))
def test_of_a_few_graphs(seed):
    report = planner_properties.report(seed, largest=60)
    wrong = [v for v in report.violations if v.property not in ("alone", "deadline")]
    assert not wrong
