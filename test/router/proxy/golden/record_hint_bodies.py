"""Records what the request models of real vLLM and SGLang make of the bodies in hint-bodies.json.

Run once with each engine's interpreter; each run fills in its own part of the file:
    VLLM/bin/python test/router/proxy/golden/record_hint_bodies.py
    SGLANG/bin/python test/router/proxy/golden/record_hint_bodies.py
Bodies come first, from the proxy: UPDATE_GOLDEN=1 ./dev test test/router/proxy/kv-hints.test.ts
No server starts: the OpenAI servers of both engines build these models from the body.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
FILE = Path(__file__).with_name("hint-bodies.json")


def vllm_seen(path, body):
    from vllm import __version__
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    model = ChatCompletionRequest if path.endswith("/chat/completions") else CompletionRequest
    params = model(**body).to_sampling_params(16, {})
    # What the scheduler takes request.kv_transfer_params from.
    carried = params.extra_args["kv_transfer_params"]
    hints = body["kv_transfer_params"]["kv_hints"]
    without = {name: value for name, value in body.items() if name != "kv_transfer_params"}
    other = model(**without, kv_hints=hints).to_sampling_params(16, {})
    return {
        "version": __version__,
        "kv_transfer_params": carried,
        "with_top_level_kv_hints": "accepted",
        "top_level_kv_hints_reach_the_engine": bool(other.extra_args),
    }


def sglang_seen(path, body):
    from sglang import __version__
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
    from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

    model = ChatCompletionRequest if path.endswith("/chat/completions") else CompletionRequest
    hints = body["kv_transfer_params"]["kv_hints"]
    request = model(**body, kv_hints=hints)
    envelope = decode_kv_hints_envelope(hints)
    text = json.dumps(hints, separators=(",", ":"), ensure_ascii=False)
    return {
        "version": __version__,
        "with_top_level_kv_hints": "accepted",
        "top_level_kv_hints_reach_the_engine": hasattr(request, "kv_hints"),
        "native_envelope_actions": [action.action_type for action in envelope.actions],
        "custom_params": sglang_custom_params(model(**body, custom_params={"kv_hints": text})),
    }


def sglang_custom_params(request):
    """What the scheduler finds in `req.sampling_params.custom_params`."""
    import msgspec
    from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
    from sglang.srt.sampling.sampling_params import SamplingParams

    if hasattr(request, "to_sampling_params"):
        params = request.to_sampling_params([], {})
    else:
        params = OpenAIServingCompletion._build_sampling_params(None, request)
    known = {field.name for field in msgspec.structs.fields(SamplingParams)}
    params = SamplingParams(**{name: value for name, value in params.items() if name in known})
    wire = msgspec.msgpack.encode(params)
    return msgspec.msgpack.decode(wire, type=SamplingParams).custom_params


def main():
    cases = json.loads(FILE.read_text())
    try:
        import vllm  # noqa: F401

        name, seen = "vllm", vllm_seen
    except ImportError:
        name, seen = "sglang", sglang_seen
    for case in cases:
        case[name] = seen(case["path"], case["body"])
        case[name]["kv_hints_struct"] = structure(name, case["body"])
    FILE.write_text(json.dumps(cases, indent=1) + "\n")


def structure(name, body):
    """The engine's own type takes the envelope as it is."""
    import msgspec

    if name == "vllm":
        from vllm.v1.kv_hints import KvHintsEnvelope
    else:
        from sglang.srt.managers.kv_hints import KvHintsEnvelope
    envelope = body["kv_transfer_params"]["kv_hints"]
    return msgspec.to_builtins(msgspec.convert(envelope, KvHintsEnvelope)) == envelope


if __name__ == "__main__":
    main()
