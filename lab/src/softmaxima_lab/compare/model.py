"""A trained classifier, and the encoder of its table, in a file that is read without running anything in it.

A `.pt` holds texts, numbers and tensors, which torch reads with `weights_only`; a `.skops` holds a `Classifier`, and skops makes no
object of a type that is not in `TRUSTED` or known to it as harmless. Both are then checked, value by value, as arguments are.
"""

from __future__ import annotations

import csv
import importlib
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import softmaxima as sm
from softmaxima.base.memory import bounded
from softmaxima.base.numbers import InputError, Problems
from softmaxima.base.writing import as_cell, write_bytes, write_text
from softmaxima.integrations.classifier import Classifier
from softmaxima_lab.compare.measures import Fold, evaluate
from softmaxima_lab.tables.encoding import Encoder, digest, kind_of
from softmaxima_lab.tables.reading import Reading, read_frame
from softmaxima_lab.wording import named, rows

KIND, FORMAT = "softmaxima model", 1
NO_MODEL = "not a model that softmaxima compare --save wrote"
ROOM = 10**9  # bytes that reading a model may take beside what it holds, whatever skops makes of it
TRUSTED = ("softmaxima.integrations.classifier.Classifier",)


@dataclass(frozen=True, eq=False)
class Model:
    """What predicts the target of a table: of class i of the encoder, the classifier's class i."""

    classifier: Classifier
    encoder: Encoder
    learnt_from: str  # the digest of the rows


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of each row of a table, the probabilities of the classes."""

    target: str
    classes: tuple[str, ...]
    p: np.ndarray  # [rows, classes] float64
    places: np.ndarray  # [rows], the number of each in the file, from 1
    notes: tuple[str, ...]  # how the file was read, and what was not known
    score: Fold | None  # where the table has the target
    scored: int  # rows that have it

    @property
    def frame(self) -> pl.DataFrame:
        """Row numbers, the most probable class, and the probability of each."""
        return self.shown(str)

    def shown(self, how: Callable[[str], str]) -> pl.DataFrame:
        """The same with each class as it is to be shown. Classes that are different stay so, if need be by their numbers."""
        names = _distinct([how(name) for name in self.classes])
        predicted = pl.Series([names[index] for index in self.p.argmax(-1)], dtype=pl.String)
        probabilities = {f"probability of {name}": column for name, column in zip(names, self.p.T, strict=True)}
        return pl.DataFrame({"row": self.places, "predicted": predicted} | probabilities)

    def write(self, path: Path) -> None:
        """The frame as CSV, in which no text is a formula."""
        frame, head = self.shown(as_cell), io.StringIO()
        csv.writer(head, lineterminator="\n").writerow(frame.columns)
        write_text(path, head.getvalue() + frame.write_csv(include_header=False))


def _distinct(names: list[str]) -> list[str]:
    """The names, with the number of the class after each that another one has too."""
    while len(set(names)) < len(names):
        many = Counter(names)
        names = [name if many[name] == 1 else f"{name} (class {number})" for number, name in enumerate(names, 1)]
    return names


def predict(model: Model, path: Path) -> Predictions:
    """What a model says of the rows in a file, which is read as `compare` reads one.

    Raises:
        InputError: where the file cannot be read, a column is missing, or a row has no value where the model needs one.
    """
    encoder = model.encoder
    try:
        reading = read_frame(path, encoder.known)
        if not reading.frame.height:
            raise InputError("has no rows; add some")
        problems = Problems((*reading.misfits, *_gaps(reading, model)))
        try:
            features = encoder.matrix(reading.frame, reading.where)
        except InputError as error:
            problems.fail(error)
        problems.tell()
        notes = [*reading.notes, *encoder.unknown(reading.frame)]
        labels = np.full(len(features), -1)
        if encoder.target in reading.frame.columns:
            labels = encoder.labels(reading.frame)
            if kind_of(dtype := reading.frame[encoder.target].dtype) is None:
                notes.append(f"not scored, for {encoder.target!r} is of a type that cannot be used ({dtype})")
            elif other := int((labels < 0).sum()):
                notes.append(f"not scored, for their {encoder.target!r} is missing or no class of the model: {rows(other)}")
    except InputError as error:
        Problems().fail(error, of=f"{path.name}: ")
    p = model.classifier.predict_proba(features)
    known = labels >= 0
    if digest(features[known], labels[known]) == model.learnt_from:
        notes.append("these are the rows that the model learnt from, which says little of new ones")
    score = evaluate(torch.from_numpy(p[known]), torch.from_numpy(labels[known]), 0.0, 0.0)[0] if known.any() else None
    return Predictions(encoder.target, encoder.classes, p, reading.numbers, tuple(notes), score, int(known.sum()))


def _gaps(reading: Reading, model: Model) -> list[str]:
    """What is infinite, and what is missing unless the model was trained to take it."""
    infinite, missing = [], []
    for series in (reading.frame[column.name] for column in model.encoder.columns if column.name in reading.frame.columns):
        if series.dtype.is_float() and (found := series.is_infinite().fill_null(False)).any():
            infinite.append(f"{series.name!r} ({reading.where(found.arg_max())})")  # type: ignore[arg-type]
        if series.has_nulls() and model.classifier.missing == "refuse":
            missing.append(f"{series.name!r} ({reading.where(series.is_null().arg_max())})")  # type: ignore[arg-type]
    lines = [f"infinite values in {named(infinite)}; repair them"] if infinite else []
    if missing:
        lines.append(
            f"missing values in {named(missing)}, and the model takes no row without them; fill them in, or train with --missing "
            "impute on rows that miss some"
        )
    return lines


# Files --------------------------------------------------------------------------------------------------------------------


def save(path: Path, model: Model) -> None:
    """Write a model in the format that the suffix names.

    Raises:
        InputError: where there is no such format.
        ValueError: where a parameter of the classifier is nothing that such a file holds.
    """
    _, write = _format(path)
    versions = {"softmaxima": sm.__version__, "torch": str(torch.__version__), "numpy": np.__version__}
    about = {"kind": KIND, "format": FORMAT, "versions": versions, "learnt_from": model.learnt_from}
    write_bytes(path, write({**about, "encoder": model.encoder.as_dict()}, model.classifier.as_dict()))


def load(path: Path) -> Model:
    """A model as `save` wrote it.

    Raises:
        InputError: where the file holds anything else. Nothing that it holds is run.
    """
    read, _ = _format(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a model that softmaxima compare --save wrote") from None
    if not content.startswith(b"PK"):
        held = f"it begins with {content[:12]!r}" if content else "it is empty"
        raise InputError(f"{path.name} is {NO_MODEL}: {held}; give a file that it wrote")
    try:
        _check_archive(content)
        if path.suffix.lower() == ".skops":
            importlib.import_module("skops.io")
        with bounded(ROOM + 20 * len(content)):
            return read(content)
    except InputError as error:
        raise InputError(f"{path.name} {error}") from None
    except Exception as error:  # what a file that was tampered with may raise has no end
        if isinstance(error, ModuleNotFoundError) and error.name == "skops":
            raise
        raise InputError(f"{path.name} is {NO_MODEL}, or is damaged; save it again") from None


def _check_archive(content: bytes) -> None:
    """Raise InputError where it is packed, as what is made to fill a memory, or a sum of it is wrong, which torch does not ask."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if is_packed or sum(member.file_size for member in members) > len(content):
            raise InputError(f"is {NO_MODEL}: what it holds is packed; give a file that it wrote")
        if damaged := archive.testzip():
            raise InputError(f"is damaged at {damaged!r}; save it again")


