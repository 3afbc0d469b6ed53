import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { deadUrl, RawEngine } from "./raw-engine.ts";
import { MODEL, Rig, type RigOptions } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ASK = {
  model: MODEL,
  messages: [{ role: "user", content: "Hello?" }],
  max_tokens: 6,
  min_tokens: 2,
  stream: true,
  stream_options: { include_usage: true },
};
const PARAMS = {
  do_remote_prefill: true,
  do_remote_decode: false,
  remote_engine_id: "p-0",
  remote_block_ids: [1, 2, 3],
  remote_host: "10.0.0.1",
  remote_port: 20_097,
};

async function openPools(options: RigOptions = {}, kind: "vllm" | "sglang" = "vllm") {
  const rig = await Rig.open({ ...options, model: { engine: kind, ...options.model } });
  const prefill = rig.engine("p", kind, "prefill");
  const decode = rig.engine("d", kind, "decode");
  prefill.manners = { ...POLITE, kvTransferParams: PARAMS };
  return { rig, prefill, decode };
}

function toldOf(rig: Rig): string[] {
  return rig.told.map((line) => line.split(" ")[0]!);
}

describeNative("prefill workers of vLLM", () => {
  test("the prefill worker computes one token and passes on its KV parameters", async () => {
    const { rig, prefill, decode } = await openPools();
    await using _ = rig;
    const text = JSON.stringify(ASK);
    const response = await rig.post(CHAT, text);
    expect(await response.text()).toEndWith("data: [DONE]\n\n");
    expect(response.headers.get("x-hearth-worker")).toBe("d");
    expect(prefill.seen[0]?.body).toEqual({
      model: MODEL,
      messages: ASK.messages,
      max_tokens: 1,
      stream: false,
      kv_transfer_params: {
        do_remote_decode: true,
        do_remote_prefill: false,
        remote_engine_id: null,
        remote_block_ids: null,
        remote_host: null,
        remote_port: null,
      },
    });
    const added = `,"kv_transfer_params":${JSON.stringify(PARAMS)}}`;
    expect(decode.seen[0]?.text).toBe(text.slice(0, -1) + added);
    // Both engines get the same request id.
    const ids = [prefill, decode].map(({ seen }) => seen[0]?.headers.get("x-request-id"));
    expect(ids[0]).toBe(ids[1]!);
    await waitFor(() => rig.told.length === 3);
    expect(toldOf(rig)).toEqual(["routed", "prefilled", "freed"]);
    expect(rig.proxy.snapshot()).toMatchObject({ prefills: 1, prefillsFailed: 0 });
  });

  test("max_completion_tokens is one for the prefill", async () => {
    const { rig, prefill } = await openPools();
    await using _ = rig;
    await (await rig.post(CHAT, { ...ASK, max_completion_tokens: 50 })).text();
    expect(prefill.seen[0]?.body).toMatchObject({ max_tokens: 1, max_completion_tokens: 1 });
  });

  test("the prefill is complete before the first token", async () => {
    const { rig, decode } = await openPools();
    await using _ = rig;
    decode.manners = { ...POLITE, firstTokenMs: 60_000 };
    const abort = new AbortController();
    const pending = rig.post(CHAT, ASK, { signal: abort.signal }).catch(() => null);
    await waitFor(() => decode.seen.length === 1);
    expect(toldOf(rig)).toEqual(["routed", "prefilled"]);
    abort.abort();
    await pending;
    await waitFor(() => rig.proxy.snapshot().active === 0);
  });

  const failures: readonly (readonly [string, (rig: Rig) => Disposable | null])[] = [
    [
      "refuses connections",
      (rig) => {
        rig.worker("p", deadUrl(), "prefill");
        return null;
      },
    ],
    [
      "dies",
      (rig) => {
        const engine = new RawEngine((socket) => void socket.end());
        rig.worker("p", engine.url, "prefill");
        return engine;
      },
    ],
    [
      "speaks nonsense",
      (rig) => {
        const answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{x}";
        const engine = new RawEngine((socket) => void socket.write(answer));
        rig.worker("p", engine.url, "prefill");
        return engine;
      },
    ],
  ];
  for (const [way, make] of failures) {
    test(`${way}: makes the decode worker do both`, async () => {
      const { rig, decode } = await openPools();
      await using _ = rig;
      using _engine = make(rig);
      const text = JSON.stringify(ASK);
      const response = await rig.post(CHAT, text);
      expect(await response.text()).toEndWith("data: [DONE]\n\n");
      expect(decode.seen[0]?.text).toBe(text);
      expect(rig.proxy.snapshot()).toMatchObject({ prefills: 0, prefillsFailed: 1 });
    });
  }

  test("a prefill without KV parameters makes the decode worker do both", async () => {
    const { rig, prefill, decode } = await openPools();
    await using _ = rig;
    prefill.manners = POLITE;
    await (await rig.post(CHAT, ASK)).text();
    prefill.manners = { ...POLITE, refuses: { status: 500, body: {} } };
    await (await rig.post(CHAT, ASK)).text();
    expect(decode.seen.map(({ body }) => "kv_transfer_params" in body)).toEqual([false, false]);
    expect(rig.proxy.snapshot().prefillsFailed).toBe(2);
  });

  test("a client that disconnects during the prefill ends it, and no worker decodes", async () => {
    const { rig, prefill, decode } = await openPools();
    await using _ = rig;
    prefill.manners = { ...POLITE, headMs: 60_000 };
    const abort = new AbortController();
    const pending = rig.post(CHAT, ASK, { signal: abort.signal }).catch(() => null);
    await waitFor(() => prefill.seen.length === 1);
    abort.abort();
    await pending;
    await waitFor(() => prefill.aborted === 1 && rig.proxy.snapshot().active === 0);
    expect(decode.seen).toHaveLength(0);
    expect(toldOf(rig)).toEqual(["routed", "freed"]);
  });

  test("a client that arranges the KV transfer itself is not changed", async () => {
    const { rig, prefill, decode } = await openPools();
    await using _ = rig;
    await (await rig.post(CHAT, { ...ASK, kv_transfer_params: PARAMS })).text();
    expect(prefill.seen).toHaveLength(0);
    expect(decode.seen[0]?.body.kv_transfer_params).toEqual(PARAMS);
  });
});

