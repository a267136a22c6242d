#!/usr/bin/env python3
"""Goldens of the tokenizer and the chat templates, from reference implementations that share no code with kv2.

    make_tokenizer_goldens.py --fetch-only   vocabularies and templates into the user's cache; standard library and pip
    make_tokenizer_goldens.py                fetch, then write tests/goldens/tokenizer/*.json
                                             (needs the packages gguf, tokenizers, sentencepiece, jinja2)

The vocabularies gpt-2, llama-bpe, llama-spm and qwen2 lie as GGUF files in llama.cpp's sources inside the source
distribution of llama-cpp-python; they are not committed. References: Hugging Face's `tokenizers` with the official
pre-tokenizer of each family, Google's `sentencepiece`, and `jinja2` for the templates.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unicodedata

SDIST = "llama-cpp-python==0.3.36"
VOCABULARIES = {  # sha256 of ggml-vocab-NAME.gguf
    "gpt-2": "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac",
    "llama-bpe": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    "llama-spm": "16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69",
    "qwen2": "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
}
TEMPLATES = ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct",
             "meta-llama-Llama-3.2-3B-Instruct"]
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "goldens" / "tokenizer"


def cache_dir() -> pathlib.Path:
    """The same place as user_cache_dir() of src/base/file.h."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    return pathlib.Path(xdg) / "kv2" if xdg else pathlib.Path.home() / ".cache" / "kv2"


def wanted_files() -> dict[str, str]:
    """Path in the cache's vocab folder -> end of its name in the source distribution."""
    files = {}
    for name in VOCABULARIES:
        for suffix in ("", ".inp", ".out"):
            files[f"{name}.gguf{suffix}"] = f"/models/ggml-vocab-{name}.gguf{suffix}"
    for name in TEMPLATES:
        files[f"templates/{name}.jinja"] = f"/models/templates/{name}.jinja"
    return files


def fetch() -> bool:
    """True when everything is there. Quiet and quick then; one line on stderr otherwise, never an exception."""
    folder = cache_dir() / "vocab"
    missing = {path: end for path, end in wanted_files().items() if not (folder / path).is_file()}
    if not missing:
        return True
    print(f"fetching tokenizer vocabularies for the tests (77 MB, once): {SDIST}", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--retries", "1",
                       "--no-binary", "llama-cpp-python", "--dest", scratch, SDIST]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=900)
            archives = list(pathlib.Path(scratch).glob("*.tar.gz"))
            if done.returncode != 0 or not archives:
                reason = (done.stderr.strip().splitlines() or ["no archive came"])[-1]
                raise OSError(f"pip: {reason}")
            extract(archives[0], missing, folder, pathlib.Path(scratch))
    except (OSError, subprocess.SubprocessError, tarfile.TarError, ValueError) as e:
        print(f"could not fetch them; tests that need them say so and are left out ({e})", file=sys.stderr)
        return False
    return True


def extract(archive: pathlib.Path, missing: dict[str, str], folder: pathlib.Path, scratch: pathlib.Path) -> None:
    left = dict(missing)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = next((p for p, end in left.items() if member.isfile() and member.name.endswith(end)), None)
            if path is None:
                continue
            source = tar.extractfile(member)
            if source is None:
                continue
            part = scratch / "part"
            with source, open(part, "wb") as f:
                shutil.copyfileobj(source, f)
            expected = VOCABULARIES.get(path.removesuffix(".gguf"))
            found = hashlib.sha256(part.read_bytes()).hexdigest()
            if expected and found != expected:
                raise ValueError(f"{path} has the sha256 {found}, expected {expected}")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, folder / path)  # a file is there whole or not at all
            del left[path]
            if not left:
                return
    raise ValueError(f"{archive.name} lacks {', '.join(sorted(left))}")


# --- the strings ------------------------------------------------------------------------------------------------------


def strings() -> list[str]:
    """Over 300 texts, each there for a reason; no two alike."""
    out: list[str] = []
    for group in (words, contractions, digits, whitespace, code, scripts, emoji, marks, controls, lookalikes, mixtures, soups):
        out += group()
    assert len(out) == len(set(out)) >= 300
    return out


