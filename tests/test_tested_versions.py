"""constraints-tested.txt: what `make` installs."""

import re

from tested_versions import HEAD, ROOT, direct_dependencies


def test_every_direct_dependency_has_one_tested_version():
    text = (ROOT / "constraints-tested.txt").read_text()
    assert text.startswith(HEAD)
    pins = re.findall(r"^([a-z0-9-]+)==[\w.]+$", text, re.MULTILINE)
    assert pins == sorted(direct_dependencies())
