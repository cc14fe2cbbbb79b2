"""What the texts in a column stand for: numbers, dates, or missing values.

What was done beyond reading plain numbers is said in notes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import polars as pl

from softmaxima.base.numbers import Problems
from softmaxima_lab.wording import named

# Texts that stand for a missing value, in capitals or not. Without this, one "NA" would turn a column of numbers into categories.
MISSING = ("na", "n/a", "n.a", "n.a.", "k.a.", "<na>", "nan", "nat", "null", "(null)", "?", "-", "--", "–", "—", ".", "...")
MISSING += ("no data", "not available")
MISSING += ("#n/a", "#div/0!", "#value!", "#ref!", "#num!", "#name?")  # of spreadsheets
MAYBE_MISSING = ("none", "nil", "unknown", "missing", "undefined")  # among numbers; elsewhere they may be categories

# What a number looks like with a point or a comma before its decimals, once its unit is taken off.
POINT = r"^[+-]?(?:(?:[0-9]+|[1-9][0-9]{0,2}(?:[, '\x{a0}\x{202f}][0-9]{3})+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
COMMA = r"^[+-]?(?:(?:[0-9]+|[1-9][0-9]{0,2}(?:[. '\x{a0}\x{202f}][0-9]{3})+)(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?$"
BEFORE = r"^([+-]?)\s*([$€£¥]|USD|EUR|GBP|CHF)\s*"
AFTER = r"\s*([%‰°$€£¥\p{L}][^\s\d]{0,11})$"
NO_UNIT = r"(?i)^(?:[ap]\.?m\.?|x+[ls])$"  # of times and sizes
ZERO = r"^[+-]?[0.,]+$"
CODES = (r"^[+-]?0[0-9]+$", r"^[0-9]{17,}$")  # 007, and numbers of which float64 has not all digits
EXPONENT = r"^[0-9]+[eE][0-9]+$"
DECIMALS = r"^[+-]?[0-9]*[.,]([0-9]+)$"
SCALES = ("%", "‰", "k", "K", "M", "G")  # beside which a number without a unit is in none
CURRENCIES = {"USD": "$", "EUR": "€", "GBP": "£"}
UNITS = re.compile(  # of which a column that has several is named; other endings make categories, such as 3a and 3b
    r"[%‰$€£¥]|CHF|[kmµ]?g|lbs?|oz|t|[kcmµ]?m|ft|in|mi|yd|[mc]?[lL]|m?s|min|hr?s?|d|days?|weeks?|months?|years?|[kM]?W|m?[VA]|"
    r"K|°?[CF]|[kMG]?Hz|[khM]?Pa|m?bar|psi|k?J|k?cal|[kKMGT]?B|k|M|km/h|mph"
)
NUMBER_LIKE = re.compile(r"[-+$€£¥\s.,]*\d[-\d.,:/\s'%$€£¥eE+TZ]*")  # dates and times too

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y")
DATES += ("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y")
TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S%.f", "%I:%M %p", "%I:%M:%S %p")
HOURS = "%I %p"  # of which polars wants minutes too
MONTHS = ("%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y", "%b %Y", "%B %Y", "%b-%Y", "%B-%Y", "%Y %b", "%Y %B", "%Y-%b")
QUARTERS = {  # the year, the quarter
    "%YQ%q": r"^(?<year>\d{4})[ -]?[qQ](?<quarter>[1-4])$",
    "Q%q%Y": r"^[qQ](?<quarter>[1-4])[ /-]?(?<year>\d{4})$",
}
YEARS = range(1800, 2200)  # of months and quarters: other numbers beside one of two digits are codes
DIGITS = {"%Y": r"(?:^|\D)\d{4}(?:\D|$)", "%y": r"[^\d:]\d{2}(?:[ T]\d.*)?$"}  # of years, without which 1.9.3 is a version
PAIRED = r"^(?<year>\d{4})[-/](?<next>\d{2})$"  # two years, or a month
DATE_LIKE = (
    r"^(?:\d{1,4}[-/.:]\d{1,2}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}|[A-Za-z]{3,9} \d{1,2}, \d{4}|\d{1,2} ?[aApP]\.?[mM]\.?$"
    r"|[A-Za-z]{3,9}[ -]\d{4}$|\d{4}[ -][A-Za-z]{3,9}$|\d{4}[ -]?[qQ][1-4]$|[qQ][1-4][ /-]?\d{4}$)"
)


@dataclass(frozen=True)
class KnownColumn:
    """What is known of a column before it is read."""

    is_text: bool | None = None  # it stays text, whatever it looks like; False: it holds numbers or dates
    kept: Collection[str] | None = ()  # its texts that are no missing value; None: all
    written: str | None = None  # this and the next as in `Values`
    unit: str | None = None


@dataclass(frozen=True)
class Known:
    """What is known of a file before it is read, as by a model that learnt from another one."""

    columns: Mapping[str, KnownColumn] = field(default_factory=dict)
    words: Collection[str] = ()  # that stand for a missing value besides those that always do
    names: Sequence[str] = ()  # of columns that there must be
    target: str | None = None  # the name of one that there may be; without it and `names`, the last that is not left out
    left_out: Collection[str] = ()
    has_codes: bool = True  # numbers may stand for categories

    def of(self, name: str) -> KnownColumn:
        """What is known of a column."""
        return self.columns.get(name, NOTHING)

    def target_of(self, columns: Sequence[str]) -> str | None:
        """Which of them is the target, whose texts are names of classes, whatever they look like."""
        if self.target is not None or self.names:
            return self.target
        return next((name for name in reversed(columns) if name not in self.left_out), None)


NOTHING = KnownColumn()


@dataclass(frozen=True, eq=False)
class Values:
    """A frame of what texts stand for, and what was done to get it."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each column, the texts that stand for a missing value
    written: Mapping[str, str] = field(default_factory=dict)  # before which sign decimals are, "point" or "comma"; a date's pattern
    units: Mapping[str, str] = field(default_factory=dict)  # of columns of numbers that have one
    misfits: tuple[str, ...] = ()  # how it contradicts what is known


