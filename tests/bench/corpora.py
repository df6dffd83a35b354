"""Text of four kinds, made from a seed: English prose, Chinese, program code, and mixtures of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import accumulate

_ENGLISH = re.findall(
    r"\S+",
    """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years much where your way down
should because long each just state those people too mr how little good world make very year still see own work
men day get here between both life being under three never know same last another while us might great go come
since against right came take used himself few house use during without again place american around however
home small found thought went say part once general high upon school every does got united left number course
war until always away public something fact water though less put think almost hand enough took head yet
government system better set told nothing night end why called didn't eyes find going look asked later knew
point next city program business give group toward young days let room president side social given present
several order national second possible rather information important development understanding performance
temperature responsibility particularly environment communication organization interesting international
significant relationship consider experience knowledge approximately characteristic infrastructure
recommendation configuration measurement distribution throughput
""",
)

_CHINESE = re.findall(
    r"\S+",
    """
的 一 是 不 了 在 人 有 我 他 这 个 们 中 来 上 大 为 和 国 地 到 以 说 时 要 就 出 会 可
也 你 对 生 能 而 子 那 得 于 着 下 自 之 年 过 发 后 作 里  我们 他们 中国 没有 可以 什么
因为 时候 就是 自己 这个 现在 知道 问题 已经 工作 使用 系统 模型 数据 服务 处理 方法 进行 需要 一个
如果 但是 所以  请求 响应 网络 性能 内存 用户 信息 技术 发展 社会 经济 研究 结果 影响 重要 不同 情况
关系 学习 训练 推理 语言 生成 文本 翻译 总结 分析 计算 优化  负载均衡 人工智能 深度学习 服务质量
操作系统 数据库 分布式 基础设施 香港特别行政区 自然语言处理
""",
)

_NAMES = ("request", "response", "endpoint", "weight", "queue", "buffer", "index", "total", "config", "client", "cache")
_TYPES = ("int", "str", "float", "bytes", "bool", "None", "list[int]", "dict[str, Any]")


def _zipf(words: list[str], exponent: float = 1.0) -> list[float]:
    return list(accumulate(1 / (rank + 2.7) ** exponent for rank in range(len(words))))


_ENGLISH_WEIGHTS = _zipf(_ENGLISH)
_CHINESE_WEIGHTS = _zipf(_CHINESE, 0.8)


def english(rng: random.Random, size: int) -> str:
    """Sentences and paragraphs with some names and numbers."""
    pieces: list[str] = []
    length = 0
    while length < size:
        words = rng.choices(_ENGLISH, cum_weights=_ENGLISH_WEIGHTS, k=rng.randint(5, 22))
        if rng.random() < 0.2:
            words.insert(rng.randrange(len(words)), str(rng.randint(1, 9999)))
        if rng.random() < 0.15:
            words.insert(rng.randrange(len(words)), rng.choice(_ENGLISH).capitalize())
        if rng.random() < 0.4:
            words[len(words) // 2] += ","
        sentence = " ".join(words).capitalize() + rng.choice(".....?!") + ("\n\n" if rng.random() < 0.12 else " ")
        pieces.append(sentence)
        length += len(sentence)
    return "".join(pieces)[:size]


def chinese(rng: random.Random, size: int) -> str:
    """Sentences; size counts UTF-8 bytes, about."""
    pieces: list[str] = []
    length = 0
    while length < size:
        words = rng.choices(_CHINESE, cum_weights=_CHINESE_WEIGHTS, k=rng.randint(4, 16))
        sentence = "".join(words) + rng.choice("，，。。。？！；") + ("\n" if rng.random() < 0.08 else "")
        pieces.append(sentence)
        length += 3 * len(sentence)
    return "".join(pieces)[: max(1, size // 3)]


def code(rng: random.Random, size: int) -> str:
    """Functions with indentation, names of all styles, operators, literals and comments."""
    pieces: list[str] = []
    length = 0
    while length < size:
        first, second, third = (rng.choice(_NAMES) for _ in range(3))
        number = rng.randint(0, 4096)
        indent = "    " * rng.randint(1, 3)
        lines = [
            f"def {first}_{second}(self, {third}: {rng.choice(_TYPES)}) -> {rng.choice(_TYPES)}:",
            f"{indent}# {' '.join(rng.choices(_ENGLISH, cum_weights=_ENGLISH_WEIGHTS, k=rng.randint(3, 10)))}",
            f"{indent}if {third} is not None and self._{second}[{third}] >= {number}:",
            f"{indent}    return {first.capitalize()}{second.capitalize()}({third}=0x{number:04x}, x={{'a': [1, 2]}})",
            f"{indent}for i in range(len(self.{first}s) - 1):",
            f'{indent}    self.{first}s[i] += {third} * {number / 7:.3f} ** 2 // {number + 1}  # "{second}"',
            "",
            "",
        ]
        text = "\n".join(lines[: rng.randint(4, len(lines))]) + "\n"
        pieces.append(text)
        length += len(text)
    return "".join(pieces)[:size]


def mixed(rng: random.Random, size: int) -> str:
    """Stretches of all three kinds, as in a conversation about code."""
    pieces: list[str] = []
    length = 0
    while length < size:
        make = rng.choice((english, chinese, code))
        part = make(rng, min(size - length + 8, rng.randint(100, 1500)))
        pieces.append(part)
        length += len(part.encode())
    return "\n".join(pieces)


KINDS: dict[str, Callable[[random.Random, int], str]] = {
    "english": english,
    "chinese": chinese,
    "code": code,
    "mixed": mixed,
}


def prompt(rng: random.Random, kind: str | None = None, largest: int = 60_000) -> str:
    """One text of a kind (or of any), with a length spread evenly over orders of magnitude from 100 bytes."""
    size = int(100 * (largest / 100) ** rng.random())
    return KINDS[kind or rng.choice(sorted(KINDS))](rng, size)
