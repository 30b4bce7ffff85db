"""The DTR simulator's log: a hand-written one with every instruction, and bad ones."""

import json
import re

import numpy as np
import pytest

from coop_jax import planning
from coop_jax.dtr_log import read_dtr_log

KIB = 1024


def line(instruction, **fields):
    return json.dumps({"INSTRUCTION": instruction, **fields})


def constant(name, memory):
    return [line("CONSTANT", NAME=name), line("MEMORY", NAME=name, MEMORY=str(memory))]


def call(name, arguments, results, microseconds):
    """`results`: (name, bytes, index of the aliased argument or -1)."""
    lines = [
        line(
            "CALL",
            NAME=name,
            ARGS=arguments,
            RESULT=[result for result, _, _ in results],
            TIME=str(1000 * microseconds),
        )
    ]
    for result, memory, alias in results:
        lines.append(line("MEMORY", NAME=result, MEMORY=str(memory)))
        lines.append(line("ALIAS", NAME=result, ALIAS=str(alias)))
    return lines


LOG = [
    *call("warm_up", [], [("left_out", 1 << 30, -1)], 7),
    line("ANNOTATE", ANNOTATION="START"),
    *constant("w", 4 * KIB),
    *constant("data", 2 * KIB),
    *call("conv", ["data", "w"], [("x1", 8 * KIB, -1), ("mask", 1 * KIB, -1)], 100),
    line("RELEASE", NAME="data"),
    *call("view", ["x1"], [("x1_flat", 8 * KIB, 0)], 0),
    line("COPY", DST="saved", SRC="x1"),
    line("MUTATE", NAME="relu_", ARGS=["x1"], MUTATE=[0], TIME=str(2000)),
    line("RELEASE", NAME="x1_flat"),
    *call("matmul", ["x1", "w"], [("x2", 8 * KIB, -1)], 50),
    *call("add", ["x2"], [("x3", 8 * KIB, -1)], 5),
    line("COPY_FROM", DST="x2", SRC="x3"),
    line("RELEASE", NAME="x3"),
    line("ANNOTATE", ANNOTATION="BACKWARD"),
    *call("grad", ["x2", "saved", "mask", "x1"], [("g", 4 * KIB, -1)], 120),
    line("RELEASE", NAME="x1"),
    line("RELEASE", NAME="x2"),
    line("RELEASE", NAME="saved"),
    line("RELEASE", NAME="mask"),
    line("RELEASE", NAME="never_defined"),
    "",
]


def test_every_instruction():
    log = read_dtr_log(LOG)
    graph = log.graph
    assert log.tensor_names == ("w", "data", "x1", "mask", "x1$2", "x2", "x3", "g")
    assert log.operation_names == ("conv", "view", "relu_", "matmul", "add", "grad")
    assert log.backward == 5
    assert graph.op_seconds.tolist() == pytest.approx(
        [100e-6, 0, 2e-6, 50e-6, 5e-6, 120e-6]
    )
    assert graph.tensor_bytes.tolist() == [4096, 2048, 8192, 1024] + [8192] * 3 + [4096]
    assert graph.producer.tolist() == [-1, -1, 0, 0, 2, 3, 4, 5]
    assert graph.tensor_pinned.tolist() == [True, True] + [False] * 6
    # w by matmul, data by conv, the old x1 (as saved), mask, the new x1, x2 by add
    # alone, x3 (as x2) and the gradient, an output, by the backward operation.
    assert graph.last_use.tolist() == [3, 0, 5, 5, 5, 4, 5, 6]


def test_names_decide_how_long_a_tensor_is_held():
    log = read_dtr_log(LOG)
    steps = planning.plan_graph(log.graph, 1 << 20).steps.tolist()
    names = log.tensor_names
    text = " ".join(
        log.operation_names[index] if kind < 2 else f"-{names[index]}"
        for kind, index in steps
    )
    # `relu_` does not end x1: `saved` still names it. COPY_FROM lets go of the first x2.
    # Constants stay, also when they are released.
    assert text == "conv view relu_ matmul add -x2 grad -x1 -mask -x1$2 -x3"


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "coop"},
        {"policy": "coop", "sliding_window": False},
        {"policy": "coop", "recomputable_in_place": False},
        {"policy": "dtr", "dtr_neighbourhood": "estar"},
        {"policy": "dtr"},
        {"policy": "dtr", "dtr_neighbourhood": "local"},
        {"policy": "dte"},
    ],
)
def test_every_policy_plans_it(options):
    options = {"overhead_limit": 10.0, **options}
    graph = read_dtr_log(LOG).graph
    smallest = planning.minimum_pool(graph, **options)
    reference = planning.unconstrained(graph, **options).statistics.peak_bytes
    assert planning.lower_bound(graph)[0] <= smallest.capacity < reference
    for pool_bytes in (smallest.capacity, reference):
        schedule = planning.plan_graph(graph, pool_bytes, **options)
        assert planning.validate(graph, schedule) == []
    assert planning.metrics(smallest.schedule, reference).compute_overhead > 1


