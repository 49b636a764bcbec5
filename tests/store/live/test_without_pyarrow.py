"""Where pyarrow is not installed: what works, and the sentence of what does not."""

import subprocess
import sys


def test_without_pyarrow_a_folder_works_and_an_object_store_says_what_to_install() -> None:
    program = (
        "import sys, tempfile; sys.modules['pyarrow'] = None\n"
        "from semel.extras import MissingExtra\n"
        "from semel.store.roots import open_root\n"
        "root = open_root(tempfile.mkdtemp())\n"
        "root.claim('plant', 'n1', 's')\n"
        "assert root.highest_seq('plant', 'n1') == 0\n"
        "try:\n    open_root('s3://k:secret@bucket/x')\n"
        "except MissingExtra as problem:\n    print(problem)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == ("the root s3://bucket/x needs pyarrow: pip install 'semel[broker]'\n")


def test_without_pyarrow_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from semel.extras import MissingExtra\n"
        "from semel.store.segments import schema\n"
        "try:\n    schema()\n"
        "except MissingExtra as problem:\n    print(problem)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == ("the record of a stream needs pyarrow: pip install 'semel[broker]'\n")


def test_importing_the_module_does_not_load_pyarrow() -> None:
    program = (
        "import sys, semel.store.segments, semel.store.roots, semel.store.sealing\n"
        "import semel.store.compaction, semel.store.retention, semel.store.sealer\n"
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
