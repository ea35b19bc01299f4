"""Task folders in Harbor's layout that tests make of others."""

import shutil
from pathlib import Path

ARTIFACTS = '["/app/work/tally.txt", "/tmp/none"]'
COLLECT = "[[verifier.collect]]\ncommand = 'wc -l <words.txt >/logs/artifacts/n'"
MORE = """
words=$(cat words.txt 2>/dev/null | wc -l)
lines=$(cat /logs/artifacts/n)
echo "{\\"reward\\": $total, \\"words\\": $words, \\"lines\\": $lines}" >/logs/verifier/reward.json
"""


def apart(tally: Path, folder: Path) -> Path:
    """Copies the task `tally`, with a verifier in an environment like the agent's that sees what was tallied.

    It tells how many lines there are in the words, as it sees them and as the agent left them.
    """
    shutil.copytree(tally, folder)
    settings = (folder / "task.toml").read_text().replace('"shared"', '"separate"').replace("collect = []", COLLECT)
    settings = settings.replace("artifacts = []", f"artifacts = {ARTIFACTS}")
    (folder / "task.toml").write_text(settings)
    with (folder / "tests/test.sh").open("a") as script:
        script.write(MORE)
    return folder
