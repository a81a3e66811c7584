"""A notebook in a kernel: jupysql's magics, with SQLAlchemy's URL and with DuckDB's own connection."""

import sys

import nbformat
from nbclient import NotebookClient

path = sys.argv[1]
CELLS = [
    "%load_ext sql\n%config SqlMagic.displaylimit = None\n%config SqlMagic.feedback = 0",
    f"%sql duckdb:///{path} --alias engine",
    "%%sql\nCREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR);\nINSERT INTO orders VALUES (1, 'brush'), (2, 'soap')",
    "%sql UPDATE orders SET item = 'rope' WHERE id = 1",
    "result = %sql SELECT * FROM orders ORDER BY id\nprint(result.DataFrame().to_csv())",
    "%sql --close engine",
    f"import duckdb\nconnection = duckdb.connect({path!r})\n%sql connection --alias own",
    "%%sql\nINSERT INTO orders SELECT id + 6, item FROM orders WHERE id = 2",
    "%sql DELETE FROM orders WHERE id = 2",
    "print(connection.sql('FROM orders ORDER BY id').df().to_csv())",
    "%sql --close own",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
NotebookClient(notebook, timeout=120).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        if output.get("name") == "stdout":
            print(output.text, end="")
