"""Draws request bodies for chat completions: equal seeds give equal texts."""

import json
import random

WORDS = (
    "the a cache of blocks holds what an engine computed and serves it again when prompts begin "
    "alike Paris weather tomorrow function returns list integers café naïve Überraschung привет "
    "мир 你好 世界 こんにちは 안녕하세요 مرحبا 🦊 👩‍💻 e=mc² O(n²) C++ <b>bold</b> a&b"
).split()
ODD = [
    "",
    " ",
    "\n",
    "  leading and trailing  ",
    "line one\nline two\r\nline three\n\n",
    "\ttabs\tand\u00a0no-break\u2003spaces",
    "quotes \" ' ` and \\ backslashes \\n",
    "{{ not a template }} {% nor this %} {# nor that #}",
    "{\"json\": [1, 2.50, null]}",
    "<think>\nhidden\n</think>\n\nshown",
    "a </think> b <think> c",
    "<|im_start|>user\nnot a turn<|im_end|>",
    "[INST] no [/INST] <s> </s>",
    "\u200bzero\u200dwidth\ufeff marks",
    "x-anthropic-billing-header: cch=1; v=2\nYou are Claude Code.",
    "e\u0301 versus \u00e9, \u212b, \U0001d518",
]
# Placeholders become literals that Python's own writer would spell in another way.
NUMBERS = {
    "@1@": "1.0",
    "@2@": "1e5",
    "@3@": "12345678901234567890",
    "@4@": "-0.0",
    "@5@": "1E-7",
    "@6@": "1e16",
    "@7@": "0.1",
    "@8@": "100000000000000000000000",
    "@9@": "2.5e-5",
    "@10@": "-9007199254740993",
}


def text(draw, longest=40):
    if draw.random() < 0.12:
        return draw.choice(ODD)
    return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))


def scalar(draw):
    options = [True, False, None, 0, 7, -3, 2.5, text(draw, 4), *NUMBERS]
    return draw.choice(options)


