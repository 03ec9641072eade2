"""Writes beside a `tokenizer.json` what the packages `tokenizers` and `jinja2` make of some texts and conversations.

python expect_tokens.py FOLDER
"""

import json
import pathlib
import random
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

TEXTS = [
    "", " ", "  ", "\n", "\t\n ", "hello world", " hello  world  ", "Hello World's DON'T i'm we'll 'S 'T 'Re",
    "a\n\nb\r\n\r\n  c\t\td", "foo\n ", "   \n \n", "1234567 12,345.678 ½ ² ٣٤٥", "naïve café e\u0301 Å ﬁ ẞ ſ K",
    "日本語のテキスト、中文字符。한국어 문장\u3000全角", "Привет, мир! Ünïcödé", "emoji 👩‍👩‍👧‍👦 🇩🇪 🤖",
    "def f(x):\n    return x**2 # comment\n\n\n", "<|im_start|>user\nhi<|im_end|>\n", "<|eot_id|>there <s>you</s><eos>",
    "a\u00a0b\u2003c\u200bd", "\u2581x ▁▁ y", "<0x0A> \x00 \x7f", "ไทย ภาษา हिन्दी देवनागरी عربى עברית",
    "https://example.com/a?b=c&d=%20", "A" * 50 + "b" * 50, "ǅ ʰ ªº", "don’t “quote”—dash…", "x" * 2000,
]
ALPHABET = "abcXYZ 0123\n\r\t.,!?'\"-_/\\éß中文あア한😀\u0301\u00a0\u2028▁<>|{}"
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "<Rome> & 'é'", "at": "9"}}}
CHATS = [
    [{"role": "user", "content": " hi there "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
    ],
]


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def rendered(config, template, messages):
    """The text of a conversation, as `transformers` sets its environment up; None where the template refuses."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda _: "26 Jul 2024"
    name = lambda token: token["content"] if isinstance(token, dict) else token or ""
    try:
        return environment.from_string(template).render(
            messages=messages, bos_token=name(config.get("bos_token")), eos_token=name(config.get("eos_token")),
            add_generation_prompt=True, tools=None, documents=None,
        )
    except jinja2.exceptions.TemplateError:
        return None


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    draw = random.Random(1)
    drawn = ["".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 60))) for _ in range(300)]
    texts = []
    for text in TEXTS + drawn:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text).ids
        texts.append(dict(text=text, tokens=tokens, whole=whole, decoded=tokenizer.decode(tokens)))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = config.get("chat_template")
    chats = []
    if isinstance(template, str):
        chats = [dict(messages=chat, text=rendered(config, template, chat)) for chat in CHATS]
    (folder / "expected.json").write_text(json.dumps(dict(texts=texts, chats=chats)))


if __name__ == "__main__":
    main()