def values_of(frame: pl.DataFrame, is_text: bool, known: Known, semicolons: bool = False) -> Values:
    """Missing values are null, and where all is written as text, numbers and dates are what they stand for."""
    columns, padded, words, strings, plain, misfits = {}, [], {}, {}, {}, Problems()
    target = known.target_of(frame.columns)
    for column in frame:
        name = column.name
        columns[name] = column.fill_nan(None) if column.dtype.is_float() else column
        if column.dtype != pl.String:
            continue
        is_open = is_text and not known.of(name).is_text
        read = _stripped(column, is_open, known, frame.columns if name == target else (), padded, words)
        texts = column.str.strip_chars().set(read.is_null(), None)
        columns[name] = texts if name == target else read
        if name != target and is_open:
            (plain if read.dtype.is_numeric() else strings)[name] = texts
    numbers, dates, units, notes = {}, {}, {}, []
    floats = {name: texts for name, texts in plain.items() if columns[name].dtype == pl.Float64}
    learnt = {name: column.written for name, column in known.columns.items() if column.written is not None}
    written = dict(learnt)
    for name, (column, example, kind, unit) in _written_numbers(strings, floats, semicolons, learnt, misfits).items():
        columns[name], numbers[name], written[name] = column, example, kind
        if unit:
            units[name] = unit
    for name in strings.keys() - numbers.keys():
        if (found := _written_dates(strings[name], learnt.get(name))) is not None:
            columns[name], dates[name], written[name] = found
    written = dict.fromkeys(floats, "point") | {name: how for name, how in written.items() if name in columns}
    for what, found in (("numbers", numbers), ("dates, which features have in days", dates)):
        if found:
            ordered = (f"{name!r} ({found[name]})" for name in columns if name in found)
            may_be_codes = found is dates or units or any(_code(texts) for name, texts in strings.items() if name in found)
            codes = "; --categories takes columns of codes as texts" if known.has_codes and may_be_codes else ""
            notes.append(f"read as {what}: {named(ordered)}{codes}")
    notes += _of_units(strings, columns, units, known, misfits)
    if paired := [name for name, texts in strings.items() if columns[name].dtype == pl.String and _are_pairs(texts)]:
        examples = named(f"{name!r} ({strings[name].drop_nulls()[0]!r})" for name in paired)
        notes.append(f"taken for texts, being pairs of years: {examples}; if they are months, write them as 2008-09-01")
    coded = {name: text for name, texts in plain.items() if name not in numbers and (text := _code(texts))}
    if coded and known.has_codes:
        examples = named(f"{name!r} ({text!r} is {_shortest(float(text))})" for name, text in coded.items())
        notes.append(f"read as numbers, though they may be codes: {examples}; --categories takes columns of codes as texts")
    if padded:
        notes.append(f"blanks around texts are left out in {named(map(repr, padded))}")
    return Values(pl.DataFrame(list(columns.values())), tuple(notes), words, written, units, tuple(misfits))


