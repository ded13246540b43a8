"""The results of a verification as JUnit XML, for CI systems."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from imagefactory.verifying.receipt import Outcome, Receipt

#: Characters that XML 1.0 has no way to write; server logs have them (terminal colours), and
#: labels may.
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_xml(*receipts: Receipt) -> str:
    """One test suite an image, one test case a check."""
    root = ET.Element("testsuites")
    root.extend(_suite(receipt) for receipt in receipts)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=True)
    return UNWRITABLE.sub("?", text) + "\n"


def _suite(receipt: Receipt) -> ET.Element:
    outcomes = [check.outcome for check in receipt.checks]
    suite = ET.Element(
        "testsuite",
        name=receipt.tag,
        tests=str(len(outcomes)),
        failures=str(outcomes.count(Outcome.FAIL)),
        skipped=str(outcomes.count(Outcome.SKIP)),
        errors="0",
        time=f"{sum(check.seconds for check in receipt.checks):.3f}",
        timestamp=receipt.verified_at,
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in {
        "digest": receipt.digest,
        "cell": receipt.cell,
        "build-key": receipt.build_key,
    }.items():
        ET.SubElement(properties, "property", name=name, value=value)
    for check in receipt.checks:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"imagefactory.verify.{receipt.cell}",
            name=check.name,
            time=f"{check.seconds:.3f}",
        )
        detail = check.detail
        if check.outcome is Outcome.FAIL:
            head = detail.partition("\n")[0]
            ET.SubElement(
                case, "failure", message=head, type="required" if check.required else "optional"
            ).text = detail
        elif check.outcome is Outcome.SKIP:
            ET.SubElement(case, "skipped", message=detail)
        else:
            ET.SubElement(case, "system-out").text = detail
    return suite


def write(path: Path, *receipts: Receipt) -> None:
    """Write the results to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_xml(*receipts), encoding="utf-8")
