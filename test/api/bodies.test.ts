import { afterEach, describe, expect, test } from "bun:test";
import { systemClock } from "../../src/core/index.ts";
import { UnfinishedRequest, waitFor } from "../support/index.ts";
import { receiptOf } from "./fake-control.ts";
import { problem, serve } from "./serve.ts";

const MIB = 2 ** 20;
const PATH = "/v1/commands";
const HEAD = `POST ${PATH} HTTP/1.1\r\nHost: localhost\r\n`;

const open: UnfinishedRequest[] = [];
afterEach(() => {
  for (const client of open.splice(0)) client.end();
});

async function begin(port: number, header: string): Promise<UnfinishedRequest> {
  const client = await UnfinishedRequest.open(port, `${HEAD}${header}\r\n`);
  open.push(client);
  return client;
}

const chunked = (port: number) => begin(port, "Transfer-Encoding: chunked");

describe("a body", () => {
  test("a body without a length is refused at the first byte over the limit", async () => {
    const served = serve({ bodyBytesMax: 100_000 });
    const client = await chunked(served.port);
    client.chunk(new Uint8Array(60_000));
    client.chunk(new Uint8Array(60_000));
    await waitFor(() => client.status === 413 && client.isClosed);
    expect(client.answer).toContain('"code":"TOO_LARGE"');
    expect(served.told.control.submitted).toEqual([]);
  });

  test("a body that announces too many bytes is refused before it arrives", async () => {
    const served = serve({ bodyBytesMax: 100_000 });
    const client = await begin(served.port, "Content-Length: 100001");
    await waitFor(() => client.status === 413);
  });

  test("a body that does not arrive in time is answered 408", async () => {
    const served = serve({ bodyTimeoutMs: 200, clock: systemClock });
    const clients = [await chunked(served.port), await begin(served.port, "Content-Length: 50")];
    for (const client of clients) client.send(new Uint8Array(Buffer.from("5\r\nhello\r\n")));
    await waitFor(() => clients.every(({ status, isClosed }) => status === 408 && isClosed));
    expect(clients[0]!.answer).toContain("within 200 ms");
    expect(served.told.refused.map(({ code }) => code)).toContain("BODY_TIMEOUT");
    expect(served.told.control.submitted).toEqual([]);
  });

  test("a body in pieces arrives unchanged", async () => {
    const served = serve();
    const client = await chunked(served.port);
    const body = Buffer.from("é".repeat(100_000));
    for (let at = 0; at < body.length; at += 7_000) client.chunk(body.subarray(at, at + 7_000));
    client.send(new Uint8Array(Buffer.from("0\r\n\r\n")));
    await waitFor(() => served.told.control.submitted.length === 1);
    expect(Buffer.compare(served.told.control.submitted[0]!.body, body)).toBe(0);
  });
});

describe("all bodies together", () => {
  test("all bodies together stay within the budget, and slow ones give way", async () => {
    const served = serve({ bodyBudgetBytes: 2 * MIB });
    const part = new Uint8Array(MIB / 4);
    const clients: UnfinishedRequest[] = [];
    for (let i = 0; i < 40; i++) {
      const client = await chunked(served.port);
      client.chunk(part);
      clients.push(client);
    }
    await waitFor(() => clients.every(({ hasSent }) => hasSent), 60_000, "all sent");
    const count = (status: number) => clients.filter((client) => client.status === status).length;
    // Bodies within the budget are waited for. The others are refused with Retry-After.
    await waitFor(() => count(503) >= 32, 60_000, "refusals");
    expect(count(0)).toBeGreaterThan(0);
    const refused = clients.find(({ status }) => status === 503)!;
    expect(refused.answer.toLowerCase()).toContain("retry-after: 1");
    expect(refused.answer).toContain('"code":"BODY_LIMIT"');
    await waitFor(() => clients.every(({ status, isClosed }) => status === 0 || isClosed));
    served.told.control.answer = () => receiptOf();
    // Once the waiting bodies are slow, an ordinary body is accepted.
    served.told.clock.advance(2_000);
    const answer = await served.get(PATH, { method: "POST", body: '{"type":"Flush"}' });
    expect(answer.status).toBe(200);
    expect(served.told.refused[0]).toMatchObject({ code: "BODY_LIMIT" });
    // Closes the clients before the server is disposed.
    for (const client of clients) client.end();
  });

  test("received bodies count against the budget until they are answered", async () => {
    const served = serve({ bodyBudgetBytes: 2 * MIB });
    const { promise, resolve } = Promise.withResolvers<void>();
    const { control } = served.told;
    control.answer = () => promise.then(() => receiptOf());
    const body = "x".repeat(900_000);
    const post = () => served.get(PATH, { method: "POST", body });
    const asked = [post(), post()];
    await waitFor(() => control.submitted.length === 2);
    const third = await post();
    expect(third.headers.get("retry-after")).toBe("1");
    expect(await problem(third)).toMatchObject({ status: 503, code: "BODY_LIMIT" });
    resolve();
    for (const one of asked) expect((await one).status).toBe(200);
    expect((await post()).status).toBe(200);
  });
});
