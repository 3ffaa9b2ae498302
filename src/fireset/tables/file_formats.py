"""File formats of tables, for the reader, its messages and the help texts. Imports nothing, so that help is fast."""

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
COMPRESSION_SUFFIXES = (".gz", ".bz2", ".zst")


def formats_in_words() -> str:
    """List all formats with their suffixes."""
    text, binary = _grouped(TEXT_FORMATS), _grouped(BINARY_FORMATS)
    return f"{text} (also compressed: {', '.join(COMPRESSION_SUFFIXES)}), {binary}"


def _grouped(formats: dict[str, str]) -> str:
    suffixes = {name: [suffix for suffix in formats if formats[suffix] == name] for name in formats.values()}
    return ", ".join(f"{name} ({', '.join(found)})" for name, found in suffixes.items())
