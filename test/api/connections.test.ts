import { afterEach, expect, test } from "bun:test";
import { ConnectionCap } from "../../src/api/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { descriptorUse } from "../../src/observability/index.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { receiptOf } from "./fake-control.ts";
import { problem, serve } from "./serve.ts";

interface Client {
  isClosed: boolean;
  end(): void;
}

const open: Client[] = [];
afterEach(() => {
  for (const client of open.splice(0)) client.end();
});

async function connect(port: number, head = ""): Promise<Client> {
  const client: Client = { isClosed: false, end: () => undefined };
  const ended = () => {
    client.isClosed = true;
  };
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    socket: {
      data: () => undefined,
      close: ended,
      error: ended,
    },
  });
  if (head !== "") socket.write(head);
  client.end = () => socket.terminate();
  open.push(client);
  return client;
}

describeNative("connections beyond the cap", () => {
  const closed = (clients: readonly Client[]) => clients.filter(({ isClosed }) => isClosed).length;

  test("connections that never sent a byte are closed while requests are answered", async () => {
    const served = serve({ connectionsMax: 50, clock: systemClock, native: loadNative() });
    const clients = await Promise.all(Array.from({ length: 200 }, () => connect(served.port)));
    expect((await served.get("/healthz", { keepalive: false })).status).toBe(200);
    await waitFor(() => closed(clients) === 200);
    expect((await served.get("/healthz", { keepalive: false })).status).toBe(200);
  });

  test("idle connections are closed, connections with a request in flight are not", async () => {
    const served = serve({ connectionsMax: 20, clock: systemClock, native: loadNative() });
    const { promise, resolve } = Promise.withResolvers<ReturnType<typeof receiptOf>>();
    served.told.control.answer = () => promise;
    const asked = served.get("/v1/commands", { method: "POST", body: "{}", keepalive: false });
    await waitFor(() => served.told.control.submitted.length === 1);
    const head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const clients = await Promise.all(Array.from({ length: 60 }, () => connect(served.port, head)));
    await waitFor(() => closed(clients) === 60);
    resolve(receiptOf());
    expect((await asked).status).toBe(200);
  });
});

test("a request beyond the connection limit is answered 503", async () => {
  const served = serve({ connectionsMax: 8 });
  const { promise, resolve } = Promise.withResolvers<ReturnType<typeof receiptOf>>();
  served.told.control.answer = () => promise;
  const post = () => served.get("/v1/commands", { method: "POST", body: "{}", keepalive: false });
  const asked = Array.from({ length: 8 }, post);
  await waitFor(() => served.told.control.submitted.length === 8);
  const answer = await post();
  expect(answer.headers.get("retry-after")).toBe("1");
  expect(await problem(answer)).toMatchObject({ status: 503, code: "CONNECTION_LIMIT" });
  expect(served.told.refused.at(-1)).toMatchObject({ code: "CONNECTION_LIMIT" });
  resolve(receiptOf());
  for (const one of asked) expect((await one).status).toBe(200);
});

test("idle connections are closed if there are too many or descriptors run short", () => {
  const clock = new ManualClock();
  const done: string[] = [];
  let [open, seen, isShort] = [100, 60, false];
  const server = { port: 80, closeIdleConnections: () => done.push("idle") };
  const endSilent = (port: number, first: number) => {
    done.push(`${port} ${first}`);
    return seen;
  };
  const use = () => ({ open, limit: 100_000, isShort });
  using _cap = new ConnectionCap({ server, native: { endSilent }, clock, max: 150, use });
  clock.advance(1_000);
  // All descriptors together are fewer than the connections allowed.
  expect(done).toEqual([]);
  open = 160;
  clock.advance(50);
  expect(done.splice(0)).toEqual(["80 0"]);
  seen = 151;
  clock.advance(50);
  expect(done.splice(0)).toEqual(["80 0", "idle"]);
  [open, isShort] = [140, true];
  clock.advance(50);
  expect(done.splice(0)).toEqual(["80 0", "idle"]);
  // Descriptors are examined in several turns and counted together.
  [open, isShort, seen] = [5_000, false, 76];
  clock.advance(100);
  expect(done.splice(0)).toEqual(["80 0", "80 4096"]);
  clock.advance(50);
  expect(done.splice(0)).toEqual(["80 8192", "idle"]);
});

test("the kernel shows how many descriptors are open", async () => {
  const before = descriptorUse()!;
  const served = serve();
  const clients = await Promise.all(Array.from({ length: 20 }, () => connect(served.port)));
  expect(clients).toHaveLength(20);
  const after = descriptorUse()!;
  // The process has both ends of each connection.
  expect(after.open).toBeGreaterThanOrEqual(before.open + 20);
  expect(after).toMatchObject({ limit: before.limit, isShort: false });
});
