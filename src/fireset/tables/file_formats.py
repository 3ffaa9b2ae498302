"""The file formats of tables, in one place: for the reader, its refusals, the help texts and the docs.

Imports nothing, since help texts need it.
"""

# Suffix: name of the format.
TEXT_FORMATS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".txt": "text",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
}
BINARY_FORMATS = {".parquet": "Parquet", ".pq": "Parquet", ".npz": "NPZ", ".xlsx": "Excel", ".xls": "Excel"}
COMPRESSED = (".gz", ".bz2", ".zst")


def formats_in_words() -> str:
    """All formats with their suffixes, in a phrase."""
    text, binary = _grouped(TEXT_FORMATS), _grouped(BINARY_FORMATS)
    return f"{text} (also compressed: {', '.join(COMPRESSED)}), {binary}"


def _grouped(formats: dict[str, str]) -> str:
    suffixes = {name: [suffix for suffix in formats if formats[suffix] == name] for name in formats.values()}
    return ", ".join(f"{name} ({', '.join(found)})" for name, found in suffixes.items())