# Missing values -----------------------------------------------------------------------------------------------------------


def is_missing(text: str) -> bool:
    """Whether a text stands for a missing value wherever it is."""
    return text.lower() in ("", *MISSING)


def maybe_missing(texts: pl.Series) -> list[str]:
    """Texts in a column of categories that may stand for a missing value."""
    return texts.filter(texts.str.to_lowercase().is_in(MAYBE_MISSING)).unique().sort().to_list()


def _stripped(
    column: pl.Series, written: bool, known: Known, names: Sequence[str], padded: list[str], words: dict[str, list[str]]
) -> pl.Series:
    """Without blanks around, null where a word for that stands and is none of the names, and numbers if all are plainly written."""
    bare = column.str.strip_chars().replace("", None)
    every = bare.drop_nulls().unique()
    asked = every.filter(every.str.to_lowercase().is_in([word.lower() for word in known.words])).sort().to_list()
    if written and not asked and (number := _plain(column)) is not None:
        return number
    texts = every if not written else _not_plain(bare)
    texts = texts.filter(~texts.is_in(names))
    kept = known.of(column.name).kept
    found = texts.filter(texts.str.to_lowercase().is_in(MISSING)).to_list() if kept is not None else []
    found = sorted({*asked, *found}.difference(kept or ()))
    others = bare.filter(~bare.is_in(found)).drop_nulls() if found else bare
    if len(others) and not others.str.contains(r"[\p{L}\p{N}]").any():
        found = [word for word in found if word.isalnum()]  # a column of signs, such as + and -
    if written and (maybe := maybe_missing(texts)) and kept == ():
        certain = bare.set(bare.is_in([*found, *maybe]), None)
        if known.of(column.name).is_text is False or is_quantity(certain):
            found = sorted({*found, *maybe})
    if found:
        bare = bare.set(bare.is_in(found), None)
        words[column.name] = found
    if written and (number := _plain(bare)) is not None:
        return number
    if (bare != column.replace("", None)).any():
        padded.append(column.name)
    return bare


def is_quantity(column: pl.Series) -> bool:
    """Whether all are numbers, or all dates."""
    values = column.drop_nulls().unique(maintain_order=True)
    return _plain(column) is not None or bool(_fitting(values)) or _dated(values) is not None


# Numbers ------------------------------------------------------------------------------------------------------------------


