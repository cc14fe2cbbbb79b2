"""What is wrong with a file or an option is told in one line by every command that reads it, all at once and before any work."""

from __future__ import annotations

import gzip
import io
import itertools
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from softmaxima.base.numbers import InputError
from softmaxima.integrations.classifier import Classifier
from softmaxima.io.files import file_logsumexp
from softmaxima.io.formats import source
from softmaxima.io.formats.opening import open_scores
from softmaxima_lab.compare import model as models
from softmaxima_lab.compare.model import Model, predict, save
from softmaxima_lab.tables.encoding import Encoder
from softmaxima_lab.tables.reading import read_frame
from softmaxima_lab.tables.tables import read_table
from softmaxima_lab.tables.values import Known

ROWS = 12
TABLE = pl.DataFrame({"a": np.arange(ROWS) % 5 * 1.5, "b": np.arange(ROWS) % 7, "c": ["x", "y"] * 6, "y": ["u", "u", "v"] * 4})


def model_of(frame: pl.DataFrame) -> Model:
    """What learnt from a frame whose last column is the target."""
    encoder = Encoder.fit(frame, frame.columns[-1])
    classifier = Classifier(hidden=(), epochs=1, random_state=0)
    return Model(classifier.fit(encoder.matrix(frame), encoder.labels(frame)), encoder, "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.pt"
    save(path, model_of(TABLE))
    return path


# Columns of every kind ----------------------------------------------------------------------------------------------------


def kinds() -> dict[str, Any]:
    """Columns of 12 rows, by their types in Arrow."""
    pa = pytest.importorskip("pyarrow")
    number, time, day = pa.array(np.arange(12.0)), pa.array(np.arange(12), pa.int64()), pa.array(np.arange(12), pa.int32())
    listed = pa.array([[1.0, 2.0]] * 12)
    return {
        "list": listed,
        "list of nulls": pa.array([None] * 11 + [[1.0]], pa.list_(pa.float64())),
        "no list": pa.array([None] * 12, pa.list_(pa.float64())),
        "large list": listed.cast(pa.large_list(pa.float64())),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24.0)), 2),
        "list of texts": pa.array([["a"]] * 12),
        "struct": pa.array([{"p": 1}] * 12),
        "map": pa.array([[("k", 1)]] * 12, pa.map_(pa.string(), pa.int64())),
        "binary": pa.array([b"\xff"] * 12),
        "fixed binary": pa.array([b"\xff\xfe"] * 12, pa.binary(2)),
        "null": pa.nulls(12),
        "bool": pa.array([True, False] * 6),
        "half": pa.array(np.arange(12, dtype=np.float16)),
        "decimal": number.cast(pa.decimal128(20, 2)),
        "text": pa.array(["1", "2"] * 6),
        "view": pa.array(["1", "2"] * 6, pa.string_view()),
        "dictionary": pa.array(["p", "q"] * 6).dictionary_encode(),
        "dictionary of numbers": number.dictionary_encode(),
        "day": day.cast(pa.date32()),
        "time": time.cast(pa.time64("us")),
        "moment": time.cast(pa.timestamp("ns", "UTC")),
        "duration": time.cast(pa.duration("s")),
        "unsigned": time.cast(pa.uint64()),
    }