def words() -> list[str]:
    return [
        "", "a", "A", " ", "hello", "Hello world", " Hello", "  Hello", "Hello ", "HELLO", "hElLo", "Hello, world!",
        "The quick brown fox jumps over the lazy dog.", "antidisestablishmentarianism", "e.g. i.e. etc.",
        "supercalifragilisticexpialidocious!", "x" * 70, "abcdefghijklmnopqrstuvwxyz", "the the the the", "CamelCaseWords",
        "snake_case_words", "kebab-case-words", "UPPER_SNAKE", "http://example.org/a?b=c&d=e#f", "user@example.org",
        "C:\\Users\\me\\file.txt", "/usr/lib/x86_64-linux-gnu/libc.so.6", "1st 2nd 3rd", "co-operate re-enter", "naïve café",
        "\u201cquoted\u201d \u2018text\u2019", "dash \u2014 dash \u2013 dash", "ellipsis\u2026", "a/b/c", "(parentheses) [brackets] {braces}",
        "!!!", "?!?!", "...", "----------", "=====", "a  b   c    d", "#hashtag @mention", "50% off! $9.99 \u20ac8 \u00a37",
        "Mr. O'Neill's dog", "I have 3 apples and 12 pears", "needle-in-a-haystack", "tall-mixing is: 7964129.",
    ]


def contractions() -> list[str]:
    return [
        "I'm you're he's we've they'll I'd can't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D CAN'T", "it'S It's IT'S", "'s", "'S",
        "'re're", "''s", "'sit", "'tis 'twas", "don''t", "rock'n'roll", "y'all'd've", "l'\u00e9t\u00e9", "\u2019s it\u2019s",
        "'\u017f it'\u017f", "'lL 'Ll 'vE", "a'b'c", "'", "' s", "'d'd'd", "'m\n's", "can\u02bct",
    ]


def digits() -> list[str]:
    return [
        "0", "7", "42", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "2024-05-17T12:34:56Z", "0x1F4A9", "1e-10",
        " 1", "  12", "a1b2c3", "v1.2.3-rc4", "\u0663\u0664\u0665", "\u0967\u0968\u0969", "\u2460\u2461\u2462", "\u00bd \u00bc \u00be", "\u2167 \u2168",
        "x\u00b2 + y\u00b3", "\uff11\uff12\uff13", "\U0001d7ce\U0001d7cf", "8" * 40, "1 2 3 4 5", "12\n34", "+49 (0) 30 123456", "00000", "9a9a9",
        "\u3007\u4e00\u4e8c\u4e09", "\u0e51\u0e52",
    ]


def whitespace() -> list[str]:
    out = [" " * n for n in (2, 3, 4, 7, 8, 15, 16, 17, 31, 64, 100)]
    out += [" " * n + "x" for n in (2, 3, 8, 33)] + ["x" + " " * n for n in (1, 2, 5)]
    out += [
        "\t", "\t\t", "\t\tx", " \t x", "\n", "\n\n", "\n\n\n\n\n", "\r", "\r\n", "\r\n\r\n", "\n\r", "a\nb", "a\n\nb", "a\r\nb", "a \n b",
        "a\n  b\n    c", "  \n  ", " \n\n \n", "\n x", "\t\n\t", "a\u00a0b", "\u00a0\u00a0x", "a\u3000b", "\u2003\u2003x", "a\u2028b\u2029c",
        "\u0085x\u0085", "a\u180eb \u180e", "a\u200bb", "\u202f1\u202f000", "\u1680x", "\x0b\x0cx", " \u00a0 \u3000 x", "end with spaces   \n",
        "\n" * 30, "\t" * 20, " \t" * 10, "line one\nline two\r\nline three\rline four", "x \n", "!\n\n", "?! \r\n y",
    ]
    return out


def code() -> list[str]:
    return [
        "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i];\n}\n", "#include <vector>\nint main() {}",
        "if x == 1 and y != 2:\n        pass", "std::vector<std::pair<int, float>> v{{1, 2.5f}};", "SELECT * FROM t WHERE a >= 10;",
        "<div class=\"a\">&nbsp;</div>", "{\"key\": [1, 2, {\"k\": null}]}", "a = b ? c : d;", "x->y.z[0]", "// comment\n/* block */",
        "\\begin{equation} E = mc^2 \\end{equation}", "$HOME/.bashrc && echo \"$PATH\" | grep -v '^#'", "r'\\d+\\s*\\w{2,3}?'",
        "lambda x: x**2 % 3", "fn main() -> Result<(), Box<dyn Error>> {\n    Ok(())\n}", "\t\tif (a) {\r\n\t\t\tb();\r\n\t\t}",
        "0b1010 0o17 0xFF 1_000", "@decorator\nclass A(B):\n    \"\"\"doc\"\"\"", "a<<=1; b>>=2; c^=~d;", "+++---***///", "```python\nprint('hi')\n```",
        "# Title\n\n- item\n  - nested\n\n1. one\n", "| a | b |\n|---|---|\n", "let s = `t ${x}`;", "x := <-ch", "()[]{}<>;:,.!?", "%s %d %5.2f\\n",
    ]


