"""Records the chat requests that vLLM makes of requests to /v1/messages and /v1/responses.

Runs in an environment with vLLM 0.32:

    python record_chat_requests.py > chat-requests.json
"""

import json
import sys

from vllm.entrypoints.anthropic.protocol import (
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import (
    construct_input_messages,
    construct_tool_dicts,
    should_continue_final_message,
)

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ANTHROPIC_TOOLS = [
    {"name": "ls", "description": "Lists files", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"properties": {"zone": {"default": 1.0}}}, "strict": True},
    {"name": "late", "input_schema": SCHEMA, "defer_loading": True},
]
CALL = {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "/", "n": 1.5, "é": "ü"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": "http://host/i.png"}}


def text(value):
    return {"type": "text", "text": value}


def result(content, identity="t1"):
    return {"type": "tool_result", "tool_use_id": identity, "content": content}


def turns(*contents):
    roles = ["user", "assistant"]
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


MESSAGES = [
    {"messages": turns("Hi")},
    {"system": "Be terse.", "messages": turns("Hi", "Hello", "Bye")},
    {
        "system": [text("x-anthropic-billing-header: 1"), text("A"), text(""), text("B")],
        "messages": turns([text("Hi")]),
    },
    {"messages": turns([text("one"), text("two")])},
    {"messages": turns([text("see"), IMAGE], "I see", [URL_IMAGE])},
    {"messages": turns("List", [text("I look."), CALL], [result("a b"), text("and?")])},
    {"messages": turns("List", [CALL, {**CALL, "id": "t2"}], [result("a"), result("b", "t2")])},
    {"messages": turns("List", [CALL], [result([text("a"), text("b"), IMAGE])])},
    {"messages": turns("List", [CALL], [result([]), result(None)])},
    {"messages": turns("List", [CALL], [text("before"), result("late")])},
    {
        "messages": turns(
            "List", [CALL], [result([{"type": "tool_reference", "tool_name": "ls"}, text("x")])]
        )
    },
    {
        "messages": turns(
            "Think",
            [
                {"type": "thinking", "thinking": "Hm. ", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "Yes.", "signature": "s"},
                text("Done"),
            ],
            "Good",
        )
    },
    {"messages": turns("a", [{"type": "redacted_thinking", "data": "x"}], "b")},
    {"messages": turns("a", [], [])},
    {"messages": turns("a"), "tools": ANTHROPIC_TOOLS},
    {"messages": turns("a"), "tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}},
    {"messages": turns("a"), "tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "none"}},
    {
        "messages": turns("a"),
        "tools": ANTHROPIC_TOOLS,
        "tool_choice": {"type": "tool", "name": "ls"},
    },
    {"messages": turns("a"), "thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"messages": turns("a"), "thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
    {"messages": turns("a"), "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    {"messages": turns("a"), "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
    {
        "system": "S",
        "messages": [
            {"role": "user", "content": "1"},
            {"role": "system", "content": [text("T"), text("x-anthropic-billing-header: 2")]},
            {"role": "system", "content": "x-anthropic-billing-header: 3"},
            {"role": "assistant", "content": "2"},
        ],
    },
]

USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"n":1.0}'}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": 'echo "é"'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a b"}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
RESPONSE_TOOLS = [
    {
        **{"type": "function", "name": "ls", "description": "Lists"},
        **{"parameters": SCHEMA, "strict": True},
    },
    {"type": "function", "name": "now", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "sh", "description": "A shell"},
]

RESPONSES = [
    {"input": "Hi"},
    {"instructions": "Be terse.", "input": "Hi"},
    {"input": [USER]},
    {"input": [{"type": "message", **USER, "content": [{"type": "input_text", "text": "Hi"}]}]},
    {"input": [{"role": "developer", "content": "D"}, USER]},
    {
        "input": [
            {"role": "system", "content": "S"},
            USER,
            {"role": "assistant", "content": "A"},
            USER,
        ]
    },
    {"input": [USER, SAID, USER]},
    {"input": [USER, THOUGHT, SAID, FUNCTION, OUTPUT]},
    {"input": [USER, FUNCTION, {**FUNCTION, "call_id": "c3"}, OUTPUT, SAID, USER]},
    {"input": [USER, THOUGHT, FUNCTION, OUTPUT, THOUGHT, SAID]},
    {"input": [USER, {**THOUGHT, "content": None}, SAID]},
    {"input": [USER, CUSTOM, {"type": "custom_tool_call_output", "call_id": "c2", "output": "é"}]},
    {"input": [USER, {**SAID, "status": "incomplete"}]},
    {"input": [USER, {**SAID, "status": "completed"}]},
    {"input": "Hi", "tools": RESPONSE_TOOLS},
    {"input": "Hi", "tools": RESPONSE_TOOLS[:1], "tool_choice": "none"},
    {"input": "Hi", "reasoning": {"effort": "low"}},
    {"input": "Hi", "reasoning": {"effort": None}, "chat_template_kwargs": {"x": 2}},
]


def plain(value):
    """Iterators of pydantic as lists, models as dictionaries."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return [plain(one) for one in value]


def messages_case(body, merges, effort):
    full = {"model": "m", "max_tokens": 4096, **body}
    request = AnthropicMessagesRequest(**json.loads(json.dumps(full)))
    made = AnthropicServingMessages.to_chat_completion_request(
        request, merge_inline_system=merges, disabled_thinking_effort=effort
    )
    chat = {
        "messages": plain(made.messages),
        "tools": None if made.tools is None else [tool.model_dump() for tool in made.tools],
        "reasoning_effort": made.reasoning_effort,
        "chat_template_kwargs": made.chat_template_kwargs,
    }
    return {"body": full, "merges": merges, "effort": effort, "chat": chat}


def responses_case(body):
    request = ResponsesRequest(**json.loads(json.dumps({"model": "m", **body})))
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    reasoning = request.reasoning
    chat = {
        "messages": plain(messages),
        "tools": construct_tool_dicts(request.tools, request.tool_choice),
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "chat_template_kwargs": request.chat_template_kwargs,
        "continue_final_message": should_continue_final_message(request.input),
    }
    return {"body": body, "chat": chat}


def main():
    golden = {
        "messages": [
            messages_case(body, merges, effort)
            for body in MESSAGES
            for merges, effort in [(False, "none"), (True, "low")]
        ],
        "responses": [responses_case(body) for body in RESPONSES],
    }
    json.dump(golden, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
