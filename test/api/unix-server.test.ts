import { afterAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Caller, createApi, OPEN_ACCESS, serveUnix } from "../../src/api/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { tempDir } from "../support/index.ts";
import { servicesFor } from "./serve.ts";

const ROOT: Caller = {
  ...{ name: "local", from: "local uid 0 pid 1", role: "purge" },
  ...{ roleKey: "api.socket_role", account: "uid 0" },
};

/** Listens with connections of root, or of `uids` in turn. */
function listen(callerOf: () => Caller | null, uids: number[] = []) {
  const { services, told } = servicesFor();
  const path = join(tempDir(), "api.sock");
  const faults: unknown[] = [];
  const api = createApi(services, {
    ...{ version: "1.2.3", clock: systemClock },
    // Without the socket's caller, every change is refused.
    access: { ...OPEN_ACCESS, loopbackRole: "read" },
    onFault: (_path, thrown) => void faults.push(thrown),
  });
  const onFault = (_path: string, thrown: unknown) => void faults.push(thrown);
  const localOf = () => {
    const caller = callerOf();
    const uid = uids.shift() ?? 0;
    return caller && { caller, uid, isOwner: uid === 0 };
  };
  const own = { callerOf: localOf, clock: systemClock, path, onFault };
  const server = serveUnix({ fetch: api.fetch, ...own });
  afterAll(() => server[Symbol.dispose]());
  return { path, told, faults, server };
}

const ask = (path: string, of: string, init: RequestInit = {}) =>
  fetch(`http://localhost${of}`, { ...init, unix: path, keepalive: false } as RequestInit);

/** Sends bytes in pieces and returns everything received. */
async function raw(path: string, ...pieces: (string | Uint8Array)[]): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let seen = "";
  await Bun.connect({
    unix: path,
    socket: {
      async open(socket) {
        for (const piece of pieces) {
          socket.write(piece);
          socket.flush();
          await Bun.sleep(1);
        }
      },
      data: (_socket, bytes) => {
        seen += bytes.toString();
      },
      close: () => resolve(seen),
      error: () => resolve(seen),
    },
  });
  return promise;
}

