"""What the refusals of servers mean, as their documentation and reports of their users word them.

The wordings are of OpenAI, Azure, Anthropic, Gemini, Mistral, Groq, DeepSeek, OpenRouter, Together, vLLM, SGLang,
llama.cpp, Ollama, TGI, LM Studio, TensorRT-LLM and DashScope; numbers and names are invented.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from finqa_plugins.engines._http.refusals import WORDS, Meaning, read_refusal, reply_limit_of

M = Meaning


def error(message: str, **facts: Any) -> str:
    return json.dumps({"error": {"message": message, **facts}})


SERVERS: dict[str, list[tuple[int, str, Meaning]]] = {
    "openai": [
        (400, error("This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 "
                    "tokens.", code="context_length_exceeded", param="messages"), M.CONTEXT),
        (400, error("Your input exceeds the context window of this model.", code="context_length_exceeded"), M.CONTEXT),
        (400, error("max_tokens is too large: 20000. This model supports at most 16384 completion tokens, whereas you "
                    "provided 20000.", param="max_tokens", code="invalid_value"), M.OTHER),
        (400, error("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead.", param="max_tokens", code="unsupported_parameter"), M.FIELD),
        (400, error("Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value "
                    "is supported.", param="temperature", code="unsupported_value"), M.FIELD),
        (401, error("Incorrect API key provided: sk-a***z.", code="invalid_api_key"), M.KEY),
        (404, error("The model `m` does not exist or you do not have access to it.", code="model_not_found"), M.MODEL),
        (429, error("Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please "
                    "try again in 2s.", type="tokens", code="rate_limit_exceeded"), M.LIMIT),
        (429, error("Request too large for m on tokens per min (TPM): Limit 30000, Requested 40000. The input or "
                    "output tokens must be reduced.", code="rate_limit_exceeded"), M.LIMIT),
        (429, error("You exceeded your current quota, please check your plan.", code="insufficient_quota"), M.QUOTA),
        (500, error("The server had an error while processing your request. Sorry about that!"), M.PASSING),
        (503, error("That model is currently overloaded with other requests."), M.PASSING),
    ],
    "azure": [
        (404, error("The API deployment for this resource does not exist.", code="DeploymentNotFound"), M.MODEL),
        (401, error("Access denied due to invalid subscription key or wrong API endpoint.", code="401"), M.KEY),
        (429, error("Requests have exceeded call rate limit of your current pricing tier. Please retry after 20 "
                    "seconds.", code="429"), M.LIMIT),
        (400, error("The response was filtered due to the prompt triggering the content management policy.",
                    code="content_filter", param="prompt"), M.OTHER),
    ],
    "anthropic": [
        (400, error("prompt is too long: 209353 tokens > 199999 maximum", type="invalid_request_error"), M.CONTEXT),
        (400, error("input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length "
                    "or `max_tokens` and try again", type="invalid_request_error"), M.CONTEXT),
        (400, error("Your credit balance is too low to access the API.", type="invalid_request_error"), M.QUOTA),
        (400, error("`temperature` may only be set to 1 when thinking is enabled.",
                    type="invalid_request_error"), M.FIELD),
        (401, error("invalid x-api-key", type="authentication_error"), M.KEY),
        (403, error("Your API key does not have permission to use the resource.", type="permission_error"), M.KEY),
        (404, error("model: claude-none", type="not_found_error"), M.MODEL),
        (413, error("Request exceeds the maximum size", type="request_too_large"), M.CONTEXT),
        (429, error("This request would exceed your organization's rate limit of 40,000 input tokens per minute.",
                    type="rate_limit_error"), M.LIMIT),
        (529, error("Overloaded", type="overloaded_error"), M.PASSING),
    ],
    "gemini": [
        (400, "[" + error("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                          code=400, status="INVALID_ARGUMENT") + "]", M.CONTEXT),
        (400, "[" + error("API key not valid. Please pass a valid API key.", code=400) + "]", M.KEY),
        (404, "[" + error("models/m is not found for API version v1main, or is not supported for generateContent.",
                          code=404, status="NOT_FOUND") + "]", M.MODEL),
        (429, "[" + error("You exceeded your current quota, please check your plan. Please retry in 26.1s.", code=429,
                          status="RESOURCE_EXHAUSTED") + "]", M.LIMIT),
        (503, "[" + error("The model is overloaded. Please try again later.", code=503) + "]", M.PASSING),
    ],
    "mistral": [
        (400, json.dumps({"object": "error", "message": "Prompt contains 65673 tokens and 0 draft tokens, too large "
                          "for model with 32768 maximum context length", "type": "invalid_request_error"}), M.CONTEXT),
        (422, json.dumps({"object": "error", "message": {"detail": [
            {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
        ]}, "type": "invalid_request_error", "code": None}), M.FIELD),
        (400, json.dumps({"object": "error", "message": "Invalid model: none", "type": "invalid_model"}), M.MODEL),
        (401, json.dumps({"message": "Unauthorized", "request_id": "1"}), M.KEY),
        (429, json.dumps({"message": "Requests rate limit exceeded"}), M.LIMIT),
        (400, json.dumps({"object": "error", "message": "Expected last role User or Tool for serving but got assistant",
                          "type": "invalid_request_error"}), M.OTHER),
    ],
    "groq": [
        (400, error("Failed to call a function. Please adjust your prompt.", code="tool_use_failed",
                    failed_generation="<function=sql>"), M.UNREADABLE),
        (400, error("Please reduce the length of the messages or completion.", param="messages",
                    code="context_length_exceeded"), M.CONTEXT),
        (413, error("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000",
                    type="tokens", code="rate_limit_exceeded"), M.LIMIT),
        (429, error("Rate limit reached. Please try again in 7.66s.", code="rate_limit_exceeded"), M.LIMIT),
        (404, error("The model `m` does not exist or you do not have access to it.", code="model_not_found"), M.MODEL),
    ],
    "deepseek": [
        (400, error("This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 "
                    "in the messages, 0 in the completion).", type="invalid_request_error"), M.CONTEXT),
        (402, error("Insufficient Balance", type="unknown_error"), M.QUOTA),
        (400, error("Model Not Exist", type="invalid_request_error"), M.MODEL),
        (401, error("Authentication Fails (no such user)", type="authentication_error"), M.KEY),
        (400, error("deepseek-reasoner does not support Function Calling"), M.TOOLS),
    ],
    "openrouter": [
        (400, error("This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens "
                    "(42832 of text input).", code=400), M.CONTEXT),
        (402, error("Insufficient credits. Add more using the credits page.", code=402), M.QUOTA),
        (403, error("m requires moderation on p. Your input was flagged.", code=403), M.OTHER),
        (404, error("No endpoints found that support tool use.", code=404), M.TOOLS),
        (400, error("none/none is not a valid model ID", code=400), M.MODEL),
        (200, error("Provider returned error", code=502), M.PASSING),
        (429, error("m is temporarily rate-limited upstream. Please retry shortly.", code=429), M.LIMIT),
    ],
    "together": [
        (422, error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` "
                    "tokens and 512 `max_new_tokens`", type="invalid_request_error"), M.CONTEXT),
        (404, error("Unable to access model none. Please visit the list of models; it is not available.",
                    code="model_not_available"), M.MODEL),
        (429, error("You have reached the rate limit specific to this model.", type="model_rate_limit"), M.LIMIT),
    ],
    "vllm": [
        (400, error("This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 in "
                    "the messages, 10000 in the completion).", type="BadRequestError", code=400), M.CONTEXT),
        (400, error("'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is "
                    "512 tokens and your request has 100 input tokens (500 > 512 - 100).", code=400), M.CONTEXT),
        (400, error("The decoder prompt (length 50) is longer than the maximum model length of 40."), M.CONTEXT),
        (400, error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), M.TOOLS),
        (404, error("The model `m` does not exist.", type="NotFoundError", code=404), M.MODEL),
        (400, error("System role not supported", type="BadRequestError", code=400), M.OTHER),
        (400, error("Conversation roles must alternate user/assistant/user/assistant/...", code=400), M.OTHER),
    ],
    "sglang": [
        (400, json.dumps({"object": "error", "message": "The input (61709 tokens) is longer than the model's context "
                          "length (40960 tokens).", "type": "BadRequestError", "code": 400}), M.CONTEXT),
        (400, json.dumps({"object": "error", "message": "Input length (160062 tokens) exceeds the maximum allowed "
                          "length (59862 tokens).", "code": 400}), M.CONTEXT),
        (400, json.dumps({"object": "error", "message": "Requested token count exceeds the model's maximum context "
                          "length of 8192 tokens. You requested a total of 9000 tokens.", "code": 400}), M.CONTEXT),
    ],
    "llama.cpp": [
        (400, error("the request exceeds the available context size, try increasing it", code=400,
                    type="exceed_context_size_error", n_prompt_tokens=1407, n_ctx=256), M.CONTEXT),
        (500, error("Failed to parse input at pos 12: <tool_call>"), M.UNREADABLE),
        (503, error("Loading model", type="unavailable_error", code=503), M.PASSING),
        (400, error("Requested tokens (2285) exceed context window of 2048"), M.CONTEXT),
        (500, error("Requested tokens (2285) exceed context window of 2048"), M.CONTEXT),
    ],
    "ollama": [
        (404, json.dumps({"error": 'model "m" not found, try pulling it first'}), M.MODEL),
        (400, json.dumps({"error": "registry.ollama.ai/library/m does not support tools"}), M.TOOLS),
        (500, json.dumps({"error": "error parsing tool call: raw='{\"a\"', err=unexpected end of JSON input"}),
         M.UNREADABLE),
        (500, json.dumps({"error": "model requires more system memory than is available"}), M.PASSING),
    ],
    "tgi": [
        (422, json.dumps({"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1502",
                          "error_type": "validation"}), M.CONTEXT),
        (429, json.dumps({"error": "Model is overloaded", "error_type": "overloaded"}), M.LIMIT),
    ],
    "lm studio": [
        (400, error("Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
                    "with context length of only 4096 tokens, which is not enough. The number of tokens to keep from "
                    "the initial prompt is greater than the context length."), M.CONTEXT),
        (404, error("Model not found: none"), M.MODEL),
    ],
    "tensorrt-llm": [
        (400, error("The sum of prompt length (5000), query length (0) and max_tokens (512) should not exceed "
                    "max_num_tokens (4096)"), M.CONTEXT),
    ],
    "dashscope": [
        (400, error("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",
                    code="invalid_parameter_error", type="invalid_request_error"), M.CONTEXT),
        (401, error("Incorrect API key provided.", code="invalid_api_key"), M.KEY),
        (400, error("Input is too long for requested model.", type="ValidationException"), M.CONTEXT),
    ],
}  # fmt: skip
CASES = [(name, *case) for name, cases in SERVERS.items() for case in cases]


@pytest.mark.parametrize(("server", "status", "body", "meaning"), CASES)
def test_each_refusal_has_its_meaning(server: str, status: int, body: str, meaning: Meaning) -> None:
    document = json.loads(body)
    refusal = read_refusal(status, {}, body, document if isinstance(document, dict) else None)
    assert refusal.meaning is meaning, (server, refusal)


def test_the_table_is_large_and_the_words_in_the_code_are_few() -> None:
    assert len(CASES) >= 60 and len(SERVERS) >= 12 and len(WORDS) <= 10


def test_the_longest_reply_is_read_from_numbers() -> None:
    words = "max_tokens is too large: 20000. This model supports at most 16384 completion tokens, you gave 20,000."
    assert reply_limit_of(words, 20000) == 16384
    assert reply_limit_of(words, 512) is None, "it is not about this request"
    assert reply_limit_of("context length 16384, prompt 20000", 20000) is None
