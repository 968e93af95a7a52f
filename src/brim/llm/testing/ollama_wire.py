"""Ollama's own protocol (`/api/...`), as the test server speaks it.

Answers are streamed unless the request has `"stream": false`. Durations are in nanoseconds; the time that a request
waited in the queue is `total_duration` minus all others. An empty prompt loads the model and is answered at once.
"""

from datetime import UTC, datetime
from typing import Any

from brim.llm.call import Call
from brim.llm.testing.behaviour import Refusal
from brim.llm.testing.replies import token_facts, token_texts
from brim.llm.testing.service import Request, Service
from brim.llm.testing.wires import message_list, sampling, text_list, to_json

VERSION = "0.13.0"
"""The version that it claims to be."""


class OllamaWire:
    """Bodies of requests and replies in Ollama's protocol."""

    calls: frozenset[str] = frozenset(("/api/generate", "/api/chat", "/api/embed", "/api/embeddings"))
    stream_type = "application/x-ndjson"

    def __init__(self, service: Service) -> None:
        self._service = service

    def call(self, path: str, body: dict[str, Any]) -> Call:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise Refusal("model is required")
        if path == "/api/embed":
            return Call(kind="embed", model=model, inputs=text_list(body.get("input", []), "input"))
        if path == "/api/embeddings":
            return Call(kind="embed", model=model, inputs=text_list(body.get("prompt", ""), "prompt"))
        options: dict[str, Any] = body.get("options") or {}
        extra = {name: value for name, value in body.items() if name not in _KNOWN}
        asked = body.get("logprobs") is True
        how = sampling(options, max_tokens=options.get("num_predict"), logprobs=asked, extra=extra)
        if path == "/api/chat":
            return Call(kind="chat", model=model, messages=message_list(body.get("messages", [])), sampling=how)
        return Call(kind="complete", model=model, prompt=str(body.get("prompt") or ""), sampling=how)

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        return path in ("/api/generate", "/api/chat") and body.get("stream") is not False

    def reply(self, request: Request) -> bytes:
        if request.call.kind != "embed":
            text = "".join(request.content.texts)
            return to_json(self._piece(request, text, token_texts(text)) | self._end(request))
        vectors = request.content.vectors
        if vectors is not None and request.fault == "short_embeddings":
            vectors = vectors[:-1]
        if request.path == "/api/embeddings":
            return to_json({"embedding": [] if vectors is None or not len(vectors) else vectors[0]})
        values = {"model": request.call.model, "embeddings": vectors, **self._durations(request)}
        return to_json(values | {"prompt_eval_count": request.content.prompt_tokens})

    def pieces(self, request: Request) -> list[bytes]:
        tokens = token_texts("".join(request.content.texts))
        return [to_json(self._piece(request, token, [token])) + b"\n" for token in tokens]

    def last(self, request: Request) -> bytes:
        return to_json(_piece(request.path, request.call.model, "") | self._end(request)) + b"\n"

    def error(self, status: int, message: str) -> bytes:
        if status == 401:
            return to_json({"error": "unauthorized"})
        return to_json({"error": message})

    def missing(self, path: str, model: str) -> bytes:
        if path in ("/api/embed", "/api/embeddings"):
            return to_json({"error": f'model "{model}" not found, try pulling it first'})
        return to_json({"error": f"model '{model}' not found"})

    def error_piece(self, message: str) -> bytes:
        return to_json({"error": message}) + b"\n"

    def information(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        model = str(body.get("model") or "")
        if method == "POST" and path == "/api/show":
            return self._show(model)
        if method == "POST" and model and _only_loads(path, body):
            return self._load(model, path, body)
        if method not in ("GET", "HEAD"):
            return None
        if path == "/":
            return 200, b"Ollama is running"
        if path == "/api/version":
            return 200, to_json({"version": VERSION})
        if path == "/api/tags":
            return 200, to_json({"models": [_listed(name) for name in self._service.models()]})
        if path == "/api/ps":
            loaded = {"size_vram": 0, "expires_at": "2100-01-01T00:00:00Z", "context_length": 4096}
            return 200, to_json({"models": [_listed(name) | loaded for name in self._service.models()]})
        return None

    def _show(self, model: str) -> tuple[int, bytes]:
        if not model:
            return 400, self.error(400, "model is required")
        if not self._service.has(model):
            return 404, self.missing("/api/show", model)
        about = {"modelfile": f"FROM {model}", "template": "{{ .Prompt }}", "details": _DETAILS}
        return 200, to_json(about | {"model_info": {}, "capabilities": ["completion", "embedding"]})

    def _load(self, model: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if not self._service.has(model):
            return 404, self.missing(path, model)
        reason = "unload" if body.get("keep_alive") == 0 else "load"
        return 200, to_json(_piece(path, model, "") | {"done": True, "done_reason": reason})

    def _piece(self, request: Request, text: str, tokens: list[str]) -> dict[str, Any]:
        """Return a part of an answer, with the log-probs of its tokens if they were asked for."""
        piece = _piece(request.path, request.call.model, text)
        if request.call.sampling.logprobs and self._service.behaviour.reports_logprobs:
            piece["logprobs"] = [{"token": token, "logprob": token_facts(token)[1]} for token in tokens]
        return piece

    def _end(self, request: Request) -> dict[str, Any]:
        values = {"done": True, "done_reason": request.content.reasons[0], **self._durations(request)}
        return values | {
            "prompt_eval_count": request.content.prompt_tokens,
            "eval_count": request.content.completion_tokens,
        }

    def _durations(self, request: Request) -> dict[str, int]:
        if not self._service.behaviour.reports_durations:
            return {}
        queue, prompt, answer = request.durations()
        total = {"total_duration": int((queue + prompt + answer) * 1e9), "load_duration": 0}
        if request.call.kind == "embed":
            return total
        return total | {"prompt_eval_duration": int(prompt * 1e9), "eval_duration": int(answer * 1e9)}


_KNOWN = frozenset(("model", "prompt", "messages", "options", "stream", "logprobs"))
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "test",
    "families": ["test"],
    "parameter_size": "0",
    "quantization_level": "F32",
}


def _listed(name: str) -> dict[str, Any]:
    """A model in a list of models."""
    return {
        "name": name,
        "model": name,
        "modified_at": "2026-01-01T00:00:00Z",
        "size": 0,
        "digest": "0" * 64,
        "details": _DETAILS,
    }


def _piece(path: str, model: str, text: str) -> dict[str, Any]:
    """One line of a streamed answer, or the fields that a whole one begins with."""
    piece: dict[str, Any] = {"model": model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
    if path == "/api/chat":
        piece["message"] = {"role": "assistant", "content": text}
    else:
        piece["response"] = text
    piece["done"] = False
    return piece


def _only_loads(path: str, body: dict[str, Any]) -> bool:
    """True for a request that has nothing to answer: it loads the model into memory, or unloads it."""
    if path == "/api/generate":
        return not body.get("prompt")
    return path == "/api/chat" and not body.get("messages")
