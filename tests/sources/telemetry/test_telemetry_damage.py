"""Telemetry files with damage: what is hit is counted, the rest is read, nothing is invented."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_texts import (
    DMON,
    METRIC_CSV,
    NVIDIA_CSV,
    OLD_MONITOR_CSV,
    OWN_CSV,
    ROCM_SMI_CSV,
    SECOND_NS,
    START_S,
    ZEUS_CSV,
    metric_list,
    put,
    read,
    read_telemetry,
    samples,
    seconds,
    values,
)

from chopper_core.sources.signals import SignalName
from chopper_core.tables.column import TableRows
from chopper_core.util.errors import DataError
from tests.wording import Wording

TEXTS = {
    "metric.csv": METRIC_CSV,
    "monitor.csv": OLD_MONITOR_CSV,
    "rocm.csv": ROCM_SMI_CSV,
    "nvidia.csv": NVIDIA_CSV,
    "dmon.txt": DMON,
    "zeus.csv": ZEUS_CSV,
    "own.csv": OWN_CSV,
    "metric.json": metric_list(),
}
POWER = "timestamp,device,power_watts,power_cap_watts\n"


def power(*rows: str) -> str:
    return POWER + "".join(row + "\n" for row in rows)


def test_junk_rows_and_missing_values_are_counted(tmp_path: Path, wording: Wording) -> None:
    telemetry = read(
        tmp_path,
        power(
            f"{START_S},card0,152.0",
            f"{START_S},",
            f"{START_S},card0,,",
            f"{START_S + 5},card0,153.0,750",
            f"{START_S + 5},card0,154.0,750,9",
            "yesterday,card0,155.0,750",
            f"{START_S + 10},card0,oops,750",
            f"{START_S + 15},card0,71 C,750",
            f"{START_S + 20},card0,-3,750",
            f"{START_S + 25},card0,N/A,N/A",
            f"{START_S + 30},card0,1e999,inf",
        ),
    )
    assert seconds(telemetry, SignalName.POWER_W) == [0, 5]
    assert values(telemetry, SignalName.POWER_CAP_W) == [750] * 4
    assert telemetry.losses.unreadable_events == 2
    assert telemetry.losses.bad_times == 1
    assert len({*telemetry.losses.notes}) == 7
    for facts in (
        ("1 row", "more values than headings"),
        ("1 row", "without a GPU"),
        ("1 row", "timestamp"),
        ("1 value of power_w", "wrong unit"),
        ("1 value of power_w", "range"),
        ("1 value of power_cap_w", "parsed"),
        ("2 values of power_w", "parsed"),
    ):
        wording.among({*telemetry.losses.notes}, *facts)
    wording.among(telemetry.notes, "1 row", "fewer values than headings")


def test_a_cut_last_row_is_left_out(tmp_path: Path, wording: Wording) -> None:
    text = power(f"{START_S},card0,152.0,750", f"{START_S + 5},card0,153.0,750")
    telemetry = read(tmp_path, text[:-3])
    assert values(telemetry, SignalName.POWER_W) == [152]
    assert telemetry.losses.truncated
    (note,) = telemetry.losses.notes
    wording(note, "within a row")


def test_unsorted_rows_are_sorted_and_counted(tmp_path: Path, wording: Wording) -> None:
    rows = [f"{START_S + second},card0,{100 + second},750" for second in (10, 0, 5)]
    telemetry = read(tmp_path, power(*rows))
    assert seconds(telemetry, SignalName.POWER_W) == [0, 5, 10]
    assert values(telemetry, SignalName.POWER_W) == [100, 105, 110]
    wording.among(telemetry.notes, "1 row out of order")
    assert not telemetry.losses.notes, "nothing is lost"


def test_rows_of_one_stamp_count_as_their_mean(tmp_path: Path, wording: Wording) -> None:
    rows = [f"{START_S},card0,{watts},750" for watts in (100, 110, 120)]
    telemetry = read(tmp_path, power(*rows, f"{START_S + 1},card0,7,750"))
    assert values(telemetry, SignalName.POWER_W) == [110, 7]
    wording(telemetry.notes[0], "2 rows", "timestamp")
    assert not telemetry.losses.notes


def test_a_file_twice_in_a_row_gives_the_same(tmp_path: Path, wording: Wording) -> None:
    once = read(tmp_path, METRIC_CSV, "once.csv")
    twice = read(tmp_path, METRIC_CSV + METRIC_CSV, "twice.csv")
    for key, entries in once.signals.items():
        for one, other in zip(entries, twice.signals[key], strict=True):
            assert one.time_ns.tolist() == other.time_ns.tolist()
            assert one.value.tolist() == pytest.approx(other.value.tolist())
    wording.among(twice.notes, "1 row repeating the headings")


def test_lines_before_the_headings_do_no_harm(tmp_path: Path, wording: Wording) -> None:
    telemetry = read(tmp_path, f"WARNING: low-power state\n\n{ROCM_SMI_CSV}")
    assert values(telemetry, SignalName.POWER_W) == [152, 155.5]
    (note,) = telemetry.losses.notes
    wording(note, "1 row before the headings")


def test_zeros_at_the_end_are_no_row(tmp_path: Path) -> None:
    telemetry = read(
        tmp_path, power(*[f"{START_S + row},card0,1,2" for row in range(40)]) + "\0" * 99
    )
    assert len(samples(telemetry, SignalName.POWER_W)) == 40
    assert telemetry.losses.truncated


def test_headings_may_change_within_a_file(tmp_path: Path) -> None:
    text = power(f"{START_S},card0,152.0,750") + "timestamp,device,power_cap_watts,power_watts\n"
    telemetry = read(tmp_path, text + f"{START_S + 5},card0,750,153.0\n")
    assert values(telemetry, SignalName.POWER_W) == [152, 153]


def test_an_accumulator_under_the_name_of_a_share_is_not_taken_for_one(
    tmp_path: Path, wording: Wording
) -> None:
    text = "timestamp,gpu,gfx_activity,socket_power\n"
    telemetry = read(tmp_path, text + f"{START_S},0,87772295,700\n")
    assert (0, SignalName.GFX_UTIL_PCT) not in telemetry.signals
    (note,) = telemetry.losses.notes
    wording(note, "1 value of gfx_util_pct", "range")


def test_sensors_that_a_gpu_lacks_are_missing(tmp_path: Path) -> None:
    text = f"timestamp,gpu,socket_power,hotspot\n{START_S},0,65535,70\n"
    telemetry = read(tmp_path, text)
    assert (0, SignalName.POWER_W) not in telemetry.signals
    assert telemetry.losses.notes == []


def test_a_counter_that_was_set_back_is_named(tmp_path: Path, wording: Wording) -> None:
    text = "time_ns,clock,gpu,pcie_bytes\n1,epoch,0,1000\n2,epoch,0,4000\n3,epoch,0,10\n"
    telemetry = read(tmp_path, text + "4,epoch,0,30\n")
    assert values(telemetry, SignalName.PCIE_BYTES) == [0, 3000, 3000, 3020]
    (note,) = telemetry.losses.notes
    wording(note, "pcie_bytes", "1 time", "not added")


def test_a_hotspot_below_the_edge_is_pointed_out(tmp_path: Path, wording: Wording) -> None:
    text = "timestamp,device,temp_edge_celsius,temp_junction_celsius\n"
    telemetry = read(tmp_path, text + f"{START_S},card0,51,44\n")
    wording.among(telemetry.notes, "cooler than the edge")
    assert values(telemetry, SignalName.HOTSPOT_C) == [44]


def test_json_around_damage_is_kept(tmp_path: Path) -> None:
    text = metric_list((0, 1, 2), gpus=1).replace('"umc_activity"', '"umc_activity', 1)
    telemetry = read(tmp_path, text, "m.json")
    assert seconds(telemetry, SignalName.POWER_W) == [1, 2]
    assert telemetry.losses.unreadable_events == 1


@pytest.mark.parametrize("root", ["[", '{"gpu_data": ['])
def test_cut_json_keeps_what_lies_before(tmp_path: Path, root: str) -> None:
    text = root + metric_list((0, 1, 2), gpus=1)[1:-200]
    telemetry = read(tmp_path, text, "m.json")
    assert seconds(telemetry, SignalName.POWER_W) == [0, 1]
    assert telemetry.losses.truncated


def test_a_cut_gzip_stream_keeps_what_lies_before(tmp_path: Path) -> None:
    noise = random.Random(1)
    rows = [f"{START_S + 5 * row},card0,{noise.random() * 700:.6f},750" for row in range(5000)]
    packed = gzip.compress(power(*rows).encode())
    telemetry = read(tmp_path, packed[: len(packed) // 2], "power.csv")
    assert 1000 < len(samples(telemetry, SignalName.POWER_W)) < 4000
    assert telemetry.losses.truncated
    assert "cut off" in " ".join(telemetry.losses.notes)


@pytest.mark.parametrize(
    ("stamp", "time_ns"),
    [
        ("1754585900", START_S * SECOND_NS),
        ("1754585900.5", START_S * SECOND_NS + SECOND_NS // 2),
        ("1754585900123", START_S * SECOND_NS + 123_000_000),
        ("1754585900123456", START_S * SECOND_NS + 123_456_000),
        ("1754585900123456789", START_S * SECOND_NS + 123_456_789),
        ("2025-08-07T16:58:20Z", START_S * SECOND_NS),
        ("2025-08-07 18:58:20.25+02:00", START_S * SECOND_NS + SECOND_NS // 4),
        ("12.5", 12 * SECOND_NS + SECOND_NS // 2),
        ("1754585900123.5", START_S * SECOND_NS + 123_500_000),
        ("1754585900.1234567891", START_S * SECOND_NS + 123_456_789),
    ],
)
@pytest.mark.parametrize("by_arrow", [True, False])
def test_stamps_of_all_kinds(
    tmp_path: Path, stamp: str, time_ns: int, by_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_arrow:
        monkeypatch.setattr(TableRows, "of_csv", lambda *_, **__: None)
    telemetry = read(tmp_path, power(f"{stamp},card0,152.0,750"))
    assert samples(telemetry, SignalName.POWER_W).time_ns.tolist() == [time_ns]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [name for name in TEXTS if not name.endswith(".json")])
def test_text_split_by_arrow_and_line_by_line_reads_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = (
        "",
        "-1",
        "N/A",
        "1e3",
        "700 W",
        " 5 ",
        "+7",
        "nan",
        "65535",
        "9" * 20,
        "[1, 2]",
        '"a,b"',
    )
    stamps = ("12:00:01", "2025-08-07T16:58:20Z", "1754585900123", "1754585901.123456789", "soon")
    for seed in range(12):
        chance = random.Random(seed)
        heading, *rows = TEXTS[name].splitlines()
        rows *= chance.choice((1, 4))
        for _ in range(seed):
            row = chance.randrange(len(rows))
            cells = rows[row].split(",")
            cells[chance.randrange(len(cells))] = chance.choice((*odd, *stamps))
            rows[row] = ",".join(cells) + chance.choice(("", "", "", ",", ",7"))
        path = put(tmp_path / name, "\n".join([heading, *rows, ""]))
        found = []
        for of_csv in (TableRows.of_csv, lambda *_, **__: None):
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(TableRows, "of_csv", of_csv)
                    telemetry = read_telemetry(path)
            except DataError as error:
                found.append(str(error))
                continue
            signals = {
                (*key, each.part): (each.time_ns.tolist(), each.value.tolist())
                for key, entries in telemetry.signals.items()
                for each in entries
            }
            found.append(str((signals, telemetry.gpus, telemetry.notes, telemetry.losses)))
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "text",
    [
        POWER,
        power("yesterday,card0,1,2"),
        power(f"{START_S},card0,N/A,N/A"),
        "time_ns,clock,gpu,power_w\nsoon,epoch,0,1\n",
        '[{"gpu": 0, "socket_power": "N/A"}]',
        '[{"gpu": 0, "socket_power": ',
        "# gpu pwr\n# Idx W\n",
    ],
)
def test_files_without_a_sample_are_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"telemetry\.csv"):
        read(tmp_path, text)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damage_never_raises_anything_but_data_errors(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    text = bytearray(TEXTS[name].encode())
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 30))
        text[start : start + length] = data.draw(st.binary(max_size=12))
    path = put(tmp_path_factory.mktemp("damage") / name, bytes(text))
    try:
        telemetry = read_telemetry(path)
    except DataError as error:
        assert str(path) in str(error)
        return
    for entries in telemetry.signals.values():
        for entry in entries:
            assert len(entry.time_ns) == len(entry.value) > 0
            assert (entry.time_ns[1:] > entry.time_ns[:-1]).all()


@pytest.mark.sweep
@pytest.mark.parametrize("name", TEXTS)
def test_every_cut_is_survived(tmp_path: Path, name: str) -> None:
    text = TEXTS[name].encode()
    for end in range(0, len(text), 7):
        path = put(tmp_path / name, text[:end])
        try:
            read_telemetry(path)
        except DataError as error:
            assert str(path) in str(error)