describeNative("prefill workers of SGLang", () => {
  test("both workers get the request at once with one bootstrap room", async () => {
    const { rig, prefill, decode } = await openPools({ model: { bootstrapPort: 9_001 } }, "sglang");
    await using _ = rig;
    const response = await rig.post(CHAT, ASK);
    expect(await response.text()).toEndWith("data: [DONE]\n\n");
    const { bootstrap_room, ...meeting } = decode.seen[0]!.body;
    expect(prefill.seen[0]?.text).toBe(decode.seen[0]!.text);
    expect(meeting).toEqual({
      ...ASK,
      bootstrap_host: "127.0.0.1",
      bootstrap_port: 9_001,
    } as never);
    expect(decode.seen[0]!.text).toMatch(/"bootstrap_room":[0-9]{1,19}}$/);
    expect(typeof bootstrap_room).toBe("number");
    await waitFor(() => rig.proxy.snapshot().prefills === 1);
  });

  test("several prompts have separate bootstrap rooms", async () => {
    const { rig, decode } = await openPools({}, "sglang");
    await using _ = rig;
    const body = { model: MODEL, prompt: ["one", "two"], max_tokens: 2 };
    await (await rig.post("/v1/completions", body)).text();
    const { bootstrap_host, bootstrap_room } = decode.seen[0]!.body;
    expect(bootstrap_host).toEqual(["127.0.0.1", "127.0.0.1"]);
    expect(new Set(bootstrap_room as number[]).size).toBe(2);
  });

  test("a failed prefill is retried with another pair", async () => {
    const { rig, decode } = await openPools({}, "sglang");
    await using _ = rig;
    decode.manners = { ...POLITE, firstTokenMs: 50 };
    rig.worker("p", deadUrl(), "prefill");
    const response = await rig.post(CHAT, ASK);
    expect(await response.text()).toEndWith("data: [DONE]\n\n");
    // No prefill worker is left, so the decode worker does both the second time.
    expect(decode.seen.at(-1)?.body).toEqual(ASK as never);
    expect(rig.proxy.snapshot()).toMatchObject({ prefillsFailed: 1, retries: 1 });
  });
});
