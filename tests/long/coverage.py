"""Branch coverage of each module of semel.mqtt by its own test file alone.

    python -m tests.long.coverage

The whole suite covers every branch; this shows that no module depends on another's tests.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "src" / "semel" / "mqtt"

# Data without branches, tested through the modules that use it.
DATA = {"rules.py", "exchange_rules.py", "packet_types.py"}


def own_tests(module: Path) -> list[str]:
    """tests/mqtt/packets/test_x.py, and test_x_….py, for src/semel/mqtt/packets/x.py."""
    folder = ROOT / "tests" / "mqtt" / module.relative_to(CORE).parent
    more = sorted(folder.glob(f"test_{module.stem}_*.py"))
    return [str(path) for path in (folder / f"test_{module.name}", *more)]


def uncovered(module: Path, folder: str) -> str:
    """The coverage report of the module after its own tests; "" if nothing is missing."""
    data = f"--data-file={folder}/{module.stem}"
    coverage = [sys.executable, "-m", "coverage"]
    ran = subprocess.run(
        [*coverage, "run", data, "-m", "pytest", "-q", *own_tests(module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        return ran.stdout
    subprocess.run([*coverage, "combine", "--quiet", data], cwd=ROOT, check=True)
    report = subprocess.run(
        [*coverage, "report", data, "-m", f"--include={module}", "--fail-under=100"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return report.stdout + report.stderr if report.returncode else ""


def main() -> None:
    failed = 0
    modules = [
        path
        for path in sorted(CORE.rglob("*.py"))
        if path.name != "__init__.py" and path.name not in DATA
    ]
    with tempfile.TemporaryDirectory() as folder:
        for module in modules:
            missing = uncovered(module, folder)
            failed += bool(missing)
            name = module.relative_to(CORE)
            print(f"{name}: {'100 %' if not missing else 'not covered'}", flush=True)
            print(missing, end="")
    print(f"{len(modules) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
