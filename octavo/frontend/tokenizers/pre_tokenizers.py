"""The pre-tokenizers of byte-level BPE vocabularies, by their names in GGUF files (`tokenizer.ggml.pre`).

A byte-level BPE vocabulary gives right ids only if text is cut into words as its training text was, and a
GGUF file holds only a name for these cuts. This module has, for every known name, the cuts and the Unicode
normalization that the model's authors published. An unknown name is refused, because other cuts would
silently give wrong ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from octavo.errors import UnsupportedError

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# The letters that DeepSeek LLM lists. They had upper- and lower-case forms in its version of Unicode; \p{L&}
# in today's Unicode has more.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizerKind:
    """How one family of byte-level BPE vocabularies cuts text into words before merges apply.

    With `nfc`, the text is first composed to Unicode's form NFC. Then the patterns `cuts` are applied in
    order, each to the parts that the previous one left. Then `single_digits` makes every digit a part, and
    `gpt2_words` applies the word pattern of GPT-2. With `whole_words`, a word that is itself a token becomes
    that token without merges. `adds_bos` applies to files that do not say whether a text begins with BOS.
    """

    cuts: tuple[str, ...] = ()
    single_digits: bool = False
    gpt2_words: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cuts, followed by the mapping of bytes to the byte-level alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in self.cuts
        ]
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """The normalizer that runs before the text is cut, or None."""
        return normalizers.NFC() if self.nfc else None


def find_pre_tokenizer(name: str | None) -> PreTokenizerKind:
    """The kind that `name`, the value of `tokenizer.ggml.pre`, stands for.

    Raises UnsupportedError for a missing or unknown name, listing the known ones.
    """
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        given = "no tokenizer.ggml.pre" if name is None else f"tokenizer.ggml.pre = {name!r:.80}"
        raise UnsupportedError(
            f"the file has {given}, so it is not known how to cut text into words, and a guess would give "
            f"wrong ids; known names are {', '.join(sorted(_KINDS))}; convert the model again with a current "
            "converter, or give its Hugging Face folder as tokenizer"
        )
    return kind


def _tiktoken_words(digits: str, letter: str = r"\p{L}", not_symbol: str = r"\s\p{L}\p{N}") -> str:
    """GPT-4's word pattern. Families differ in the digits of a word and in what counts as a letter."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?[^{not_symbol}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, suffix: str = "") -> str:
    """GPT-4o's word pattern, in which a word also ends where lower case turns to upper case."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_GPT4 = _tiktoken_words(r"\p{N}{1,3}")
_LLAMA3 = PreTokenizerKind(cuts=(_GPT4,), whole_words=True, adds_bos=True)
_GPT4_WORDS = PreTokenizerKind(cuts=(_GPT4,))
_QWEN2 = PreTokenizerKind(cuts=(_tiktoken_words(r"\p{N}"),), nfc=True)
_GPT4O = PreTokenizerKind(cuts=(_cased_words(r"\p{N}{1,3}", suffix=f"{_CONTRACTION}?"),))
_GPT2 = PreTokenizerKind(gpt2_words=True)
_NEOX = PreTokenizerKind(gpt2_words=True, nfc=True)
_STARCODER = PreTokenizerKind(single_digits=True, gpt2_words=True)

_KINDS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _GPT4_WORDS,
    "smaug-bpe": _GPT4_WORDS,
    "glm4": _GPT4_WORDS,
    "chatglm-bpe": _GPT4_WORDS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": PreTokenizerKind(
        cuts=(_tiktoken_words(r"\p{N}", letter=r"[\p{L}\p{M}]", not_symbol=r"\s\p{L}\p{M}\p{N}"),), nfc=True
    ),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": PreTokenizerKind(cuts=(_cased_words(r"\p{N}"),), whole_words=True, adds_bos=True),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _NEOX,
    "olmo": _NEOX,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "command-r": PreTokenizerKind(single_digits=True, gpt2_words=True, nfc=True),
    "deepseek-llm": PreTokenizerKind(
        cuts=(
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?[{_DEEPSEEK_MARKS}]+",
            r"\s+$",
            _DEEPSEEK_ASIAN,
        ),
        single_digits=True,
    ),
    "deepseek-coder": PreTokenizerKind(
        cuts=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN), single_digits=True
    ),
    "deepseek-v3": PreTokenizerKind(
        cuts=(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3_WORDS)
    ),
}
