"""Write the generated pages of docs/: `make reference`."""

from tests.reference.pages import DOCS, generated_pages

for name, text in generated_pages().items():
    path = DOCS / name
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
        print(f"written: docs/{name}")