def as_float(text: str) -> float | None:
    """The number that Python reads, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def _shortest(number: float) -> float:
    """An int where it is whole."""
    return int(number) if number.is_integer() else number


def _code(texts: pl.Series) -> str | None:
    """A text of a column of numbers that may be none: it has zeros or digits that its number has not, or an exponent."""
    decimals = texts.str.extract(DECIMALS)
    digits = decimals.str.len_chars()
    found = [texts.str.contains(pattern) for pattern in CODES]
    found.append(decimals.str.ends_with("0") & (digits > (digits.min() or 0)))  # 1.10 beside 1.9
    if not texts.str.contains(".", literal=True).any():
        found.append(texts.str.contains(EXPONENT))
    return next((texts[coded.arg_max()] for coded in found if coded.any()), None)  # type: ignore[index]


def _plain(column: pl.Series) -> pl.Series | None:
    """Ints or floats, if Python would read all as such, and None otherwise."""
    for dtype in (pl.Int64, pl.Float64):
        number = column.cast(dtype, strict=False)
        if number.null_count() == column.null_count():
            nan = dtype == pl.Float64 and number.is_nan().any()  # which stands for a missing value
            return None if nan or number.null_count() == len(number) else number
    return None


def _not_plain(column: pl.Series) -> pl.Series:
    """The texts in it that are no number."""
    number = column.cast(pl.Float64, strict=False)
    return column.filter(column.is_not_null() & (number.is_null() | number.is_nan())).unique()


def _written_numbers(
    strings: Mapping[str, pl.Series],
    plain: Mapping[str, pl.Series],
    semicolons: bool,
    written: Mapping[str, str],
    misfits: list[str],
) -> dict[str, tuple[pl.Series, str, str, str]]:
    """Columns of numbers with separators of thousands, decimal commas and one unit each, with an example, what its decimals are
    before, and the unit.

    `plain` are texts of columns that have been read as floats already. What contradicts how they are known to be `written` becomes
    one of the `misfits`.
    """
    bare, fits, learnt, certain = {}, {}, [], {}
    for name, column in strings.items():
        values = column.drop_nulls().unique(maintain_order=True)
        if _fitting(values.head(50)) and (kinds := _fitting(values)):
            bare[name], fits[name] = values, {written[name]} if written.get(name) in kinds else kinds
            if len(kinds) == 1:
                certain[next(iter(kinds))] = values[0]
            elif name in written:
                learnt.append(name)
    if with_point := [texts for texts in plain.values() if "comma" not in _fitting(texts.drop_nulls().unique())]:
        certain["point"] = with_point[0].drop_nulls().filter(with_point[0].drop_nulls().str.contains(".", literal=True)).first()
    only_comma = any(kinds == {"comma"} for kinds in fits.values())
    for name, column in plain.items():  # where 1.234 is no fraction, if all in the column may be like it
        if written.get(name, "comma" if only_comma and semicolons else "point") != "comma":
            continue
        values = column.drop_nulls().unique(maintain_order=True)
        if values.str.contains(".", literal=True).any() and "comma" in _fitting(values):
            bare[name], fits[name] = values, {"comma"}
            learnt += [name] * (name in written)
    for name in learnt:
        misfits += _contradiction(name, bare[name][0], written[name], certain)
    found = {}
    for name, kinds in fits.items():
        with_comma = only_comma or (semicolons and not bare[name].str.contains(".", literal=True).any())
        kind = next(iter(kinds)) if len(kinds) == 1 else "comma" if with_comma else "point"
        numbers, unit = _read_numbers(bare[name], kind)
        read = list(zip(bare[name], numbers, strict=True))
        text, number = next((pair for pair in read if as_float(pair[0]) != pair[1]), read[0])
        example = f"{text!r} is {_shortest(number)}"
        column = strings[name] if name in strings else plain[name]
        found[name] = column.replace_strict(bare[name], numbers, return_dtype=pl.Float64), example, kind, unit
    return found


def _contradiction(name: str, text: str, learnt: str, certain: Mapping[str, Any]) -> list[str]:
    """Where a text may be read in two ways what was learnt decides, unless the rest of the file is written in the other way."""
    other = "comma" if learnt == "point" else "point"
    if certain.get(other) is None or learnt in certain:
        return []
    return [
        f"{name!r} ({text!r}) was learnt with a decimal {learnt}, and this table has a decimal {other}, such as "
        f"{certain[other]!r}; write all numbers in one way"
    ]


def _parted(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The numbers without their units, and the units, "" where there is none."""
    before, after = (values.str.extract(pattern, group).replace(CURRENCIES) for pattern, group in ((BEFORE, 2), (AFTER, 1)))
    return values.str.replace(BEFORE, "${1}").str.replace(AFTER, ""), before.fill_null("") + after.fill_null("")


def _fitting(values: pl.Series) -> set[str]:
    """Before which sign the decimals of all may be: a point, a comma, or either; none where they are no numbers of one unit."""
    bare, units = _parted(values)
    return _signs(bare) if len(_different(bare, units)) < 2 and not units.str.contains(NO_UNIT).any() else set()


def _signs(bare: pl.Series) -> set[str]:
    kinds = {"point": POINT, "comma": COMMA} if len(bare) else {}
    return {kind for kind, pattern in kinds.items() if bare.str.contains(pattern).all()}


def _different(bare: pl.Series, units: pl.Series) -> list[str]:
    """The units of numbers, of which 0 needs none; others without one are taken to be in that of the rest, but beside `SCALES`."""
    given = units.filter(~bare.str.contains(ZERO) | (units != "")).unique(maintain_order=True)
    found = [unit for unit in given if _plurals(unit).isdisjoint(given)]
    return [unit for unit in found if unit or not set(SCALES).isdisjoint(found)]


def _are_one_word(one: str, other: str) -> bool:
    return one == other or one in _plurals(other) or other in _plurals(one)


def _plurals(unit: str) -> set[str]:
    """Of a word; a letter is a sign, such as m, which ms is no plural of."""
    return {f"{unit}s", f"{unit}es", re.sub("y$", "ies", unit)} - {unit} if len(unit) > 1 else set()


