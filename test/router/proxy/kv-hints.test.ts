import { expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describeNative, tempDir } from "../../support/index.ts";
import { type MockEngine, POLITE } from "./mock-engine.ts";
import { MODEL, Rig, type RigOptions } from "./rig.ts";
import { writeTokenizer } from "./tokenizer-files.ts";

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";
const GOLDEN = join(import.meta.dir, "golden/hint-bodies.json");
const folder = writeTokenizer(tempDir());

type Fields = Record<string, unknown>;
interface Envelope {
  readonly message_id: string;
  readonly actions: readonly { readonly action_type: string; readonly payload: Fields }[];
}

const marked = { type: "ephemeral", ttl: "1h" };
const CONVERSATION = {
  model: MODEL,
  max_tokens: 4,
  messages: [
    { role: "system", content: [{ type: "text", text: "A book.", cache_control: marked }] },
    { role: "user", content: "Hello?" },
  ],
};

/** Marks these workers as having agents that publish block names. */
function giveAgents(rig: Rig, ...names: string[]): void {
  for (const target of [...rig.table.targets]) {
    if (!names.includes(target.worker)) continue;
    const namespaceKey = new Uint8Array(32);
    const space = { kind: "blocks", model: MODEL, blockTokens: 16, namespaceKey } as const;
    rig.table.put({ ...target, spaces: [...target.spaces, space] });
  }
}

async function openWithAgent(options: RigOptions = {}): Promise<[Rig, MockEngine]> {
  const rig = await Rig.open({ ...options, model: { tokenizer: folder, ...options.model } });
  const engine = rig.engine("a", options.model?.engine ?? "vllm");
  giveAgents(rig, "a");
  return [rig, engine];
}

function transferOf(engine: MockEngine): Fields {
  return engine.seen.at(-1)!.body.kv_transfer_params as Fields;
}

function actionsOf(engine: MockEngine): Record<string, Fields> {
  const { actions } = transferOf(engine).kv_hints as Envelope;
  return Object.fromEntries(actions.map(({ action_type, payload }) => [action_type, payload]));
}