describe("the API on a Unix socket", () => {
  const { path, told, faults } = listen(() => ROOT);

  test("a request has the role of its connection", async () => {
    const found = await ask(path, "/v1/status");
    expect([found.status, ((await found.json()) as { worker_id: string }).worker_id]).toEqual([
      ...[200, told.status().worker_id],
    ]);
    expect((await ask(path, "/flush_cache", { method: "POST" })).status).toBe(200);
    expect(told.control.flushes.at(-1)).toEqual({
      ...{ via: "http", name: "local", from: "local uid 0 pid 1", role: "purge" },
      ...{ roleKey: "api.socket_role", account: "uid 0", broadcast: false },
    });
    const body = JSON.stringify({ issuer: "router-1" });
    const unfenced = await ask(path, "/v1/unfence", { method: "POST", body });
    expect([unfenced.status, await unfenced.json()]).toEqual([200, { scopes: 1 }]);
    expect(told.control.unfenced).toEqual(["router-1"]);
  });

  test("a signature is forwarded unchanged", async () => {
    const headers = { "hearth-signature": "abc" };
    await ask(path, "/v1/commands", { method: "POST", body: "{}", headers });
    expect(told.control.submitted.at(-1)).toMatchObject({ signature: "abc" });
  });

  test("a request may arrive in pieces, and only the first is answered", async () => {
    const head = "POST /v1/commands HTTP/1.1\r\nHost: x\r\nContent-Le";
    const before = told.control.submitted.length;
    const answer = await raw(path, head, "ngth: 2\r\n\r", "\n{", "}GET / HTTP/1.1\r\n\r\n");
    expect(answer).toStartWith("HTTP/1.1 422 ");
    expect(answer).toContain("connection: close\r\n");
    expect(answer.match(/HTTP\/1\.1/g)).toHaveLength(1);
    expect(told.control.submitted.length).toBe(before + 1);
  });

  test("HEAD has no body and does not flush the cache", async () => {
    const flushes = told.control.flushes.length;
    const answer = await raw(path, "HEAD /healthz HTTP/1.1\r\n\r\n");
    expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n[\s\S]*content-length: \d+[\s\S]*\r\n\r\n$/);
    expect(await raw(path, "HEAD /flush_cache HTTP/1.1\r\n\r\n")).toStartWith("HTTP/1.1 405 ");
    expect(told.control.flushes).toHaveLength(flushes);
  });

  const hostile: [string, string, string][] = [
    ["no HTTP", "hello\r\n\r\n", "400"],
    ["a method of its own", "g3t / HTTP/1.1\r\n\r\n", "400"],
    ["an absolute address", "GET http://x/ HTTP/1.1\r\n\r\n", "400"],
    ["a path with a blank", "GET /a b HTTP/1.1\r\n\r\n", "400"],
    ["HTTP/2", "PRI * HTTP/2.0\r\n\r\n", "400"],
    ["chunks", "POST /v1/purge HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"],
    ["two lengths", "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"],
    ["a length below 0", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"],
    ["a length in hex", "POST / HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n", "400"],
    ["a folded header", "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "400"],
    ["a header without a colon", "GET / HTTP/1.1\r\nA\r\n\r\n", "400"],
    ["a control character", "GET / HTTP/1.1\r\nA: \x7f\r\n\r\n", "400"],
    ["65 headers", `GET / HTTP/1.1\r\n${"A: b\r\n".repeat(65)}\r\n`, "400"],
    ["a long head", `GET / HTTP/1.1\r\nA: ${"b".repeat(20_000)}`, "413"],
    ["a long body", "POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", "413"],
    ["a path that is not there", "GET /nope HTTP/1.1\r\n\r\n", "404"],
  ];
  test.each(hostile)("%s is refused", async (_what, text, status) => {
    expect(await raw(path, text)).toStartWith(`HTTP/1.1 ${status} `);
    expect(faults).toEqual([]);
    expect((await ask(path, "/healthz")).status).toBe(200);
  });

  test("random bytes close only their own connection", async () => {
    for (let round = 0; round < 200; round++) {
      const bytes = crypto.getRandomValues(new Uint8Array(1 + (round % 64)));
      const answer = await raw(path, bytes, "\r\n\r\n");
      expect(answer).toStartWith("HTTP/1.1 400 ");
    }
    expect((await ask(path, "/healthz")).status).toBe(200);
    expect(faults).toEqual([]);
  });

  test("connections beyond the limit are closed, and the others continue", async () => {
    const socket = { data() {}, error() {} };
    const idle = await Promise.all(
      Array.from({ length: 64 }, () => Bun.connect({ unix: path, socket })),
    );
    expect(await raw(path, "GET /healthz HTTP/1.1\r\n\r\n")).toBe("");
    for (const one of idle) one.terminate();
    const isBack = async () =>
      (await raw(path, "GET /healthz HTTP/1.1\r\n\r\n")).startsWith("HTTP/1.1 200");
    while (!(await isBack())) await Bun.sleep(5);
  });
});

test("a refused caller gets no answer", async () => {
  const { path } = listen(() => null);
  expect(await raw(path, "GET /healthz HTTP/1.1\r\n\r\n")).toBe("");
});

test("a caller of the group has the group's role", async () => {
  const { path, told } = listen(() => ({ ...ROOT, role: "operate", account: "uid 1000" }));
  const answer = await ask(path, "/flush_cache", { method: "POST" });
  expect(answer.status).toBe(403);
  expect(((await answer.json()) as { fix: string }).fix).toContain("api.socket_role");
  expect((await ask(path, "/v1/persist", { method: "POST" })).status).toBe(200);
  expect(told.control.flushes).toEqual([]);
});

test("disposing the server removes the socket file and closes connections", async () => {
  const { path, server } = listen(() => ROOT);
  const closed = Promise.withResolvers<void>();
  const socket = { data() {}, error() {}, close: () => closed.resolve() };
  const open = await Bun.connect({ unix: path, socket });
  open.write("GET /heal");
  server[Symbol.dispose]();
  await closed.promise;
  expect(existsSync(path)).toBe(false);
});

describe("connections of several users", () => {
  /** Opens a connection that sends nothing. `closed` resolves when the server has closed it. */
  async function silent(path: string): Promise<{ closed: Promise<void>; end(): void }> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const handlers = { data: () => undefined, close: () => resolve(), error: () => resolve() };
    const socket = await Bun.connect({ unix: path, socket: handlers });
    return { closed: promise, end: () => socket.end() };
  }

  test("one user gets 16 connections, all but owners 64, and owners always get in", async () => {
    const uids = [...Array(17).fill(1_000), ...Array(16).fill(1_001), ...Array(16).fill(1_002)];
    uids.push(...Array(17).fill(1_003), 1_004);
    const { path } = listen(() => ROOT, uids);
    const open: Awaited<ReturnType<typeof silent>>[] = [];
    for (let nth = 0; nth < 67; nth++) open.push(await silent(path));
    // The 17th connection of the first and of the last user, and the 65th of all.
    await Promise.all([open[16]!.closed, open[65]!.closed, open[66]!.closed]);
    expect(uids).toEqual([]);
    expect((await ask(path, "/healthz")).status).toBe(200);
    let ended = 0;
    for (const one of open) void one.closed.then(() => ended++);
    await Bun.sleep(0);
    expect(ended).toBe(3);
    // A seat is free again once its connection has ended.
    open[0]!.end();
    await open[0]!.closed;
    uids.push(1_000);
    expect(await raw(path, "GET /healthz HTTP/1.1\r\n\r\n")).toStartWith("HTTP/1.1 200 ");
    for (const one of open) one.end();
  });
});