def scripts() -> list[str]:
    return [
        "你好，世界！", "我爱北京天安门", "中文和English混排123", "日本語のテキストです。", "カタカナ ひらがな 漢字", "한국어 텍스트입니다", "㐀㐁 \U00020000\U0002a6d6",
        "Привет, мир!", "Ёлка ёж", "Γειά σου Κόσμε", "Ὀδύσσεια", "שלום עולם", "مرحبا بالعالم", "السَّلَامُ عَلَيْكُمْ", "סֵפֶר", "नमस्ते दुनिया", "বাংলা ভাষা",
        "தமிழ் மொழி", "ภาษาไทยไม่มีช่องว่าง", "ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "አማርኛ ቋንቋ", "ქართული ენა", "Հայերեն", "Tiếng Việt có dấu",
        "Łódź, Žluťoučký kůň", "İstanbul ıŞIK", "straße STRASSE ẞ", "ﬁ ﬂ ﬀ ligatures", "ǅ ǈ titlecase", "ʰʷ modifiers", "ªº", "𝐁𝐨𝐥𝐝 𝔉𝔯𝔞𝔨", "ﷺ", "Ⓐⓑ",
        "„Anführung“ «guillemets»", "¿Qué? ¡Sí!", "、。「」『』", "ａｂｃ ＡＢＣ", "ᚠᚢᚦᚨᚱᚲ", "𐎠𐎡", "ᠮᠣᠩᠭᠣᠯ", "ꦗꦮ", "abc\u200fאבג\u200edef", "\u202eright to left\u202c",
        "∀x∈ℝ: x² ≥ 0", "→ ← ↑ ↓ ⇒", "½ℓ ≈ 0.5 L", "™ © ®", "░▒▓█", "♠♣♥♦", "▁▁a ▁b", "Ġ Ċ ĉ",
    ]


def emoji() -> list[str]:
    return [
        "😀", "😀😀😀", " 😀", "a😀b", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "❤", "1️⃣2️⃣", "👩🏿‍🚀 in space", "☃️", "😀 😃  😄", "🤷‍♂️", "©️", "🫠", "\ufe0f\ufe0f", "🧑🏻‍🤝‍🧑🏿", "😶‍🌫️!!!",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ]


def marks() -> list[str]:
    return [
        "e\u0301", "cafe\u0301 cafe\u0301", "n\u0303o", "A\u030angstro\u0308m", "\u0301", " \u0301x", "a\u0301\u0302\u0303\u0304", "q\u0307\u0323", "q\u0323\u0307",
        "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u212b \u2126 \u212a", "\u0958", "Z\u0351\u036b\u0343a\u0310l\u030dg\u0304o\u0301", "o\u0328\u0301", "\u00e9 = e\u0301",
        unicodedata.normalize("NFD", "Tiếng Việt"), unicodedata.normalize("NFD", "ガギグ"), "\u093f\u0915", "1\u0301 2\u0308",
    ]


def controls() -> list[str]:
    return ["\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x08\x08", "a\x1cb\x1dc", "\ufeffBOM", "\ufffd\ufffd", "\ufffe", "\ue000\uf8ff",
            "\U0010fffd", "\u00ad soft\u00adhyphen", "\x80\x9f", "\u2060\u2061", "\x0e\x0f\x10"]


def lookalikes() -> list[str]:
    return [
        "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|",
        "<| im_start |>", "<|im_start|><|im_start", "<|begin_of_text|>Hello", "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<s>Hello</s>",
        "<unk>", "<0x41><0x0A>", "[INST] x [/INST]", "<<|im_end|>>", " <|im_end|> ", "<|IM_END|>", "<|endoftext|", "|endoftext|>", "<file_sep><filename>a.py",
        "[PAD151650]", "<|eot_id|><|eot_id|> x", "text <|end_of_text|>\n",
    ]


def mixtures() -> list[str]:
    """Random walks over all groups: joints between kinds of text that nobody thought of."""
    parts = ["the", " model", " 12", "3", "  ", "\n", "\n\n", "\t", "'s", "'ll", "!", " ...", "你好", "é", "e\u0301", "😀", "👨‍👩‍👧", "Ω", "ß", "\u00a0", "\r\n", "_", "<|im_end|>",
             "(", ")", "{\n", ";", "x", " X", "0", "٣", "\u200d", "\ufe0f", "한", " ", "'", "\"", "\x00", "\u0300", "%", "नि", "۔", "…", "A", "DON'T", " --", "=>"]
    pick = random_numbers(20260)
    return ["".join(parts[pick(len(parts))] for _ in range(n)) for n in [14] * 40 + [200] * 4]


