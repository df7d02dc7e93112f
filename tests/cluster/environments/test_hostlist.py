"""Slurm's host lists and counts: as `scontrol` reads them, any list packed and unpacked, wrong ones refused."""

from __future__ import annotations

import random

import pytest

from estimator_pipeline.cluster.environments.hostlist import MAX_HOSTS, expand_counts, expand_hosts
from estimator_pipeline.errors import ClusterError

# As printed by `scontrol show hostnames` of Slurm 22.05.8.
SCONTROL = [
    ("n1", "n1"),
    ("n[001-003,7],gpu[1-2]-ib[0-1]", "n001 n002 n003 n7 gpu1-ib0 gpu1-ib1 gpu2-ib0 gpu2-ib1"),
    ("a[09-11],b[9-11],c[001-3]", "a09 a10 a11 b9 b10 b11 c001 c002 c003"),
    ("n[2,10,1-2]", "n2 n10 n1 n2"),
    ("n[0-1],n[0-1]", "n0 n1 n0 n1"),
]


@pytest.mark.parametrize(("text", "hosts"), SCONTROL)
def test_as_scontrol(text, hosts):
    assert expand_hosts(text) == hosts.split()


def test_names_that_end_in_a_domain():
    assert expand_hosts("n[08-10].cluster.org,login") == [
        "n08.cluster.org",
        "n09.cluster.org",
        "n10.cluster.org",
        "login",
    ]


def _packed(numbers: list[str], rng: random.Random) -> str:
    """Neighbours of one width as ranges or one by one, as the dice fall; the order stays."""
    parts, i = [], 0
    while i < len(numbers):
        j = i
        while (
            j + 1 < len(numbers)
            and int(numbers[j + 1]) == int(numbers[j]) + 1
            and str(int(numbers[j + 1])).zfill(len(numbers[i])) == numbers[j + 1]
            and rng.random() < 0.8
        ):
            j += 1
        parts.append(numbers[i] if i == j else f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ",".join(parts)


def test_any_list_that_is_packed_is_unpacked_again():
    for seed in range(200):
        rng = random.Random(seed)
        items, hosts = [], []
        for _ in range(rng.randint(1, 4)):
            brackets = rng.randint(0, 3)
            literals = ["".join(rng.choices("abz-", k=rng.randint(1, 3))) + "x" for _ in range(brackets + 1)]
            if rng.random() < 0.5 and brackets:
                literals[-1] = ""
            names, text = [literals[0]], literals[0]
            for literal in literals[1:]:
                width = rng.choice([1, 1, 3])
                start = rng.randint(0, 120)
                numbers = [str(n).zfill(width) for n in range(start, start + rng.randint(1, 5))]
                if rng.random() < 0.3:
                    numbers += [str(rng.randint(0, 999)).zfill(width)]
                text += f"[{_packed(numbers, rng)}]{literal}"
                # The last bracket turns fastest.
                names = [f"{name}{number}{literal}" for name in names for number in numbers]
            items.append(text)
            hosts += names
        assert expand_hosts(",".join(items)) == hosts, seed


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n[3-1]", "[3-1]"),
        ("n[a-b]", "[a-b]"),
        ("n[1,,2]", "[1,,2]"),
        ("n[]", "[]"),
        ("n[1-2-3]", "[1-2-3]"),
        ("n[-1]", "[-1]"),
        ("n[1-]", "[1-]"),
        ("n[1-2", "n[1-2"),
        ("n1-2]", "n1-2]"),
        ("n[[1-2]]", "n[[1-2]]"),
        ("n1,,n2", "n1,,n2"),
        (",n1", ",n1"),
        ("", ""),
        ("n1 n2", "n1 n2"),
    ],
)
def test_what_is_no_host_list(text, part):
    with pytest.raises(ClusterError) as caught:
        expand_hosts(text, variable="SLURM_STEP_NODELIST")
    assert f"SLURM_STEP_NODELIST={text!r} is not a host list" in caught.value.what
    assert repr(part) in caught.value.found and caught.value.hint == "leave SLURM_STEP_NODELIST as Slurm sets it."


@pytest.mark.parametrize("text", ["n[0-99999999]", "n[0-999][0-999]", "n[0-60000],m[0-60000]"])
def test_a_range_that_is_far_too_wide_is_not_expanded(text):
    with pytest.raises(ClusterError, match=f"more than {MAX_HOSTS} hosts"):
        expand_hosts(text)


def test_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("16") == [16]
    assert expand_counts("1,12(x2),3") == [1, 12, 12, 3]


@pytest.mark.parametrize("text", ["", "2(x0)", "2x3", "a", "1,,2", "-1", "2(x99999999)"])
def test_what_are_no_counts(text):
    with pytest.raises(ClusterError, match="is not a list of tasks for each node"):
        expand_counts(text)
