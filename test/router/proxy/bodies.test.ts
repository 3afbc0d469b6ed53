import { expect, test } from "bun:test";
import { describeNative, UnfinishedRequest, waitFor } from "../../support/index.ts";
import { MODEL, Rig } from "./rig.ts";

const MIB = 2 ** 20;
const CHAT = "/v1/chat/completions";
const ASK = { model: MODEL, messages: [{ role: "user", content: "hello" }] };

function begin(rig: Rig, header: string): Promise<UnfinishedRequest> {
  const { port } = new URL(rig.url);
  const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\n${header}\r\n`;
  return UnfinishedRequest.open(Number(port), head);
}

describeNative("bodies of the proxy's clients", () => {
  test("unfinished bodies use only the budget, and others are answered", async () => {
    await using rig = await Rig.open({ settings: { bodyBudgetBytes: 8 * MIB } });
    rig.engine("a");
    const clients: UnfinishedRequest[] = [];
    try {
      for (let i = 0; i < 30; i++) {
        const isChunked = i % 2 === 0;
        const client = await begin(
          rig,
          isChunked ? "Transfer-Encoding: chunked" : `Content-Length: ${4 * MIB}`,
        );
        const part = new Uint8Array(MIB - 1_024);
        if (isChunked) client.chunk(part);
        else client.send(part);
        clients.push(client);
      }
      const count = (status: number) => clients.filter((one) => one.status === status).length;
      await waitFor(() => count(529) >= 22, 60_000, "refusals");
      const refused = clients.find(({ status }) => status === 529)!;
      expect(refused.answer.toLowerCase()).toContain("retry-after: 1");
      expect(refused.answer).toContain("proxy.streams_max");
      // Stalled bodies give way as soon as another body needs their room.
      const answered = await waitFor(async () => {
        const answer = await rig.post(CHAT, { ...ASK, user: "x".repeat(MIB) });
        return answer.status === 200 ? answer : null;
      });
      expect(answered!.headers.get("x-hearth-worker")).toBe("a");
    } finally {
      for (const client of clients) client.end();
    }
  });

  test("bodies that do not arrive in time are answered 408 in the shape of the API", async () => {
    await using rig = await Rig.open({ settings: { bodyTimeoutMs: 200 } });
    const client = await begin(rig, "Content-Length: 1000000");
    await waitFor(() => client.status === 408 && client.isClosed);
    const { error } = JSON.parse(client.answer.slice(client.answer.indexOf("{")));
    expect(error).toMatchObject({ code: "body_timeout", type: "invalid_request_error" });
    expect(rig.proxy.snapshot().active).toBe(0);
    client.end();
  });

  test("bodies count against the budget until a worker begins to answer", async () => {
    await using rig = await Rig.open({ settings: { bodyBudgetBytes: 2 * MIB } });
    rig.engine("a");
    const body = { ...ASK, user: "x".repeat(1.5 * MIB) };
    for (let i = 0; i < 4; i++) expect((await rig.post(CHAT, body)).status).toBe(200);
    const open = await rig.post(CHAT, { ...body, stream: true });
    expect((await rig.post(CHAT, body)).status).toBe(200);
    await open.body!.cancel();
  });
});