def soups() -> list[str]:
    """Random letters have no words that merge at once: the order of the merges shows."""
    pick = random_numbers(7)
    alphabets = ["abcdefghijklmnopqrstuvwxyz", "etaoin shrdlu", "aA ", "01", "ab\n ", "\u00e4\u00f6\u00fc\u00dfeia", "абвгдежз ", "אבגדה ", "あいうえおかき",
                 "的一是不了人我在有他", "{}()[];:,. \n\t", "\u0300\u0301aeiou", "👍🏽👨👩\u200d\ufe0f", "<|>_imstarend ", "aaaaaaab", "\u00c3\u00a9\u00e2\u0080"]
    return ["".join(a[pick(len(a))] for _ in range(n)) for a in alphabets for n in (60, 150)]


def random_numbers(state: int):
    """The same numbers with every version of Python."""
    def pick(n: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n
    return pick


# --- the references ---------------------------------------------------------------------------------------------------

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def read_vocabulary(path: pathlib.Path) -> dict:
    from gguf import GGUFReader
    reader = GGUFReader(path)
    names = ("tokens", "token_type", "merges", "scores")
    out = {n: reader.fields[f"tokenizer.ggml.{n}"].contents() for n in names if f"tokenizer.ggml.{n}" in reader.fields}
    template = reader.fields.get("tokenizer.chat_template")
    return out | {"chat_template": template.contents() if template else ""}


def hugging_face(vocabulary: dict, family: str):
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers as pre
    tokens, types = vocabulary["tokens"], vocabulary["token_type"]
    plain = {t: i for i, t in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in vocabulary["merges"]]
    tok = Tokenizer(models.BPE(vocab=plain, merges=merges, fuse_unk=False, byte_fallback=False,
                               ignore_merges=family == "llama-bpe"))
    gpt2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = {
        "gpt-2": gpt2,
        "llama-bpe": pre.Sequence([pre.Split(Regex(LLAMA3), behavior="isolated"), bytes_only]),
        "qwen2": pre.Sequence([pre.Split(Regex(QWEN2), behavior="isolated"), bytes_only]),
        "smollm2": pre.Sequence([pre.Digits(individual_digits=True), gpt2]),
    }[family]
    if family == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.add_special_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types) if k in (CONTROL, UNKNOWN)])
    tok.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types) if k == USER_DEFINED])
    assert tok.get_vocab_size() == len(tokens)
    return tok


def sentence_piece(vocabulary: dict):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    for token, score, kind in zip(vocabulary["tokens"], vocabulary["scores"], vocabulary["token_type"]):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = pb.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(vocabulary["tokens"])
    model.trainer_spec.unk_id, model.trainer_spec.bos_id, model.trainer_spec.eos_id, model.trainer_spec.pad_id = 0, 1, 2, -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def save(name: str, value: dict) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (OUT / name).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


def save_hugging_face(name: str, tok, texts: list[str]) -> None:
    import tokenizers
    parse = [tok.encode(s, add_special_tokens=False).ids for s in texts]
    tok.encode_special_tokens = True
    as_text = [tok.encode(s, add_special_tokens=False).ids for s in texts]
    differ = {str(i): ids for i, ids in enumerate(as_text) if ids != parse[i]}
    save(f"{name}.json", {"reference": f"tokenizers {tokenizers.__version__}", "ids": parse, "as_text": differ})