def value(draw, depth=0):
    kind = draw.random()
    if depth > 2 or kind < 0.6:
        return scalar(draw)
    if kind < 0.8:
        return [value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    keys = draw.sample(["b", "a", "10", "2", "Z", "é", "nested key", "type"], draw.randint(0, 4))
    return {key: value(draw, depth + 1) for key in keys}


def schema(draw):
    properties = {}
    for name in draw.sample(["city", "unit", "days", "filter", "2", "1"], draw.randint(0, 4)):
        kind = draw.choice(["string", "integer", "number", "boolean", "array", "object"])
        entry = {"type": kind}
        if draw.random() < 0.6:
            entry["description"] = text(draw, 8)
        if draw.random() < 0.3:
            entry["enum"] = [scalar(draw) for _ in range(2)]
        if kind == "array":
            entry["items"] = {"type": "string"}
        if kind == "object":
            entry["properties"] = {"x": {"type": "number", "default": draw.choice(list(NUMBERS))}}
        if draw.random() < 0.15:
            entry["type"] = [kind, "null"]
        if draw.random() < 0.1:
            entry["nullable"] = True
        properties[name] = entry
    made = {"type": "object", "properties": properties}
    if properties and draw.random() < 0.6:
        made["required"] = draw.sample(list(properties), 1)
    if draw.random() < 0.2:
        made["additionalProperties"] = False
    return made


def tool(draw, name):
    function = {"name": name}
    if draw.random() < 0.8:
        function["description"] = text(draw, 12)
    if draw.random() < 0.85:
        function["parameters"] = schema(draw)
    if draw.random() < 0.3:
        function["strict"] = draw.choice([True, False, None])
    if draw.random() < 0.1:
        function["unknown"] = {"kept": False}
    keys = list(function)
    draw.shuffle(keys)
    made = {"type": "function", "function": {key: function[key] for key in keys}}
    if draw.random() < 0.2:
        made["cache_control"] = {"type": "ephemeral"}
    if draw.random() < 0.3:
        made = dict(reversed(made.items()))
    return made


def part(draw, role):
    made = {"type": "text", "text": text(draw)}
    if draw.random() < 0.2:
        made["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    if role == "assistant" and draw.random() < 0.2:
        return {"type": "refusal", "refusal": text(draw, 10)}
    return made


def content(draw, role):
    if draw.random() < 0.7:
        return text(draw)
    return [part(draw, role) for _ in range(draw.randint(0 if role != "user" else 1, 3))]


def call(draw, names, at):
    given = draw.random()
    if given < 0.08:
        arguments = draw.choice(["", "not json", "[1]", "null", "{\"a\": NaN}", " {\"a\" : 1 } "])
    else:
        made = {key: value(draw) for key in draw.sample(["city", "unit", "2", "1", "x"], 2)}
        arguments = json.dumps(made, ensure_ascii=draw.random() < 0.5)
        for mark, literal in NUMBERS.items():
            arguments = arguments.replace(json.dumps(mark), literal)
    function = {"name": draw.choice(names), "arguments": arguments}
    made = {"id": f"call_{at:09d}"[:9], "type": "function", "function": function}
    if draw.random() < 0.3:
        made["index"] = 0
    return made


def turns(draw, names):
    """A user, and an assistant that may reason and call tools before it answers."""
    user = {"role": "user", "content": content(draw, "user")}
    if draw.random() < 0.1:
        user["name"] = "alice"
    yield user
    while names and draw.random() < 0.5:
        calls = [call(draw, names, draw.randrange(10**9)) for _ in range(draw.randint(1, 2))]
        made = {"role": "assistant", "content": draw.choice([None, "", text(draw)])}
        made["tool_calls"] = calls
        if draw.random() < 0.3:
            made["reasoning_content"] = text(draw)
        yield made
        for one in calls:
            answer = {"role": "tool", "tool_call_id": one["id"], "content": content(draw, "tool")}
            if draw.random() < 0.4:
                answer["name"] = one["function"]["name"]
            yield answer
    made = {"role": "assistant", "content": content(draw, "assistant")}
    if draw.random() < 0.2:
        made[draw.choice(["reasoning", "reasoning_content"])] = text(draw)
    if draw.random() < 0.05:
        made["tool_calls"] = []
    yield made


def options(draw, body):
    """Members of a request beside its messages."""
    if draw.random() < 0.12:
        body["reasoning_effort"] = draw.choice(["none", "low", "medium", "high"])
    if draw.random() < 0.15:
        kwargs = {"enable_thinking": draw.choice([True, False]), "thinking": True}
        if draw.random() < 0.3:
            kwargs["builtin_tools"] = None
        body["chat_template_kwargs"] = kwargs
    if draw.random() < 0.05:
        body["documents"] = [{"title": text(draw, 3), "text": text(draw)}]
    if draw.random() < 0.06:
        body["add_special_tokens"] = True
    if draw.random() < 0.06:
        body["truncate_prompt_tokens"] = draw.randint(1, 200)
        if draw.random() < 0.6:
            body["truncation_side"] = draw.choice(["left", "right"])
    if draw.random() < 0.05:
        body["tool_choice"] = "none"


def conversation(seed):
    draw = random.Random(seed)
    names = ["get_weather", "search", "Ωmega"][: draw.randint(1, 3)] if seed % 2 else []
    messages = []
    first = draw.random()
    if first < 0.45:
        messages.append({"role": "system", "content": content(draw, "system")})
    elif first < 0.55:
        messages.append({"role": "developer", "content": content(draw, "developer")})
    for _ in range(draw.randint(1, 3)):
        messages.extend(turns(draw, names))
    ending = draw.random()
    if ending < 0.7:
        messages.append({"role": "user", "content": content(draw, "user")})
    body = {"messages": messages}
    if names:
        body["tools"] = [tool(draw, name) for name in names]
    if ending > 0.85:
        body.update(add_generation_prompt=False, continue_final_message=True)
    elif ending > 0.8:
        body["add_generation_prompt"] = False
    options(draw, body)
    written = json.dumps(body, ensure_ascii=draw.random() < 0.3)
    for mark, literal in NUMBERS.items():
        written = written.replace(json.dumps(mark), literal)
    return written
