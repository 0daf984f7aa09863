"""Pack the UCI Adult files (adult.data, adult.test) into src/bures/data/adult.npz.

    python scripts/pack_adult.py FOLDER_WITH_THE_RAW_FILES

Rows with a missing value are dropped: 45,222 of 48,842 remain. Numbers are kept as integers, attributes as codes into
sorted categories. Prints the SHA-256 that src/bures/datasets.py expects.
"""

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)


def read(path: Path) -> list[list[str]]:
    lines = (line.strip().rstrip(".") for line in path.read_text().splitlines())
    rows = [[field.strip() for field in line.split(",")] for line in lines if line and not line.startswith("|")]
    return [row for row in rows if len(row) == len(COLUMNS) and "?" not in row]


def pack(folder: Path) -> bytes:
    table = np.array(read(folder / "adult.data") + read(folder / "adult.test"))
    arrays = {}
    for name, column in zip(COLUMNS, table.T, strict=True):
        if name in NUMBERS:
            arrays[name] = column.astype(np.int32)
        else:
            categories, codes = np.unique(column, return_inverse=True)
            arrays[name], arrays[f"{name}_categories"] = codes.astype(np.uint8), categories
    # A zip archive written by hand: fixed time stamps, so that the same data give the same bytes.
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


if __name__ == "__main__":
    content = pack(Path(sys.argv[1]))
    destination = Path(__file__).parents[1] / "src" / "bures" / "data" / "adult.npz"
    destination.write_bytes(content)
    sys.stdout.write(f"{destination}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}\n")