def small_tokenizers(texts: list[str]):
    """Whole tokenizer.json files with the parts that the big vocabularies do not have, trained on the strings."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers as pre, processors, trainers
    bytes_only = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    added = [AddedToken("the", single_word=True, normalized=False), AddedToken("\U0001f600", lstrip=True, normalized=False),
             AddedToken("fox", rstrip=True, normalized=False), AddedToken("\u1ebf", normalized=True)]

    def make(pre_tokenizer, normalizer, byte_level=True, template=None, **options):
        tok = Tokenizer(models.BPE(**options))
        tok.pre_tokenizer, tok.normalizer = pre_tokenizer, normalizer
        special = ["<unk>", "<s>", "</s>", "<|im_end|>"] + ([] if byte_level else [f"<0x{b:02X}>" for b in range(256)])
        trainer = trainers.BpeTrainer(vocab_size=500 if byte_level else 760, special_tokens=special, show_progress=False, limit_alphabet=280,
                                      initial_alphabet=pre.ByteLevel.alphabet() if byte_level else [])
        tok.train_from_iterator([t for t in texts if len(t) < 120], trainer)
        data = json.loads(tok.to_str())
        data["added_tokens"] = data["added_tokens"][:4]  # the byte tokens belong to the model alone
        tok = Tokenizer.from_str(json.dumps(data))
        tok.add_tokens(added)
        if template:
            tok.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
        return tok

    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = lambda pattern: pre.Split(pattern, behavior="isolated")
    yield "small-nfc-template", make(pre.Sequence([split(Regex(gpt4o)), bytes_only]), normalizers.NFC(), template="<s> $A </s>")
    yield "small-prefix-space", make(pre.ByteLevel(add_prefix_space=True), None)
    yield "small-three-splits", make(
        pre.Sequence([split(Regex(r"\p{N}{1,3}")), split("e"), split(Regex(r"\w+\b|\s?[\p{P}\p{S}]+|(?=[A-Z])|^\S")),
                      pre.Digits(individual_digits=True), bytes_only]), None, ignore_merges=True)
    yield "small-removed-gaps", make(
        pre.Sequence([pre.Split(Regex(r"\s?\p{L}+|\s?\p{N}+"), behavior="removed", invert=True), bytes_only]), None)
    added[:] = added[:3]  # a token matched behind the normalizer of spaces is refused
    spaces = dict(byte_level=False, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    yield "small-prepend", make(None, prepend, template="<s> $A", **spaces)
    yield "small-metaspace", make(pre.Metaspace(replacement="▁", prepend_scheme="first", split=False), None, **spaces)


def save_small_tokenizers(texts: list[str]) -> None:
    import tokenizers
    for name, tok in small_tokenizers(texts):
        picked = list(range(0, len(texts), 6))
        save(f"{name}.json", {"reference": f"tokenizers {tokenizers.__version__}", "tokenizer": json.loads(tok.to_str()), "strings": picked,
                              "ids": [tok.encode(texts[i]).ids for i in picked],
                              "bare": [tok.encode(texts[i], add_special_tokens=False).ids for i in picked[:20]]})


def save_templates(smollm2_template: str) -> None:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(ValueError(text))
    user = lambda t: {"role": "user", "content": t}
    assistant = lambda t: {"role": "assistant", "content": t}
    system = lambda t: {"role": "system", "content": t}
    chats = [
        [user("Hi")], [system("Be brief."), user("What is 2 + 2?")], [user("Hi"), assistant("Hello!"), user("And now?")],
        [system("S"), user("a"), assistant("b"), user("c"), assistant("d"), user("e")], [user("  spaces around \n")], [user("")],
        [system(" padded \n\n"), user("\u3000zwei\n\nZeilen 😀 <|im_end|>\t")],
    ]
    rows = {"smollm2": smollm2_template}
    for name in TEMPLATES:
        rows[name] = (cache_dir() / "vocab" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    rendered = {name: [env.from_string(text).render(messages=c, add_generation_prompt=True, bos_token="<|begin_of_text|>")
                       for c in chats] for name, text in rows.items()}
    save("chat.json", {"reference": f"jinja2 {jinja2.__version__}", "smollm2_template": smollm2_template, "chats": chats,
                       "rendered": rendered})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch-only", action="store_true")
    if parser.parse_args().fetch_only:
        fetch()
        return 0  # a test run without network goes on without these vocabularies
    if not fetch():
        return 1
    texts = strings()
    save("strings.json", {"strings": texts})
    vocab, model = cache_dir() / "vocab", cache_dir() / "models" / SMOLLM2
    for name in ("gpt-2", "llama-bpe", "qwen2"):
        save_hugging_face(name, hugging_face(read_vocabulary(vocab / f"{name}.gguf"), name), texts)
    import sentencepiece
    spm = sentence_piece(read_vocabulary(vocab / "llama-spm.gguf"))
    save("llama-spm.json", {"reference": f"sentencepiece {sentencepiece.__version__}", "ids": [spm.encode(s) for s in texts], "as_text": {}})
    smollm2 = read_vocabulary(model)
    save_hugging_face("smollm2", hugging_face(smollm2, "smollm2"), texts)
    from tokenizers import Tokenizer
    save_hugging_face("needle-15m", Tokenizer.from_file(str(ROOT.parent / "shared/models/needle-15m/tokenizer.json")), texts)
    save_small_tokenizers(texts)
    save_templates(smollm2["chat_template"])
    for path in sorted(OUT.glob("*.json")):
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