def test_mutation_takes_over_the_block_where_the_old_value_is_done_with():
    lines = [
        *call("f", [], [("x", KIB, -1)], 1),
        line("MUTATE", NAME="add_", ARGS=["x"], MUTATE=[0], TIME=10),
    ]
    log = read_dtr_log(lines)
    schedule = planning.plan_graph(log.graph, KIB)
    assert schedule.placements[1].tolist() == [2, 1, 0, 0]
    # The baselines copy on write.
    with pytest.raises(planning.InfeasiblePoolError):
        planning.plan_graph(log.graph, KIB, "dtr")


def test_a_name_may_be_used_again_and_copied_to_itself():
    lines = [
        *call("f", [], [("x", KIB, -1)], 1),
        line("COPY_FROM", DST="x", SRC="x"),
        line("RELEASE", NAME="x"),
        *call("backward_f", [], [("x", KIB, -1)], 1),
    ]
    log = read_dtr_log(lines)
    assert log.tensor_names == ("x", "x$2")
    assert log.backward == 1
    assert log.graph.last_use.tolist() == [0, 2]


def test_reads_a_file(tmp_path):
    path = tmp_path / "net.log"
    path.write_text("\n".join(LOG) + "\n")
    assert read_dtr_log(path).operation_names == read_dtr_log(LOG).operation_names


def test_an_empty_log_is_an_empty_graph():
    assert read_dtr_log([]).graph.num_ops == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["", "{"], r"line 2: every line must be a JSON object .* Got '{'. Was the file"),
        (["[]"], "line 1: every line must be a JSON object with the string INSTRUCTION"),
        (['{"NAME": "x"}'], "with the string INSTRUCTION"),
        ([line("SWAP")], r"line 1: INSTRUCTION must be one of .* Got 'SWAP'"),
        ([line("CONSTANT")], "line 1: CONSTANT must have the field NAME"),
        ([line("CONSTANT", NAME=3)], "NAME must be a string. Got 3. Quote it"),
        ([line("CONSTANT", NAME="x")],
         "line 1: CONSTANT must be followed by MEMORY of 'x'. Got 'the end of the log'"),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="y", MEMORY="1")],
         "line 2: CONSTANT must be followed by MEMORY of 'x'"),
        (constant("x", "much"), "line 2: MEMORY must be a whole number. Got 'much'"),
        (constant("x", -1), "line 2: MEMORY must be at least 0. Got '-1'"),
        ([*constant("x", 1), *constant("x", 1)],
         "CONSTANT must make a name that is not in force. Got 'x'. RELEASE it first"),
        ([line("MEMORY", NAME="x", MEMORY="1")], "line 1: MEMORY must follow the CONST"),
        (call("f", ["y"], [], 1), "line 1: CALL must use names that are in force. Got 'y"),
        (call("f", [], [("x", 1, 0)], 1), "line 3: ALIAS must be -1 or below the 0 ARGS"),
        ([line("CALL", NAME="f", ARGS="x", RESULT=[], TIME="1")],
         "ARGS must be a list of strings. Got 'x'"),
        ([line("MUTATE", NAME="f", ARGS=[], MUTATE=[0], TIME="1")],
         "line 1: MUTATE must be below the 0 ARGS. Got 0"),
        ([line("MUTATE", NAME="f", ARGS=[], MUTATE=0, TIME="1")], "MUTATE must be a list"),
        ([line("COPY", DST="x", SRC="y")], "COPY must use names that are in force"),
        ([*constant("y", 1), line("COPY_FROM", DST="x", SRC="y")],
         "line 3: COPY_FROM must use names that are in force. Got 'x'"),
    ],
)  # fmt: skip
def test_malformed_lines(lines, message):
    with pytest.raises(ValueError, match=r"`read_dtr_log\(...\)`: " + f".*{message}"):
        read_dtr_log(lines)