def check_format(path: Path) -> None:
    """Raise `InputError` where the suffix names no format, and `ModuleNotFoundError` where what writes it is missing."""
    _format(path)
    if path.suffix.lower() == ".skops":
        importlib.import_module("skops.io")


def _write_pt(about: Mapping[str, Any], classifier: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save({**about, "classifier": _converted(classifier, np.ndarray, torch.from_numpy)}, file)
    return file.getvalue()


def _read_pt(content: bytes) -> Model:
    record = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    _check_plain(record, len(content))
    _check_about(record)
    return _model(record, _converted(record["classifier"], torch.Tensor, torch.Tensor.numpy))


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """The same with each array another kind of array."""
    if isinstance(value, dict):
        return {name: _converted(entry, kind, convert) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_converted(entry, kind, convert) for entry in value)
    return convert(value) if isinstance(value, kind) else value


def _write_skops(about: Mapping[str, Any], classifier: Mapping[str, Any]) -> bytes:
    import skops.io

    return skops.io.dumps({**about, "classifier": Classifier.from_dict(classifier)})


def _read_skops(content: bytes) -> Model:
    import skops.io

    if others := sorted(set(skops.io.get_untrusted_types(data=content)) - set(TRUSTED)):
        raise InputError(f"holds objects that no model has, and that might run code ({named(others)}); nothing of it was loaded")
    record = skops.io.loads(content, trusted=list(TRUSTED))
    classifier = record.get("classifier") if isinstance(record, dict) else None
    is_one = type(classifier) is Classifier
    _check_plain(record | {"classifier": vars(classifier)} if is_one else record, len(content))
    _check_about(record)
    if not is_one:
        raise InputError(f"holds a {type(classifier).__name__} where a Classifier should be; save it again")
    return _model(record, record["classifier"].as_dict())


def _check_plain(record: Any, room: int) -> None:
    """Raise InputError unless it is what a file of so many bytes holds: plain values, each of which took a byte or more of it.

    An expanded tensor, or a list that stands in many places, is small in a file and may be too large for any memory.
    """
    waiting = [record]
    while waiting and room >= 0:
        value, parts = waiting.pop(), ()
        if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            room -= value.nbytes
            parts = value.tolist() if value.dtype == object and room >= 0 else ()
        elif isinstance(value, dict):
            parts = (*value.keys(), *value.values())
        elif isinstance(value, (list, tuple)):
            parts = value
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            raise InputError(f"is {NO_MODEL}: it holds a {type(value).__name__}; give a file that it wrote")
        room -= len(parts)
        waiting += parts if room >= 0 else ()
    if room < 0:
        raise InputError(f"is {NO_MODEL}: what it holds is larger than the file; give a file that it wrote")


def _check_about(record: Any) -> None:
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise InputError("holds something else than a model of softmaxima; give a file that softmaxima compare --save wrote")
    if record["format"] != FORMAT:
        raise InputError(
            f"is of format {record['format']!r}, written by softmaxima {record['versions']['softmaxima']}, and softmaxima "
            f"{sm.__version__} reads format {FORMAT}; train it again, or use the version that wrote it"
        )


def _model(record: Mapping[str, Any], classifier: Mapping[str, Any]) -> Model:
    try:
        encoder = Encoder.from_dict(record["encoder"])
        classes, width = len(encoder.classes), sum(column.width for column in encoder.columns)
        learnt = classifier["learnt"]  # asked before arrays are made of it
        if list(learnt["classes_"]) != list(range(classes)) or learnt["n_features_in_"] != width:
            raise ValueError(f"{classes} classes and {width} features of the table do not fit the classifier")
        if type(record["learnt_from"]) is not str:
            raise ValueError("the digest of its rows must be a text")
        model = Model(Classifier.from_dict(classifier), encoder, record["learnt_from"])
    except ValueError as error:  # of ours
        raise InputError(f"is {NO_MODEL}, or is damaged: {error}; save it again") from None
    return model


def _format(path: Path) -> tuple[Callable[[bytes], Model], Callable[[Mapping[str, Any], Mapping[str, Any]], bytes]]:
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"a model's file ends in {' or '.join(FORMATS)}, got {path.name!r}; name it so")
    return FORMATS[path.suffix.lower()]


FORMATS = {".skops": (_read_skops, _write_skops), ".pt": (_read_pt, _write_pt)}
