"""Serve a model file over HTTP, with rows and predictions as JSON.

    python examples/serve_model.py rentals.safetensors [--port 8000]

For programs on the same machine: no encryption, no authentication. Columns that a row does not name are missing cells.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl

import fireset

MAX_BYTES = 10_000_000


def answer(model, rows) -> list[dict]:
    """Return the prediction of each row, and for a classifier the probability of each class."""
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise ValueError('send a list of rows, such as [{"column": 1}]')
    names = [column.name for column in model.encoder_.columns]
    table = pl.DataFrame([{name: row.get(name) for name in names} for row in rows], infer_schema_length=None)
    replies = [{"prediction": each} for each in model.predict(table).tolist()]
    if hasattr(model, "predict_proba"):
        for reply, probabilities in zip(replies, model.predict_proba(table).tolist(), strict=True):
            reply["probabilities"] = dict(zip(map(str, model.classes_.tolist()), probabilities, strict=True))
    return replies


def make_server(path: str, port: int) -> ThreadingHTTPServer:
    """Create a server for programs on this machine; port 0 is any free port."""
    model = fireset.load(path)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                length = int(self.headers["Content-Length"] or 0)
                if not 0 < length <= MAX_BYTES:
                    raise ValueError(f"send 1 to {MAX_BYTES:,} bytes, a list of rows; got {length:,}")
                code, reply = 200, answer(model, json.loads(self.rfile.read(length)))
            except (ValueError, pl.exceptions.PolarsError) as error:  # InputError of fireset is a ValueError
                code, reply = 400, {"error": str(error)}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    server = make_server(arguments.model, arguments.port)
    print(f"{arguments.model} at http://127.0.0.1:{server.server_port}; stop with Ctrl-C")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