describeNative("KV hints of a request", () => {
  test("bodies are those that vLLM and SGLang were recorded to accept", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const headers = {
      "x-dynamo-session-id": "s-1",
      "x-dynamo-session-final": "true",
      "x-dynamo-request-priority": "7",
    };
    await (await rig.post(CHAT, CONVERSATION, { headers })).text();
    const prompt = Array.from({ length: 40 }, (_, i) => i);
    await (await rig.post(COMPLETIONS, { model: MODEL, prompt }, { headers })).text();
    const sent = engine.seen.map(({ path, body }) => ({ path, body }));
    if (process.env.UPDATE_GOLDEN === "1") writeFileSync(GOLDEN, JSON.stringify(sent));
    const golden = JSON.parse(readFileSync(GOLDEN, "utf8")) as { path: string; body: Fields }[];
    expect(sent).toEqual(golden.map(({ path, body }) => ({ path, body })));
  });

  test("vLLM's connector receives the field that the proxy added", () => {
    const golden = JSON.parse(readFileSync(GOLDEN, "utf8")) as Fields[];
    for (const { body, vllm, sglang } of golden as {
      body: Fields;
      vllm: Fields;
      sglang: Fields;
    }[]) {
      expect(vllm.kv_transfer_params).toEqual(body.kv_transfer_params);
      expect(vllm.with_top_level_kv_hints).toBe("accepted");
      expect(sglang.with_top_level_kv_hints).toBe("accepted");
      const text = JSON.stringify((body.kv_transfer_params as Fields).kv_hints);
      expect(sglang.custom_params).toEqual({ kv_hints: text });
    }
  });

  test("a mark pins its prefix for its owner and time", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    await (await rig.post(CHAT, CONVERSATION, { headers: { "x-tenant-id": "blue" } })).text();
    const { pin, ...others } = actionsOf(engine);
    expect(pin).toMatchObject({ ttl_seconds: 3_600, owner: "blue" });
    expect(pin!.prefix_tokens as number).toBeGreaterThan(2);
    expect(others).toEqual({});
  });

  test("a mark that asks for a day is pinned for an hour", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const cache_control = { type: "ephemeral", ttl: "24h" };
    const content = [{ type: "text", text: "A book.", cache_control }];
    await (await rig.post(CHAT, { ...CONVERSATION, messages: [{ role: "user", content }] })).text();
    expect(actionsOf(engine).pin).toMatchObject({ ttl_seconds: 3_600, owner: "api" });
  });

  test("the body is byte for byte the client's if there is nothing to hint", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const text = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "Hi" }] });
    await (await rig.post(CHAT, text)).text();
    expect(engine.seen[0]!.text).toBe(text);
  });

  test("SGLang gets the envelope as text beside the client's `custom_params`", async () => {
    const [rig, engine] = await openWithAgent({ model: { engine: "sglang" } });
    await using _ = rig;
    await (await rig.post(CHAT, { ...CONVERSATION, custom_params: { own: 1 } })).text();
    const { custom_params, kv_transfer_params } = engine.seen[0]!.body as Fields;
    const { own, kv_hints } = custom_params as { own: number; kv_hints: string };
    expect(own).toBe(1);
    expect((JSON.parse(kv_hints) as Envelope).actions[0]!.action_type).toBe("pin");
    expect(kv_transfer_params).toBeUndefined();
  });

  test("a worker without a Hearth agent and `off` get no hints", async () => {
    const text = JSON.stringify(CONVERSATION);
    await using plain = await Rig.open({ model: { tokenizer: folder } });
    const engine = plain.engine("a");
    await (await plain.post(CHAT, text)).text();
    expect(engine.seen[0]!.text).toBe(text);
    const [rig, other] = await openWithAgent({ model: { kvHints: "off" } });
    await using _ = rig;
    await (await rig.post(CHAT, text)).text();
    expect(other.seen[0]!.text).toBe(text);
  });

  test("`kv_hints` is a field of the body if configured", async () => {
    const [rig, engine] = await openWithAgent({ model: { engine: "sglang", kvHints: "kv_hints" } });
    await using _ = rig;
    await (await rig.post(CHAT, CONVERSATION)).text();
    const { kv_hints, kv_transfer_params } = engine.seen[0]!.body as Fields;
    expect((kv_hints as Envelope).actions[0]!.action_type).toBe("pin");
    expect(kv_transfer_params).toBeUndefined();
  });

  test("a client's own envelope is passed on, its own parameters are left alone", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const kv_hints = { protocol_version: "1", message_id: "mine", actions: [] };
    await (await rig.post(CHAT, { ...CONVERSATION, kv_hints })).text();
    expect(transferOf(engine).kv_hints).toEqual(kv_hints);
    const text = JSON.stringify({ ...CONVERSATION, kv_transfer_params: { own: 1 } });
    await (await rig.post(CHAT, text)).text();
    expect(engine.seen.at(-1)!.text).toBe(text);
  });

  test("several prompts in one request get no hints", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const body = { model: MODEL, prompt: ["a", "b"], max_tokens: 2 };
    const headers = { "x-dynamo-session-id": "s" };
    await (await rig.post(COMPLETIONS, body, { headers })).text();
    expect(engine.seen[0]!.body).toEqual(body);
  });

  test("reasoning is transient only if `kv_hint_actions` has it", async () => {
    const [rig, engine] = await openWithAgent({ model: { kvHintActions: ["transient"] } });
    await using _ = rig;
    await (await rig.post(CHAT, CONVERSATION)).text();
    const actions = actionsOf(engine);
    expect(Object.keys(actions)).toEqual(["transient"]);
    const { open_token, close_token } = actions.transient as Record<string, number>;
    expect(open_token).not.toBe(close_token!);
  });

  test("the end of a session demotes the blocks after the first mark", async () => {
    const [rig, engine] = await openWithAgent();
    await using _ = rig;
    const headers = { "x-dynamo-session-id": "s-9", "x-dynamo-session-final": "true" };
    await (await rig.post(CHAT, CONVERSATION, { headers })).text();
    const { pin, demote } = actionsOf(engine);
    expect(demote).toMatchObject({ session_id: "s-9", from_token: pin!.prefix_tokens });
    expect(transferOf(engine).session_id).toBe("s-9");
  });

  test("a worker that holds less gets the source of the prefix", async () => {
    await using rig = await Rig.open();
    const engines = ["a", "b", "c"].map((name) => rig.engine(name));
    giveAgents(rig, "a", "b");
    const body = { model: MODEL, prompt: Array.from({ length: 1_024 }, (_, i) => i) };
    for (const name of ["a", "c", "b"]) {
      const headers = { "x-dynamo-worker-instance-id": name };
      await (await rig.post(COMPLETIONS, body, { headers })).text();
    }
    // "c" holds the prefix too, but has no agent that could serve it.
    expect(actionsOf(engines[1]!).prefetch).toEqual({ prefix_tokens: 1_024, sources: ["a"] });
    expect(engines[2]!.seen[0]!.body).toEqual(body);
  });
});

