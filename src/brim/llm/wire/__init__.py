"""Ollama and OpenAI-compatible servers, over HTTP.

    address        the URL of a server, its credentials, and how they are kept out of every text
    statuses       HTTP statuses and error bodies as typed failures
    fields         what both protocols read out of JSON: texts, counts, vectors
    logprobs       the log-probabilities of generated tokens, in all forms that servers send
    ollama         the protocol of Ollama, without any input or output
    openai         the OpenAI protocol (vLLM, SGLang, llama.cpp, hosted servers), without any input or output
    lost           errors of aiohttp as typed failures
    transport      HttpEndpoint: the requests themselves, bounded in bytes
    shared         one run of a coroutine for all who wait for it
    detect         open_endpoint, and which protocol a server speaks

Nothing here repeats a request, limits how many run at once, or has a time limit for an answer: the engine does.
"""