ASKED = {
    "feature": ("compare", "a", ("--folds=2",)),
    "category": ("compare", "a", ("--categories=a", "--folds=2")),
    "target": ("compare", "y", ("--folds=2",)),
    "number": ("predict", "a", ()),
    "text": ("predict", "c", ()),
    "class": ("predict", "y", ()),
    "score": ("calibrate", "a", ("--without=c",)),
    "calibrated": ("calibrate", "y", ("--without=c",)),
    "summed": ("lse", "a", ("--column=a",)),
}


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
@pytest.mark.parametrize("asked", ASKED)
def test_a_column_of_any_kind_is_read_or_named(
    asked: str, suffix: str, model: Path, run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from pyarrow import feather, parquet

    monkeypatch.setattr(
        sys.modules["softmaxima_lab.commands.compare_table"], "run", lambda *_: None
    )  # what is trained is no matter here
    command, place, options = ASKED[asked]
    for kind, column in kinds().items():
        columns = {"a": pa.array(TABLE["a"]), "b": pa.array(TABLE["b"]), "c": pa.array(TABLE["c"]), "y": pa.array(TABLE["y"])}
        path = tmp_path / f"t{suffix}"
        (parquet.write_table if suffix == ".parquet" else feather.write_feather)(pa.table(columns | {place: column}), path)
        given = [str(model), str(path)] if command == "predict" else [str(path)]
        outside = () if command in ("predict", "lse") else (f"--out={tmp_path / kind}",)
        code, out, err = run(command, *given, *options, *outside)
        assert (code, err) == (0, "") or (code, out, err.count("\n")) == (2, "", 1), (kind, out, err)
        assert "Traceback" not in err, kind
        if code:
            told = (repr(place), "features", "name of no class", "missing", "cannot be read as Feather")
            assert any(words in err for words in told), (kind, err)


# All at once --------------------------------------------------------------------------------------------------------------

BAD = {  # columns in place of others, options of compare, and what is told
    "infinite": ({"a": [np.inf] + [1.0] * 11}, {}, "infinite values in 'a' (1 row)"),
    "missing": ({"b": [None] + [1] * 11}, {}, "missing values in 'b' (1 row)"),
    "kind": ({"c": [[1.0]] * 12}, {}, "columns of a type that cannot be used: 'c'"),
    "seldom": ({"y": ["u"] * 11 + ["v"]}, {}, "class 'v' of 'y' has 1 row, and 2 folds need 2 of each class"),
    "target": ({}, {"target": "z"}, "there is no column 'z'; choose a --target among: 'a', 'b', 'c', 'd', 'y'"),
    "left out": ({}, {"target": "y", "without": "y"}, "the target 'y' is left out by --without"),
    "without": ({}, {"without": "q"}, "--without: there is no column 'q'"),
    "categories": ({}, {"categories": "r"}, "--categories: there is no column 'r'"),
    "maps": ({}, {"maps": "s"}, "--maps: there is no pair or map 's'"),
}
PAIRS = [pair for pair in itertools.combinations(BAD, 2) if not ({*pair} & {"target"} and {*pair} & {"seldom", "left out"})]


@pytest.mark.parametrize(
    "names", [*PAIRS, ("infinite", "missing", "kind", "seldom", "without", "categories", "maps")], ids=" + ".join
)
def test_all_that_is_wrong_with_a_table_and_its_options_is_told_at_once(
    names: tuple[str, ...], run: Callable, tmp_path: Path
) -> None:
    columns, options, told = TABLE.select("a", "b", "c", d=pl.int_range(ROWS), y="y").to_dict(as_series=False), {"folds": "2"}, []
    for name in names:
        given, asked, said = BAD[name]
        columns |= given
        options = {option: ",".join(filter(None, (options.get(option), asked.get(option)))) for option in {**options, **asked}}
        told.append(said)
    pl.DataFrame(columns).write_parquet(tmp_path / "t.parquet")
    asked = [f"--{option}={value}" for option, value in options.items()]
    code, out, err = run("compare", str(tmp_path / "t.parquet"), *asked, f"--out={tmp_path / 'out'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"has {len(names)} problems: (1) " in err
    assert [said for said in told if said not in err] == [], err
    assert not (tmp_path / "out").exists()


def test_all_that_a_model_cannot_take_is_told_at_once(model: Path, run: Callable, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,c\nwide,x\n1,\n")
    assert run("predict", str(model), str(tmp_path / "t.csv"))[2] == (
        "softmaxima: t.csv: has 3 problems: (1) missing values in 'c' (line 3), and the model takes no row without them; fill "
        "them in, or train with --missing impute on rows that miss some; (2) there is no column 'b', which was learnt from; got "
        "'a', 'c'; (3) column 'a' must hold numbers, as where it was learnt, got 'wide' in line 2; repair it\n"
    )


def test_what_contradicts_the_rows_learnt_from_is_told_with_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,w,z,y\n" + "6 kg,1.5,1,u\n7 kg,2.5,2,v\n" * 6)
    table = read_table(path)
    assert table.encoder is not None
    path.write_text('x;w\n6 g;"1,234"\n7 g;"2,345"\n8 g;0,5\n')
    with pytest.raises(
        InputError, match=r"t\.csv: has 3 problems: .*'x' .*has a decimal comma.*'x' is in 'g', not in 'kg'.*column 'z'"
    ):
        predict(Model(Classifier(hidden=(), epochs=1).fit(table.features, table.labels), table.encoder, ""), path)


# Where in a file ----------------------------------------------------------------------------------------------------------

BEFORE = ("", "\n \n", "sep=,\n", "sep=,\n\n")
BETWEEN = ("", ",,,\n", "\n\n", '1,2,"x\n\ny",u\n')


@pytest.mark.parametrize("between", BETWEEN, ids=range(4))
@pytest.mark.parametrize("before", BEFORE, ids=range(4))
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "dos"])
def test_a_place_in_a_text_is_its_line(before: str, between: str, end: str, model: Path, tmp_path: Path) -> None:
    taught = models.load(model)
    path, lines = tmp_path / "t.csv", f"{before}a,b,c,y\n1,2,x,u\n{between}"
    texts = [f"{lines}wrong,3,y,v\n3,4,x,u\n4,4,x,v\n", f"{lines}wrong,3,y,v\n3,4,x,u\n\n"]
    place = lines.count("\n") + 1
    for text in texts:
        path.write_text(text, newline=end)
        with pytest.raises(InputError, match=rf"'a' must hold numbers, as where it was learnt, got 'wrong' in line {place};"):
            predict(taught, path)
    with pytest.raises(InputError, match=rf"line {place} holds 'wrong'; repair it"):
        file_logsumexp(path, column="a")
    path.write_text(f"{lines}5,3,y,v\n1,2\n3,4,x,u\n4,4,x,v\n", newline=end)
    with pytest.raises(InputError, match=rf"line {place + 1} has 2 fields, where most have 4"):
        read_table(path)


# Texts, by compare and by lse ---------------------------------------------------------------------------------------------

SCORES = [1.5, -2.25, 0.0, 3.0, -0.125, 12.5] * 40
POINTS, COMMAS = [f"{x:g}" for x in SCORES], [f"{x:g}".replace(".", ",") for x in SCORES]


def written(cells: list[str], mark: str, *, before: str = "", names: str = "größe{}score", blank: str = "") -> str:
    rows = [f"a{mark}{cell}\n" for cell in cells]
    return "".join([before, names.format(mark), "\n", *rows[:200], blank, *rows[200:]])


TEXTS = {
    "plain": written(POINTS, ","),
    "semicolons": written(COMMAS, ";"),
    "bars": written(COMMAS, "|"),
    "stated": written(COMMAS, ";", before="sep=;\n"),
    "another is stated": written(POINTS, ":", before="sep=:\n\n"),
    "empty lines": written(POINTS, "\t", before="\n \n"),
    "blanks around names": written(POINTS, ",", names=" größe {} score "),
    "blanks around all": written([f"  {cell} " for cell in POINTS], ";", names=" größe{} score\t"),
    "rows of blanks": written(POINTS, ",", blank=",\n , \n\n \t,\n"),
    "quoted": written([f'"{cell}"' for cell in POINTS], ","),
    "quotes after blanks": written([f' "{cell}"' for cell in POINTS], ","),
    "quoted commas": written([f'"{cell}"' for cell in COMMAS], ","),
    "quoted line ends": written(POINTS, ",", blank='"b\n\nc",7\n').replace('"b\n\nc",7\n', '"b\n,c",1.5\n', 1),
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
PACKED = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".zip": lambda content: zipped({"__MACOSX/t.csv": b"", "folder/t.csv": content, "readme.md": b""}),
    ".gz.zip": lambda content: zipped({"t.csv.gz": gzip.compress(content)}),
}


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_is_read_alike_by_compare_and_lse(encoding: str, packing: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(source, "PIECE", 100)  # so that what is odd comes in a later block
    for name, text in TEXTS.items():
        for end in ("\n", "\r\n"):
            path = tmp_path / f"t.csv{packing}"
            path.write_bytes(PACKED[packing](text.replace("\n", end).encode(encoding)))
            scores = SCORES + [1.5] * (name == "quoted line ends")
            frame = read_frame(path, Known(target="größe")).frame
            assert frame.columns == ["größe", "score"], name
            assert sorted(frame["score"].to_list()) == sorted(scores), name
            read = []
            state = file_logsumexp(
                path, column="score", progress=lambda done, found, read=read: read.append(found.bytes_read(done))
            )
            assert 0 < read[-1][0] <= read[-1][1] == path.stat().st_size, name
            assert (state.n, float(state.value)) == (len(scores), pytest.approx(float(np.logaddexp.reduce(scores)))), name
            assert [len(block) for block in open_scores(path, "score").blocks(239)] == [len(scores) - 239]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("1", "2,5", None),
        ("2,5", "1.5", None),
        ("2,5", "1.234", "write its decimals after a comma and its thousands without points"),
        ("1", "1,234", "write its decimals after a point and its thousands without commas"),
        ("2.5", "2,5", "write its decimals after a point and its thousands without commas"),
    ],
)
def test_a_column_has_one_mark_of_decimals(first: str, then: str, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x;y\n" + f"1;{first}\n" * 2000 + f"1;{then}\n")
    if said is None:
        assert file_logsumexp(tmp_path / "t.csv", column="y").n == 2001
    else:
        with pytest.raises(InputError, match=f"column 'y' is not numeric: line 2002 holds '{re.escape(then)}'; {said}"):
            file_logsumexp(tmp_path / "t.csv", column="y")


@pytest.mark.parametrize("mark", [",", "\t", ";"])
def test_texts_beside_the_scores_are_of_any_length(mark: str, tmp_path: Path) -> None:
    long = "b" * 200_000
    (tmp_path / "t.csv").write_text(f"x{mark}y\n{long}{mark}1.5\na{mark}2\n")
    assert file_logsumexp(tmp_path / "t.csv", column="y").n == 2
    (tmp_path / "t.csv").write_text(f"{long}{mark}y\na{mark}2\n")
    with pytest.raises(InputError, match="its first line has a field of more than 131072 letters"):
        file_logsumexp(tmp_path / "t.csv", column="y")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packing", ["", ".gz", ".zip"])
def test_numbers_as_text_are_read_in_every_encoding(encoding: str, packing: str, tmp_path: Path, run: Callable) -> None:
    content = " ".join(POINTS).encode(encoding)
    path = tmp_path / f"t.txt{packing}"
    path.write_bytes(zipped({"t.txt": content}) if packing == ".zip" else PACKED[packing](content))
    assert float(file_logsumexp(path).value) == pytest.approx(float(np.logaddexp.reduce(SCORES)))


@pytest.mark.filterwarnings("always:.*its commas are taken to separate:UserWarning")
@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.txt.gz", "-"])
def test_commas_that_may_be_decimal_are_told(name: str, run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "its commas are taken to separate numbers; if they are decimal ones, as that of '1,5' may be, write points for them"
    content = b"1,5\n-2,25\n0,5\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    path = name if name == "-" else str(tmp_path / name)
    if name != "-":
        Path(path).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    code, out, err = run("lse", path, *(("--column=f0",) if name == "t.csv" else ()))
    assert (code, err.count("\n"), said in err) == (0, 1, True)
    assert f"{3 if name == 't.csv' else 6} scores" in out
    if name == "t.csv":
        assert said in run("lse", path)[2]
        assert said in read_frame(Path(path)).notes
        assert said in run("compare", path, f"--out={tmp_path / 'out'}")[2]
        Path(path).write_text("a;b\n1,234;1\n2,345;2\n")
        with pytest.warns(UserWarning, match="the commas in column 'a' are taken for decimal ones; if they group thousands"):
            state = file_logsumexp(path, column="a")
        assert float(state.maximum) == 2.345


# What errors advise -------------------------------------------------------------------------------------------------------


def write_fields(path: Path, arrays: dict[str, Any]) -> None:
    if path.suffix == ".npy":
        np.save(path, arrays["t"])
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    else:
        group = pytest.importorskip("zarr").open_group(path, mode="w")
        for name, array in arrays.items():
            group.create_array(name, data=array)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5", ".zarr"])
def test_every_name_that_an_error_offers_can_be_asked_for(suffix: str, run: Callable, tmp_path: Path) -> None:
    table = np.zeros(5, [("id", "i2"), ("held", [("score", "f4")])])
    table["held"]["score"] = np.arange(5)
    for arrays in ({"t": table}, {"t": table, "u": np.ones(3)}):
        path = tmp_path / f"{len(arrays)}{suffix}"
        write_fields(path, arrays)
        code, _, err = run("lse", str(path))
        names = re.findall(r"'([^']+)'", err.split("--column: ")[1])
        assert (code, len(names)) == (2, 2 + (len(arrays) > 1 and suffix != ".npy"))
        for name in names:
            assert run("lse", str(path), f"--column={name}")[0] == 0, name


ADVICE = {
    "numpy.hstack(list(x)).astype(float)": [
        np.array([1.5, "2"], object),
        np.array([np.arange(2.0), np.arange(3.0)], object),
        np.array([[1, 2.5], [3, 4]], object),
    ],
    "x.astype(numpy.float64)": [np.array(["1.5", "2"]), np.array([b"1.5"]), np.array([1.5], np.longdouble)],
    "x.real": [np.array([1 + 1j])],
    "x / numpy.timedelta64(1, 's')": [np.array([5], "m8[ms]")],
}


@pytest.mark.parametrize("advice", ADVICE)
def test_what_an_error_advises_can_be_summed(advice: str, run: Callable, tmp_path: Path) -> None:
    for x in ADVICE[advice]:
        np.save(tmp_path / "x.npy", x)
        code, _, err = run("lse", str(tmp_path / "x.npy"))
        assert (code, advice.removeprefix("x.astype").removeprefix("x ") in err) == (2, True), err
        np.save(tmp_path / "x.npy", eval(advice, {"numpy": np, "x": x}))
        assert run("lse", str(tmp_path / "x.npy"))[0] == 0
    h5py = pytest.importorskip("h5py")
    if advice.startswith("numpy.hstack"):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            ragged = file.create_dataset("ragged", (3,), h5py.vlen_dtype("f8"))
            for i in range(3):
                ragged[i] = np.arange(i + 1.0)
            file["texts"] = ["1.5", "2"]
            for name, n in (("ragged", 6), ("texts", 2)):
                assert len(eval(advice, {"numpy": np, "x": file[name]})) == n
        assert advice in run("lse", str(tmp_path / "x.h5"), "--column=ragged")[2]


def test_the_only_column_is_not_to_be_changed_for_another(run: Callable, tmp_path: Path) -> None:
    for suffix, text, said in (
        (".csv", "a\n1\nx\n", "line 3 holds 'x'; repair it\n"),
        (".csv", "a,b\n1,2\nx,3\ny,4\n", "line 3 holds 'x' (and 1 more); repair it, or name another column\n"),
    ):
        (tmp_path / f"t{suffix}").write_text(text)
        assert run("lse", str(tmp_path / "t.csv"), "--column=a")[2].endswith(said)


def test_all_that_is_wrong_with_a_sum_is_told_at_once(run: Callable, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    code, out, err = run("lse", str(tmp_path / "no.npy"), str(tmp_path / "x.npy"), "--temperature=0", "--seed=1", "--confidence=2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "5 problems: (1) there is no file" in err
    for said in ("--temperature must be", "--seed is about an estimate", "--confidence must be", "--confidence is about"):
        assert said in err
    (tmp_path / "t.csv").write_text("a,b\n1,2\nx,3\n4\n,5\ny,2\n")
    assert run("lse", str(tmp_path / "t.csv"), "--column=a")[2] == (
        f"softmaxima: {tmp_path / 't.csv'}: has 3 problems: (1) column 'a' is not numeric: line 3 holds 'x' (and 1 more); repair "
        "it, or name another column; (2) 1 value is missing, in line 5; fill them in, or remove those rows; (3) line 4 has 1 "
        "field, where the first line has 2; give every row as many, or quote what holds ','\n"
    )
    code, _, err = run("lse", str(tmp_path / "t.csv"), str(tmp_path / "x.npy"), "--column=c")
    assert "2 problems: (1)" in err
    assert "there is no column 'c'" in err
    assert "x.npy has no columns" in err


# Spellings ----------------------------------------------------------------------------------------------------------------

SPELT = [  # what was learnt, what is new, and as what that counts: None is none of it
    (("TRUE", "FALSE"), ("true", "False", "1", "0", "1.0", "T", "no", "Y", "2", "maybe"), "TFTFTTFT--"),
    (("yes", "no"), ("Yes", "N", "true", "0", "on", "off"), "TFTFTF"),
    (("1", "0"), ("1.0", "00", "TRUE", "f", "2"), "TFTF-"),
    (("1", "2"), ("1.0", "2e0", "+2", "TRUE", "3"), "TFF--"),
    (("007", "7b"), ("7", "7.0", "7B", "7 b", "8"), "TTFF-"),
    (("Paris", "New York"), ("PARIS", " new  york ", "Rome"), "TF-"),
    (("1.5", "1.50"), ("1.500", "1.5"), "-T"),
    (("12345678901234567", "x"), ("12345678901234568", "12345678901234567.0"), "-T"),
    (("TRUE", "T"), ("true", "t", "1"), "TF-"),
]


@pytest.mark.parametrize(("known", "new", "counts"), SPELT, ids=[known[0] for known, *_ in SPELT])
def test_another_spelling_is_what_was_learnt_and_is_told(known: tuple[str, str], new: tuple[str, ...], counts: str) -> None:
    frame = pl.DataFrame({"a": range(4), "c": [*known] * 2, "y": [*known] * 2})
    encoder = Encoder.fit(frame, "y")
    asked = pl.DataFrame({"a": range(len(new)), "c": new, "y": [text.strip() for text in new]})
    place = {known[0]: "T", known[1]: "F"}
    found = [encoder.columns[1].categories[int(i)] if i >= 0 else None for i in encoder.columns[1].values(asked["c"])]
    assert "".join(place.get(text or "", "-") for text in found) == counts
    lines = " ".join(encoder.unknown(asked))
    respelt = [(text, other) for text, other in zip(new, found, strict=True) if other not in (None, text)]
    for text, other in respelt[:1]:
        assert f"'c': read as another spelling of what was learnt: {text!r} as {other!r}" in lines
    assert ("was not in the rows learnt from" in lines) == ("-" in counts)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_booleans_and_codes_of_any_format_are_what_was_learnt(suffix: str, tmp_path: Path) -> None:
    """As tables write them: numbers with a point where some are missing, booleans as numbers, texts or themselves."""
    learnt = model_of(pl.DataFrame({"flag": ["TRUE", "FALSE"] * 6, "code": ["1", "2", "3"] * 4, "y": ["u", "v"] * 6}))
    path = tmp_path / f"t{suffix}"
    for flag in ([True, False, True], [1, 0, 1], [1.0, 0.0, 1.0], ["T", "F", "T"]):
        frame = pl.DataFrame({"flag": flag, "code": [1.0, 2.0, 3.0]})
        frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
        found = predict(learnt, path)
        plain = pl.DataFrame({"flag": ["TRUE", "FALSE", "TRUE"], "code": ["1", "2", "3"]})
        np.testing.assert_array_equal(found.p, learnt.classifier.predict_proba(learnt.encoder.matrix(plain)))
        assert "was not in the rows learnt from" not in " ".join(found.notes)