describeNative("KV hints with prefill workers", () => {
  async function openPools(kvTransferParams: unknown) {
    const rig = await Rig.open({ model: { tokenizer: folder } });
    const prefill = rig.engine("p", "vllm", "prefill");
    const decode = rig.engine("d", "vllm", "decode");
    giveAgents(rig, "p", "d");
    prefill.manners = { ...POLITE, kvTransferParams };
    await (await rig.post(CHAT, CONVERSATION)).text();
    return { rig, prefill, decode };
  }

  test("the prefill worker shares and pins, the decode worker waits for its blocks", async () => {
    const { rig, prefill, decode } = await openPools(null);
    await using _ = rig;
    expect(transferOf(prefill)).toMatchObject({ do_remote_decode: true });
    expect(Object.keys(actionsOf(prefill))).toEqual(["share", "pin"]);
    expect(actionsOf(decode)).toEqual({ prefetch: { sources: ["p"], wait: true } });
    expect(rig.proxy.snapshot()).toMatchObject({ prefills: 1, prefillsFailed: 0 });
  });

  test("the router names a prefill worker that does not name its agent", async () => {
    const said = { do_remote_prefill: true, hearth: { source: "", blocks: 3, wait: true } };
    const { rig, decode } = await openPools(said);
    await using _ = rig;
    expect(transferOf(decode)).toMatchObject(said);
    expect(actionsOf(decode)).toEqual({ prefetch: { sources: ["p"], wait: true } });
  });

  test("the prefill worker's KV parameters are passed to the decode worker", async () => {
    const said = { do_remote_prefill: true, hearth: { source: "p", blocks: 3, wait: true } };
    const { rig, decode } = await openPools(said);
    await using _ = rig;
    expect(transferOf(decode)).toEqual(said);
  });

  test("SGLang's prefill worker pins, its decode worker marks reasoning", async () => {
    const kvHintActions = ["pin", "transient"] as const;
    const model = { tokenizer: folder, engine: "sglang", kvHintActions } as const;
    await using rig = await Rig.open({ model });
    const engines = (["prefill", "decode"] as const).map((role) =>
      rig.engine(role, "sglang", role),
    );
    giveAgents(rig, "prefill", "decode");
    await (await rig.post(CHAT, CONVERSATION)).text();
    const types = engines.map(({ seen }) => {
      const { kv_hints } = seen[0]!.body.custom_params as { kv_hints: string };
      return (JSON.parse(kv_hints) as Envelope).actions.map(({ action_type }) => action_type);
    });
    expect(types).toEqual([["pin"], ["transient"]]);
  });
});