def _read_numbers(values: pl.Series, kind: str) -> tuple[pl.Series, str]:
    """The numbers, and their unit."""
    bare, units = _parted(values)
    groups = r"[, '\x{a0}\x{202f}]" if kind == "point" else r"[. '\x{a0}\x{202f}]"
    numbers = bare.str.replace_all(groups, "").str.replace(",", ".", literal=True).cast(pl.Float64)
    unit = next(filter(None, units), "")
    return numbers / 100 if unit == "%" else numbers, unit


def _of_units(
    strings: Mapping[str, pl.Series],
    columns: Mapping[str, pl.Series],
    units: Mapping[str, str],
    known: Known,
    misfits: list[str],
) -> list[str]:
    """Lines for columns of several units, numbers without the unit of the others, and columns without the unit that is known;
    another one is one of the `misfits`."""
    lines, mixed, bared = [], {}, {}
    for name, column in strings.items():
        bare, found = _parted(column.drop_nulls().unique(maintain_order=True))
        if name in units and len(without := bare.filter((found == "") & ~bare.str.contains(ZERO))):
            bared[name] = without[0]
        if columns[name].dtype == pl.String and (several := several_units(column)):
            mixed[name] = several
    if mixed:
        several = named(f"{name!r} ({found})" for name, found in mixed.items())
        lines.append(f"taken for texts, being numbers of several units: {several}; write them in one")
    if bared:
        examples = named(f"{name!r} ({text!r} is in {units[name]!r})" for name, text in bared.items())
        lines.append(f"numbers without a unit are taken to be in that of the others: {examples}")
    learnt = {name: column.unit for name, column in known.columns.items() if column.is_text is False}
    if other := [
        f"{name!r} is in {units[name]!r}, not in {unit!r}" if unit else f"{name!r} is in {units[name]!r}, not in a plain number"
        for name, unit in learnt.items()
        if not _are_one_word(units.get(name, unit or ""), unit or "")
    ]:
        misfits.append(f"{named(other)}, which was learnt from; convert it")
    if without := [
        f"{name!r} ({'5% was 0.05' if unit == '%' else repr(unit)})"
        for name, unit in learnt.items()
        if unit is not None and name in columns and name not in units
    ]:
        lines.append(f"without the unit that was learnt from, and taken as they are: {named(without)}")
    return lines


# Dates --------------------------------------------------------------------------------------------------------------------


def _written_dates(column: pl.Series, known: str | None) -> tuple[pl.Series, str, str] | None:
    """Dates or times, if all are written in one way, an example, and the pattern: the known one where it fits."""
    values = column.drop_nulls().unique(maintain_order=True)
    if (found := _dated(values, known)) is None:
        return None
    dates, pattern = found
    form = " is %d %B %Y" if dates.dtype != pl.Time else " is %H:%M" if "%p" in pattern else ""
    example = f"{values[0]!r}{dates[0].strftime(form)}"
    return column.replace_strict(values, dates, return_dtype=dates.dtype), example, pattern


def _dated(values: pl.Series, known: str | None = None, odd: float = 0.0) -> tuple[pl.Series, str] | None:
    """What the values are by a pattern that all but a share of them fit, the known one before others, and the pattern."""
    alike = values.filter(values.str.contains(DATE_LIKE))
    if not len(alike) or len(alike) < (1 - odd) * len(values):
        return None
    days_first = known is not None and _days_first(known)
    for dtype, pattern in sorted(
        _patterns(alike[0]), key=lambda found: (found[1] != known, days_first and not _days_first(found[1]))
    ):
        for some in (values.head(20), values):
            dates = _parsed(some, dtype, pattern)
            if dates.null_count() > odd * len(some):
                break
        else:
            return None if known is None and _are_pairs(values.filter(dates.is_not_null())) else (dates, pattern)
    return None


def _are_pairs(texts: pl.Series) -> bool:
    """Whether all are two years that follow one another, such as 2008-09: several, for one may be a month."""
    parts = texts.drop_nulls().unique().str.extract_groups(PAIRED).struct.unnest().cast(pl.Int32)
    return len(parts) > 1 and parts.select((pl.col("year") + 1) % 100 == pl.col("next")).to_series().fill_null(False).all()


def _days_first(pattern: str) -> bool:
    return 0 <= pattern.find("%d") < pattern.find("%m")


