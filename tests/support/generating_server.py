"""A model server that really generates: one model behind the OpenAI protocol, with token ids and log-probs as vLLM
tells them.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from brim.generate.config import GenerationConfig
from brim.generate.processor import SequenceProcessor


class GeneratingServer:
    """Serves on 127.0.0.1, in threads of this process; `reload` gives it other weights."""

    def __init__(self, model, tokenizer, *, tells_ids=True):
        self.model = model
        self.tells_ids = tells_ids
        self.loaded = []
        self.seen = []
        """Requests for completions, as they came."""
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def reload(self, directory, step):
        from safetensors.torch import load_file

        with self._lock:
            self.model.load_state_dict(load_file(directory / "model.safetensors"), strict=False)
        self.loaded.append(step)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def complete(self, body):
        options = GenerationConfig(
            temperature=body["temperature"], max_new_tokens=body["max_tokens"], seed=body["seed"] % 2**48
        )
        with self._lock:
            self.seen.append(body)
            processor = SequenceProcessor(self.model, self._tokenizer, options)
            stops = body.get("stop") or []
            (response,) = processor.stream([body["prompt"]], 1, stop=stops)
        ids = response.token_ids.tolist()
        choice = {
            "index": 0,
            "text": response.text,
            "finish_reason": "length" if response.finish_reason == "length" else "stop",
            "stop_reason": stops[0] if response.finish_reason == "stop" else None,
            "logprobs": {
                "tokens": [self._tokenizer.decode([token]) for token in ids],
                "token_logprobs": response.logprobs.tolist(),
            },
        }
        if self.tells_ids:
            choice["token_ids"] = ids
        return {"model": "served", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": len(ids)}}

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._send({"data": [{"id": "served", "owned_by": "vllm"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(server.complete(body))

            def _send(self, values):
                content = json.dumps(values).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        return Handler