DEEP = "[" * 100_000
RESULT = [line("MEMORY", NAME="x", MEMORY="1"), line("ALIAS", NAME="x", ALIAS="-1")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (constant("x", 2**63), r"line 2: the bytes of a tensor must be below 2\*\*48"),
        (constant("x", 2**48), r"line 2: the bytes of a tensor must be below 2\*\*48"),
        (constant("x", 10**400), r"line 2: the bytes of a tensor must be below 2\*\*48"),
        (constant("x", "9" * 5000), "line 2: MEMORY must be a whole number. Got '999"),
        (constant("x", "1_0"), "line 2: MEMORY must be a whole number. Got '1_0'"),
        (constant("x", "\u0661"), "line 2: MEMORY must be a whole number"),
        (constant("x", "1.5"), "line 2: MEMORY must be a whole number. Got '1.5'"),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="x", MEMORY=True)],
         "line 2: MEMORY must be a whole number. Got True"),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="x", MEMORY=None)],
         "line 2: MEMORY must be a whole number. Got None"),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="x", MEMORY=float("nan"))],
         "line 2: MEMORY must be a whole number. Got nan"),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="x", MEMORY=float("inf"))],
         "line 2: MEMORY must be a whole number. Got inf"),
        ([line("CONSTANT", NAME="x"),
          '{"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": ' + "9" * 5000 + "}"],
         "line 2: every line must be a JSON object"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=[], TIME=10**28)],
         r"line 1: TIME must add up to at most 1e27 nanoseconds. Got 1000000"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=[], TIME=10**400)],
         "line 1: TIME must add up to at most 1e27"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=[], TIME=float("inf"))],
         "line 1: TIME must be a whole number. Got inf"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=[], TIME=6 * 10**26)] * 2,
         "line 2: TIME must add up to at most 1e27"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=["x"], TIME=1), *RESULT,
          line("MUTATE", NAME="g", ARGS=["x"], MUTATE=[True], TIME=1)],
         "line 4: MUTATE must be a whole number. Got True"),
        (["", DEEP], "line 2: every line must be a JSON object"),
        (["", '{"a":' * 100_000], "line 2: every line must be a JSON object"),
        (["\ufeff" + line("ANNOTATE", ANNOTATION="START")], "line 1: every line must be"),
        (["\x00\x01"], r"line 1: every line must be a JSON object .* Got '\\x00\\x01'"),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:40],
)  # fmt: skip
def test_numbers_and_text_that_cannot_be_read(lines, message):
    with pytest.raises(ValueError, match=r"`read_dtr_log\(...\)`: " + message) as raised:
        read_dtr_log(lines)
    assert len(str(raised.value)) < 500


def test_bytes_of_all_tensors_together():
    many = [text for i in range(2**13 + 2) for text in constant(f"t{i}", 2**48 - 1)]
    with pytest.raises(ValueError, match=r"line 16386: .* of all together below 2\*\*61"):
        read_dtr_log(many)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\xef\xbb\xbf{}\n",
            "line 1: every line must be a JSON object .Unexpected UTF-8 B",
        ),
        (b"{}\n\xff\xfe{\x00", "line 1: every line must be a JSON object with the string"),
        (
            b"\n\xff\xfe{\x00",
            "line 2: the file must be UTF-8 text .invalid start byte at byt",
        ),
        (b"\n\n\x1f\x8b\x08\x00", "line 3: the file must be UTF-8 text .* and unpacked?"),
        (b"\n" + b"\x80" * 10_000, "line 2: the file must be UTF-8 text"),
        ("{}".encode("utf-16"), "line 1: the file must be UTF-8 text"),
        (b"\x00" * 100, "line 1: every line must be a JSON object"),
    ],
)
def test_files_that_are_no_logs(tmp_path, content, message):
    path = tmp_path / "net.log"
    path.write_bytes(content)
    for source in (path, str(path)):
        with pytest.raises(
            ValueError, match=r"`read_dtr_log\(...\)`: " + message
        ) as raised:
            read_dtr_log(source)
        assert len(str(raised.value)) < 500


def test_line_ends_of_any_system(tmp_path):
    path = tmp_path / "net.log"
    path.write_bytes("\r\n".join(LOG).encode())
    assert read_dtr_log(path).operation_names == read_dtr_log(LOG).operation_names


@pytest.mark.parametrize("source", [b"{}", bytearray(b"{}"), 3, None])
def test_what_is_no_log_at_all(source):
    with pytest.raises(TypeError, match=r"must be given a path or lines of text. Got "):
        read_dtr_log(source)


@pytest.mark.parametrize("text", [b"{}", None, 3, {"INSTRUCTION": "CALL"}])
def test_lines_are_strings(text):
    with pytest.raises(TypeError, match=r"line 2: every line must be a string. Got "):
        read_dtr_log(["", text])


VALUES = [
    None, True, -1, 0, 1, 2**48, 2**63, 1e300, 0.5, "", "x", "w", "-1", "1e3", [], ["x1"],
    ["w", "w"], [0, 0], [3], {}, "CALL", "MEMORY", "START",
]  # fmt: skip


def test_every_error_has_the_line_s_number():
    """Logs with a line, or a field of one, exchanged: read, or refused by its number."""
    random = np.random.default_rng(0)
    numbered = re.compile(r"`read_dtr_log\(...\)`: line \d+: .* Got ", re.DOTALL)
    refused, read = [], 0
    for _ in range(3000):
        lines = [text for text in LOG if text]
        for _ in range(random.integers(1, 3)):
            at, other = random.integers(len(lines), size=2)
            how = random.integers(4)
            if how == 0:
                del lines[at]
            elif how == 1:
                lines.insert(at, lines[other])
            elif how == 2:
                lines[at] = lines[at][: random.integers(len(lines[at]))]
            else:
                fields = json.loads(lines[at]) if lines[at].endswith("}") else {"a": 1}
                key = list(fields)[random.integers(len(fields))]
                fields[key] = VALUES[random.integers(len(VALUES))]
                lines[at] = json.dumps(fields)
        try:
            log = read_dtr_log(lines)
        except ValueError as error:
            refused.append(str(error))
        else:
            planning.unconstrained(log.graph, "coop")
            read += 1
    assert [text for text in refused if not numbered.match(text)] == []
    assert min(read, len(refused)) > 100