def _patterns(example: str) -> Iterator[tuple[Any, str]]:
    """How dates and times are written, month before day where / separates them and both fit."""
    long = re.search(r"\d{4}", example) is not None
    for date in DATES if long else [date.replace("%Y", "%y") for date in DATES if date.endswith("%Y")]:
        yield pl.Date, date
        for between, time, zone in product((" ", "T"), TIMES, ("", "Z", "%#z")):
            yield pl.Datetime("us"), f"{date}{between}{time}{zone}"
    for time in (*TIMES, HOURS):
        yield pl.Time, time
    for month in (*MONTHS, *QUARTERS) if long else ():
        yield pl.Date, month


def _parsed(values: pl.Series, dtype: Any, pattern: str) -> pl.Series:
    """Dates and times, null where the pattern does not fit; a month or a quarter is its first day."""
    if pattern in QUARTERS:
        parts = values.str.extract_groups(QUARTERS[pattern]).struct.unnest().cast(pl.Int32)
        dates = parts.select(pl.date(pl.col("year"), 3 * pl.col("quarter") - 2, 1)).to_series()
    elif pattern in MONTHS:
        dates = (values + " 1").str.strptime(pl.Date, f"{pattern} %d", strict=False)
    else:
        values = values.str.replace(r"\s*([aApP])\.?[mM]\.?$", " ${1}m") if "%p" in pattern else values
        values, pattern = ("0 " + values, f"%M {HOURS}") if pattern == HOURS else (values, pattern)
        for digits in (DIGITS[year] for year in DIGITS if year in pattern):
            values = values.set(~values.str.contains(digits), None)
        return values.str.strptime(dtype, pattern, strict=False)
    return dates.set(~dates.dt.year().is_between(YEARS.start, YEARS.stop - 1), None)


# Texts among others ---------------------------------------------------------------------------------------------------------


def stray(column: pl.Series) -> tuple[str, str] | None:
    """A text in a column whose others, more than half, are numbers of one unit or dates, and which of the two these are."""
    texts = column.cast(pl.String).drop_nulls()
    values, counts = texts.unique(maintain_order=True), texts.unique_counts()
    for kind, fits in (("numbers", _are_numbers(values, counts)), ("dates", _are_dates(values, None, 0.5))):
        if 0 < counts.filter(~fits).sum() < counts.sum() / 2:
            return values.filter(~fits)[0], kind
    return None


def several_units(column: pl.Series) -> str | None:
    """The units in a column most of whose texts are numbers of several units."""
    bare, units = _parted(column.cast(pl.String).drop_nulls().unique(maintain_order=True))
    numbers = max((bare.str.contains(pattern) for pattern in (POINT, COMMA)), key=pl.Series.sum)
    several = _different(bare.filter(numbers), units.filter(numbers))
    if len(several) < 2 or numbers.sum() <= len(bare) / 2 or not all(map(UNITS.fullmatch, filter(None, several))):
        return None
    return named((repr(unit) if unit else "none" for unit in several), 3)


def misfit(column: pl.Series, kind: str, written: str | None, unit: str | None) -> int:
    """The place of the first text that is no number or date as the column was learnt with, or of the first where all are."""
    if kind == "date":
        fits = _are_dates(column, written, 1.0)
    else:
        bare, units = _parted(column)
        bared = [] if unit in SCALES else [""]
        allowed = [*bared, *(given for given in units.unique() if _are_one_word(given or "", unit or ""))]
        fits = bare.str.contains(COMMA if written == "comma" else POINT) & (units.is_in(allowed) | bare.str.contains(ZERO))
    odd = column.is_not_null() & ~fits
    return int((odd if odd.any() else column.is_not_null()).arg_max())  # type: ignore[arg-type]


def _are_numbers(values: pl.Series, counts: pl.Series) -> pl.Series:
    """Of each value, whether it is a number, with decimals and the unit as most have them; plain ones where units differ."""
    bare, units = _parted(values)
    found = [bare.str.contains(pattern) & ~units.str.contains(NO_UNIT) for pattern in (POINT, COMMA)]
    fits = max(found, key=lambda fits: counts.filter(fits).sum())
    return fits & (units == "") if len(_different(bare.filter(fits), units.filter(fits))) > 1 else fits


def _are_dates(values: pl.Series, known: str | None, odd: float) -> pl.Series:
    found = _dated(values, known, odd)
    return pl.repeat(False, len(values), eager=True) if found is None else found[0].is_not_null()
