"""One table an experiment: what is added is on disk, what was cut short is passed over, and code has a fingerprint."""

import io
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bures.experiments import provenance, sheet
from bures.experiments.store import ADDED, TABLE, Store
from bures.reproduce import EXPERIMENTS, load_experiment, other_code

RESULTS = Path(__file__).parent.parent / "results"
MADE = {"code": "new", "commit": "abc", "time": "2026-01-01T00:00:00Z"}


def put(store, *numbers, **made):
    for number in numbers:
        store.put(f"n{number}", {"number": number}, {"square": number**2}, 0.1, MADE | made)


def squares(store):
    return {n: store.get(f"n{n}", {"number": n})["square"] for n in range(9) if store.get(f"n{n}", {"number": n})}


def test_a_line_is_on_disk_at_once_and_packed_at_the_end(tmp_path):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1, 2)
        assert squares(Store.at(store.folder)) == {1: 1, 2: 4}  # as another process reads it
        assert not (store.folder / TABLE).exists()
    assert {path.name for path in store.folder.iterdir()} == {TABLE}
    with pytest.raises(RuntimeError, match="alone"):
        put(store, 3)
    with Store.at(store.folder).alone():
        pass
    assert squares(Store.at(store.folder)) == {1: 1, 2: 4}


def test_an_error_in_a_run_loses_nothing(tmp_path):
    store = Store(tmp_path, "squares", "full")

    def run():
        with store.alone():
            put(store, 1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert squares(Store.at(store.folder)) == {1: 1, 2: 4}


@pytest.mark.parametrize("length", [1, 40, 100_000])
def test_a_line_cut_short_is_passed_over_and_cut_off(tmp_path, length):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1)
    line = json.dumps({"cell": "n2", "result": "x" * 200_000})[:length]
    (store.folder / ADDED).write_text(line)
    assert squares(Store.at(store.folder)) == {1: 1}
    with (again := Store.at(store.folder)).alone():
        assert (store.folder / ADDED).read_bytes() == b""
        put(again, 2)
    assert squares(Store.at(store.folder)) == {1: 1, 2: 4}


def test_a_kill_between_packing_and_removing_changes_nothing(tmp_path):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1, 2)
        added = (store.folder / ADDED).read_bytes()
    packed = (store.folder / TABLE).read_bytes()
    (store.folder / ADDED).write_bytes(added)
    with Store.at(store.folder).alone():
        pass
    assert (store.folder / TABLE).read_bytes() == packed and not (store.folder / ADDED).exists()


def test_of_two_lines_for_one_cell_the_later_counts(tmp_path):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1, code="old", commit="xyz")
        put(store, 1, 2)
    again = Store.at(store.folder)
    assert again.sources() == {("new", "abc"): 2}
    assert b"xyz" not in lzma.decompress((store.folder / TABLE).read_bytes())


def test_a_damaged_table_is_no_empty_one(tmp_path):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1)
    path = store.folder / TABLE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="is damaged"):
        Store.at(store.folder).get("n1", {"number": 1})


def test_cells_of_other_code_are_known(tmp_path, monkeypatch):
    store = Store(tmp_path, "squares", "full")
    with store.alone():
        put(store, 1, code="old")
        put(store, 2)
        store.put("n3", {}, {}, 0.1, {"commit": "abc", "time": ""})  # of the time before fingerprints
    assert store.of_other_code("new") == ["n1", "n3"]
    monkeypatch.setattr("bures.reproduce.code", lambda module: "new")
    said = "2 of 3 cells are of older or other code than this (commits abc): n1, n3"
    assert other_code(store, None) == said
    assert other_code(store, None, ["n2"]) == "" and other_code(store, None, ["n1", "n2"]).endswith(": n1")
    assert store.sources() == {("old", "abc"): 1, ("new", "abc"): 1, ("unknown", "abc"): 1}


SOURCE = '''"""What it is."""
def f(x):
    """What it does."""
    if x:
        x = x + 1
        x = x * 2
    return x
'''


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("What it does.", "What it really does.", True),
        ("x + 1", "x + 1  # one more", True),
        ("    return", "\n    return", True),
        ("x + 1", "(x +\n            1)", False),
        ("x + 1", "x + 2", False),
        ("        x = x * 2", "    x = x * 2", False),
    ],
)
def test_a_fingerprint_follows_what_code_does(tmp_path, before, after, same):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text(SOURCE)
    other.write_text(SOURCE.replace(before, after))
    assert one.read_text() != other.read_text()
    assert (provenance._meaning(one) == provenance._meaning(other)) is same


def test_studies_have_fingerprints_of_their_own():
    from bures.benchmarks import cold, ladder

    found = [provenance.code(load_experiment(name)) for name in EXPERIMENTS]
    found += [provenance.code(cold.Benchmark), provenance.code(ladder.Benchmark), provenance.code()]
    assert len(set(found)) == len(found)
    parts = {path.stem for path in provenance._parts(Path(ladder.__file__))}
    assert {"ladder", "ladder_cells", "ladder_fits", "honesty_targets", "cold_models"} <= parts
    assert not {"pages", "protocol", "store", "honesty_report"} & parts
    assert provenance.code(cold.Benchmark(None)) == provenance.code(cold.Benchmark)  # an object of it


def test_a_sheet_has_every_pixel(monkeypatch):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in ((20, 30), (10, 40), (25, 5))]
    contents = []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format="PNG")
        contents.append(buffer.getvalue())
    joined = np.asarray(Image.open(io.BytesIO(sheet.join(contents))).convert("RGB"))
    assert joined.shape == (55, 40, 3)
    np.testing.assert_array_equal(joined[:20, :30], pictures[0])
    np.testing.assert_array_equal(joined[20:30], pictures[1])
    np.testing.assert_array_equal(joined[30:, :5], pictures[2])
    monkeypatch.setattr(sheet, "_TALLEST", 30)
    wrapped = np.asarray(Image.open(io.BytesIO(sheet.join(contents))).convert("RGB"))
    assert wrapped.shape == (30, 45, 3)
    np.testing.assert_array_equal(wrapped[:25, 40:], pictures[2])


def test_the_results_are_few_and_small_files():
    if not RESULTS.is_dir():
        pytest.skip("not a checkout of the repository")
    files = [path for path in RESULTS.rglob("*") if path.is_file() and path.suffix not in (".html", ".csv")]  # ignored
    assert len(files) < 60
    assert sum(path.stat().st_size for path in files) < 8e6
    for table in RESULTS.rglob(TABLE):
        assert Store.at(table.parent).sources().total() > 0
        assert {"tables.md", "figures.webp"} <= {path.name for path in table.parent.iterdir()}
