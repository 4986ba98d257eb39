"""Writes unicode_classes.inc: from shared/fixtures/tokenizers/unicode_classes.json what HF's regex engine really matches, and
from probing the library what its Digits, Punctuation and single_word take, which go by other Unicode versions again.

    pip install tokenizers==0.23.3
    python3 apps/finetune/data/make_unicode_classes.py ../shared/fixtures/tokenizers/unicode_classes.json
"""
import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))


POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges_of(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def isolated(pre_tokenizer):
    """The code points that the pre-tokenizer makes words of their own between two letters."""
    found = set()
    for i in range(0, len(POINTS), 4096):
        text = "".join("a" + chr(c) for c in POINTS[i:i + 4096]) + "a"
        found |= {ord(p) for p, _ in pre_tokenizer.pre_tokenize_str(text) if len(p) == 1 and p != "a"}
    return found


def word_characters():
    """The code points that keep a single_word token from being found when they touch it."""
    tokenizer = Tokenizer(models.BPE({"<w>": 0, "z": 1}, []))
    tokenizer.add_tokens([AddedToken("<w>", single_word=True, normalized=False)])
    return {c for c in POINTS if 0 not in tokenizer.encode("<w>" + chr(c)).ids}


def main():
    with open(sys.argv[1]) as f:
        classes = json.load(f)["classes"]
    classes["hf_numeric"] = ranges_of(isolated(pre_tokenizers.Digits(individual_digits=True)))
    classes["hf_punctuation"] = ranges_of(isolated(pre_tokenizers.Punctuation()))
    classes["hf_word"] = ranges_of(word_characters())
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
        table.append(f'    {{"{name[3:-1] if name.startswith(chr(92) + "p") else name.lstrip(chr(92))}", {symbol}}},')
    lines += ["inline constexpr NamedClass kClasses[] = {", *table, "};", "// clang-format on", ""]
    with open(os.path.join(HERE, "unicode_classes.inc"), "w") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main()
