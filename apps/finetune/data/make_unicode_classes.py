"""Writes unicode_classes.inc from shared/fixtures/tokenizers/unicode_classes.json (what HF's regex engine really matches).

    python3 apps/finetune/data/make_unicode_classes.py ../shared/fixtures/tokenizers/unicode_classes.json
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    with open(sys.argv[1]) as f:
        classes = json.load(f)["classes"]
    lines = ["// Made by make_unicode_classes.py: the code points of each class as Hugging Face's regex engine (Unicode 16) sees",
             "// them, as ranges first, last. Do not edit.", "// clang-format off"]
    table = []
    for name, ranges in classes.items():
        symbol = "k" + "".join(c for c in name if c.isalnum()).capitalize()
        lines.append(f"inline constexpr CodePointRange {symbol}[] = {{")
        row = "   "
        for first, last in ranges:
            item = f" {{0x{first:x}, 0x{last:x}}},"
            if len(row) + len(item) > 110:
                lines.append(row)
                row = "   "
            row += item
        lines += [row, "};"]
        table.append(f'    {{"{name[3:-1] if name.startswith(chr(92) + "p") else name[1:]}", {symbol}}},')
    lines += ["inline constexpr NamedClass kClasses[] = {", *table, "};", "// clang-format on", ""]
    with open(os.path.join(HERE, "unicode_classes.inc"), "w") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main()
