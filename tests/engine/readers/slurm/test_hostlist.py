"""Hostlists: measured before they are expanded, read as Slurm means them, written so that Slurm reads them back."""

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.engine.readers.slurm import (
    HostlistMalformed,
    HostlistTooLarge,
    hostlist_compress,
    hostlist_count,
    hostlist_expand,
)

SAMPLE = Path(__file__).parents[5] / "shared" / "samples" / "slurm" / "hostlist_expressions.tsv"

NUMBERS = st.integers(0, 120).map(str) | st.integers(0, 120).map("{:03d}".format) | st.just("")
NAMES = st.builds(
    "{}{}{}{}".format, st.sampled_from(["n", "trn", "gpu-"]), NUMBERS, st.sampled_from(["", "c"]), NUMBERS
)


class TestExpand:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("", []),
            ("trn001", ["trn001"]),
            ("trn[001-003]", ["trn001", "trn002", "trn003"]),
            ("trn[8-10]", ["trn8", "trn9", "trn10"]),
            ("rack[1-2]n[1,3]", ["rack1n1", "rack1n3", "rack2n1", "rack2n3"]),
            ("gpu[01-02]-ib,login", ["gpu01-ib", "gpu02-ib", "login"]),
            (" a1 , a2 ", ["a1", "a2"]),
            ("n[1-3],n2", ["n1", "n2", "n3"]),
        ],
    )
    def test_gives_the_names_in_their_order_each_once(self, text: str, names: list[str]) -> None:
        assert hostlist_expand(text) == names

    @pytest.mark.parametrize(
        "text", ["a[1-", "a]1[", "a[3-1]", "a[x-z]", "a[1,,3]", "a[[1]]", "a[1-9/2]", "a b", "a[]", "a[1-2]\n[3]"]
    )
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(HostlistMalformed):
            hostlist_expand(text)

    @pytest.mark.parametrize("text", ["a[1-1000000]", "a[0-999]b[0-999]c[0-999]d[0-999]", "a[0-999999999999999999]"])
    def test_a_list_for_millions_is_counted_and_never_made(self, text: str) -> None:
        assert hostlist_count(text) >= 1_000_000
        with pytest.raises(HostlistTooLarge):
            hostlist_expand(text)

    def test_a_text_without_end_is_refused_by_its_length(self) -> None:
        with pytest.raises(HostlistTooLarge):
            hostlist_count("a," * 1_000_000)

    def test_reads_the_lists_of_real_tools(self) -> None:
        if not SAMPLE.exists():
            pytest.skip("the folder of samples is not beside this checkout")
        with SAMPLE.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        for row in rows:
            text = row["expression"]
            if row["count"].isdecimal() and "/" not in text and int(row["count"]) < 100_000:
                assert len(hostlist_expand(text)) == int(row["count"]), text
            elif row["count"] == "-" and text:
                with pytest.raises(HostlistMalformed):
                    hostlist_expand(text)


class TestCompress:
    def test_folds_neighbours_and_keeps_padding_apart(self) -> None:
        names = ["trn002", "trn001", "trn004", "n9", "n10", "n09", "login"]

        assert hostlist_compress(names) == "login,n9,n[09-10],trn[001-002,004]"

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine may take its time
    @given(st.lists(NAMES, unique=True, max_size=40))
    def test_is_read_back_as_the_same_names(self, names: list[str]) -> None:
        assert sorted(hostlist_expand(hostlist_compress(names))) == sorted(names)

    @pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "a\n"])
    def test_refuses_what_is_no_name(self, name: str) -> None:
        with pytest.raises(HostlistMalformed):
            hostlist_compress([name])
