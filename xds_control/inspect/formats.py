"""Which API a path belongs to: the longest suffix wins, whatever prefix, query or doubled slash is around it."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote


class Match(NamedTuple):
    """What the path alone says.

    api: "" for a path that is none of ours. model: named in the path, else "". stream: forced by the path, else None.
    item: id of a stored object in the path (a response, a conversation). form: the body may be multipart.
    grpc: it is a gRPC message. maybe: only the body shows whether it is for this API.
    """

    api: str
    model: str = ""
    stream: bool | None = None
    item: str = ""
    form: bool = False
    grpc: bool = False
    maybe: bool = False


_NONE: Final = Match("")

_FORMS: Final = ("openai.audio", "openai.images")
_SUFFIXES: Final[dict[str, Match]] = {
    path: Match(api, form=api in _FORMS, grpc=api.startswith("grpc."))
    for path, api in {
        "chat/completions": "openai.chat",
        "completions": "openai.completions",
        "responses": "openai.responses",
        "responses/compact": "openai.responses",
        "responses/input_tokens": "openai.responses",
        "conversations": "openai.conversations",
        "embeddings": "openai.embeddings",
        "rerank": "openai.rerank",
        "reranking": "openai.rerank",
        "score": "openai.score",
        "classify": "openai.classify",
        "pooling": "openai.pooling",
        "images/generations": "openai.images",
        "images/edits": "openai.images",
        "images/variations": "openai.images",
        "audio/transcriptions": "openai.audio",
        "audio/translations": "openai.audio",
        "audio/speech": "openai.speech",
        "moderations": "openai.moderations",
        "files": "openai.files",
        "batches": "openai.batches",
        "v1/messages": "anthropic.messages",
        "v1/messages/count_tokens": "anthropic.count_tokens",
        "inference/v1/generate": "vllm.generate",
        "tokenize": "vllm.tokenize",
        "detokenize": "vllm.detokenize",
        "completions/render": "vllm.render",
        "chat/completions/render": "vllm.render",
        "invocations": "sagemaker.invocations",
        "generate": "sglang.generate",
        "api/chat": "ollama.chat",
        "api/generate": "ollama.generate",
        "api/embed": "ollama.embed",
        "api/embeddings": "ollama.embed",
        "v2/chat": "cohere.chat",
        "v2/embed": "cohere.embed",
        "completion": "llamacpp.completion",
        "infill": "llamacpp.completion",
        "embedding": "llamacpp.embedding",
        "vllm.grpc.engine.VllmEngine/Generate": "grpc.vllm",
        "inference.GRPCInferenceService/ModelInfer": "grpc.kserve",
    }.items()
} | {"generate_stream": Match("tgi.generate", stream=True)}
_LONGEST: Final = max(path.count("/") + 1 for path in _SUFFIXES)
_GEMINI: Final = {
    "generateContent": Match("gemini.generate", stream=False),
    "streamGenerateContent": Match("gemini.generate", stream=True),
    "countTokens": Match("gemini.count_tokens"),
    "embedContent": Match("gemini.embed"),
    "batchEmbedContents": Match("gemini.embed"),
    "predict": Match("kserve.predict"),
}
_BEDROCK: Final = {
    "converse": Match("bedrock.converse", stream=False),
    "converse-stream": Match("bedrock.converse", stream=True),
    "invoke": Match("bedrock.invoke", stream=False),
    "invoke-with-response-stream": Match("bedrock.invoke", stream=True),
}
_TRITON: Final = {
    "generate": Match("triton.generate"),
    "generate_stream": Match("triton.generate", stream=True),
    "infer": Match("kserve.infer"),
}
_PATH_LIMIT: Final = 4096
_CACHE_LIMIT: Final = 4096
_CACHED_PATH: Final = 256


class Paths:
    """Path to API, remembering the paths that keep coming."""

    def __init__(self) -> None:
        self._known: dict[str, Match] = {}

    def match(self, path: str) -> Match:
        """The API of a request path as Envoy's `:path` gives it."""
        known = self._known.get(path)
        if known is None:
            known = match_path(path)
            if len(path) <= _CACHED_PATH:
                if len(self._known) >= _CACHE_LIMIT:
                    self._known.clear()
                self._known[path] = known
        return known


def match_path(path: str) -> Match:
    """As `Paths.match`, without memory."""
    path = path[:_PATH_LIMIT].partition("?")[0].partition("#")[0]
    if "://" in path[:16]:  # absolute form
        path = "/" + path.partition("://")[2].partition("/")[2]
    # An escaped slash inside a model's name must not become a separator; %2F in place of all of them may.
    segments = [unquote(part) for part in path.split("/") if part]
    if len(segments) == 1 and "/" in segments[0]:
        segments = [part for part in segments[0].split("/") if part]
    if not segments:
        return Match("tgi.generate", maybe=True) if path == "/" else _NONE
    return _with_model(segments) or _by_suffix(segments)


def _by_suffix(segments: list[str]) -> Match:
    for length in range(min(len(segments), _LONGEST), 0, -1):
        found = _SUFFIXES.get("/".join(segments[-length:]))
        if found is not None:
            return found
    for place in range(len(segments) - 2, -1, -1):
        if segments[place] in ("responses", "conversations") and len(segments) - place <= 4:
            return Match(f"openai.{segments[place]}", item=segments[place + 1])
    return _NONE


def _with_model(segments: list[str]) -> Match | None:
    """Paths that carry the model: Azure, Triton and KServe, Gemini, Bedrock, OpenAI's old engines."""
    last = segments[-1]
    name, colon, verb = last.rpartition(":")
    if colon and verb in _GEMINI and len(segments) >= 2:
        return _GEMINI[verb]._replace(model=name)
    if len(segments) < 3:
        return None
    before = segments[-3:-1]
    if last in _BEDROCK and before[0] == "model":
        return _BEDROCK[last]._replace(model=before[1])
    if last in _TRITON:
        if before[0] == "models":
            return _TRITON[last]._replace(model=before[1])
        if len(segments) >= 5 and segments[-5] == "models" and before[0] == "versions":
            return _TRITON[last]._replace(model=segments[-4])
    for word in ("deployments", "engines"):
        if word in segments[:-2]:
            place = len(segments) - 1 - segments[::-1].index(word)
            found = _by_suffix(segments[place + 2 :]) if place + 2 < len(segments) else _NONE
            if found.api:
                return found._replace(model=segments[place + 1])
    return None
