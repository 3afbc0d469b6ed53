import { expect, test } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { deadUrl, RawEngine } from "./raw-engine.ts";
import { MODEL, Rig } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ASK = { model: MODEL, messages: [{ role: "user", content: "Hello?" }], max_tokens: 6 };

describeNative("a worker that fails before its first byte", () => {
  test("a request that two workers had received is not sent to a third", async () => {
    using bad = new RawEngine((socket) => void socket.end());
    await using rig = await Rig.open({ settings: { retriesMax: 4 } });
    for (let i = 0; i < 5; i++) rig.worker(`bad${i}`, bad.url);
    expect((await rig.post(CHAT, ASK)).status).toBe(502);
    expect(bad.requests).toBe(2);
  });

  for (const [what, answer] of [
    ["is not HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n"],
    ["has a byte that no header may have", "HTTP/1.1 200 OK\r\nBad\u0000Name: x\r\n\r\n{}"],
  ] as const) {
    test(`answers, and that ${what}: it is not computed again elsewhere`, async () => {
      using bad = new RawEngine((socket) => void socket.end(answer));
      await using rig = await Rig.open({ router: { mode: "round-robin" } });
      for (let i = 0; i < 3; i++) rig.worker(`bad${i}`, bad.url);
      expect((await rig.post(CHAT, ASK)).status).toBe(502);
      expect(bad.requests).toBe(1);
    });
  }

  test("a broken answer that is not a stream is resent once", async () => {
    const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n";
    using bad = new RawEngine((socket) => void socket.end(`${head}{"choices"`));
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    rig.worker("bad", bad.url);
    rig.engine("good");
    const response = await rig.post(CHAT, ASK);
    expect([response.status, response.headers.get("x-hearth-worker")]).toEqual([200, "good"]);
    expect(bad.requests).toBe(1);
    expect(rig.proxy.snapshot()).toMatchObject({ retries: 1, outcomes: { done: 1 } });
  });

  test("at most retries_max other workers are tried", async () => {
    await using rig = await Rig.open({ settings: { retriesMax: 2 } });
    const url = deadUrl();
    for (let i = 0; i < 5; i++) rig.worker(`bad${i}`, url);
    expect((await rig.post(CHAT, ASK)).status).toBe(502);
    expect(rig.proxy.snapshot().retries).toBe(2);
  });
});
