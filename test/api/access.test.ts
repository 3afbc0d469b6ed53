import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createApi, OPEN_ACCESS, readTokens } from "../../src/api/index.ts";
import { HearthError } from "../../src/core/index.ts";
import { ManualClock, tempDir } from "../support/index.ts";
import { FakeControl } from "./fake-control.ts";
import { FakePeers } from "./fake-peers.ts";
import { oneToken, problem, raw, type Served, serve } from "./serve.ts";

const OK = "HTTP/1.1 200 OK";
const FORBIDDEN = "HTTP/1.1 403 Forbidden";

describe("the Host header", () => {
  const served = serve({ hosts: ["gpu-01.example", "GPU-02:7171"] });
  const ask = (host: string, from: Served = served) =>
    raw(from.port, `GET /v1/status HTTP/1.1\r\nHost: ${host}`);

  test.each([
    "localhost",
    "LOCALHOST:80",
    "localhost.",
    "127.0.0.1:7171",
    "127.1.2.3",
    "[::1]",
    "[::1]:7171",
    "gpu-01.example:7171",
    "gpu-02",
  ])("%s is accepted", async (host) => {
    expect(await ask(host)).toBe(OK);
  });

  test.each([
    "evil.example",
    "evil.example:7171",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost@evil.example",
    "evil.example@localhost",
    "192.168.0.1",
    "[::2]",
    "0.0.0.0",
    "x",
    "",
    "@",
    "%",
    "a b",
    "localhost:99999999",
    "localhost:1:2",
    "evil.example/localhost",
  ])("%p is refused", async (host) => {
    expect(await ask(host)).toBe(FORBIDDEN);
    expect(served.told.faults).toEqual([]);
  });

  test("a second Host header does not add a name", async () => {
    const head = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example";
    expect(await raw(served.port, head)).not.toBe(OK);
  });

  test("the name of a rebound page is refused with a reason, also for health checks", async () => {
    const headers = { host: "evil.example" };
    for (const path of ["/healthz", "/v1/status", "/nope"]) {
      const found = await problem(await served.get(path, { headers }));
      expect(found).toMatchObject({ status: 403, code: "HOST_REFUSED" });
    }
  });

  test("any name is accepted if a token is required, even a short name", async () => {
    const token = "0123456789abcdef";
    const guarded = serve({ access: oneToken(token) });
    const authorized = (host: string) =>
      raw(
        guarded.port,
        `GET /v1/status HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${token}`,
      );
    for (const host of ["gpu-01", "gw", "x", "10.0.0.1:7171"]) {
      expect(await authorized(host)).toBe(OK);
    }
    expect(await authorized("a b")).toBe(FORBIDDEN);
  });
});

describe("the token", () => {
  const token = "correct-horse-battery-staple";
  const served = serve({ access: oneToken(token) });
  const withToken = (authorization: string) => ({ headers: { authorization } });

  test.each(["/v1/status", "/metrics", "/openapi", "/openapi/json", "/nope"])(
    "is asked for on %s",
    async (path) => {
      const answer = await served.get(path);
      expect(answer.headers.get("www-authenticate")).toBe('Bearer realm="hearth"');
      expect(await problem(answer)).toMatchObject({ status: 401, code: "UNAUTHORIZED" });
    },
  );

  test.each([`Bearer ${token}`, `bearer ${token}`, `Bearer   ${token}`])(
    "%p opens",
    async (header) => {
      expect((await served.get("/v1/status", withToken(header))).status).toBe(200);
    },
  );

  test.each([
    "",
    "Bearer",
    "Bearer ",
    `Bearer ${token}x`,
    `Bearer ${token.slice(0, -1)}`,
    `Bearer ${token.toUpperCase()}`,
    `Basic ${token}`,
    token,
    `Bearer ${token} ${token}`,
    `Bearer ${"x".repeat(4_000)}`,
  ])("%p does not", async (header) => {
    expect((await served.get("/v1/status", withToken(header))).status).toBe(401);
  });

  test("health probes need no token", async () => {
    expect((await served.get("/healthz")).status).toBe(200);
    expect((await served.get("/readyz")).status).toBe(200);
    expect((await served.get("/healthz/")).status).not.toBe(200);
  });
});

describe("the token file", () => {
  const folder = tempDir();
  const file = (text: string) => {
    const path = join(folder, `token-${Bun.hash(text)}`);
    writeFileSync(path, text);
    return path;
  };

  const read = async (path: string) => {
    const list = await readTokens({ tokenFile: path, tokensFile: null });
    return list?.entries.map(({ token }) => token);
  };

  test("the first line of the token file is the token", async () => {
    expect(await read(file("0123456789abcdef\nnot this\n"))).toEqual(["0123456789abcdef"]);
    const long = "abc.def_ghi~jkl+mno/pqr==";
    expect(await read(file(`  ${long}  `))).toEqual([long]);
  });

  test.each(["", "\n0123456789abcdef", "short", "has a blank inside it", "ünïcödé-0123456789"])(
    "%p is refused",
    async (text) => {
      const thrown = await read(file(text)).catch((error: unknown) => error);
      expect(thrown).toBeInstanceOf(HearthError);
      expect(thrown).toMatchObject({ code: "CONFIG_INVALID" });
      if (text.length > 8) expect((thrown as HearthError).text).not.toContain(text.trim());
    },
  );

  test("a missing token file is refused", async () => {
    const thrown = await read(join(folder, "none")).catch((error: unknown) => error);
    expect(thrown).toMatchObject({ code: "CONFIG_INVALID" });
  });
});

describe("the listening address", () => {
  const services = {
    status: () => {
      throw new Error("not asked");
    },
    readiness: () => ({ ready: true, reasons: [] }),
    health: () => [],
    sessions: () => ({ sessions: [], next: null }),
    session: () => [],
    purge: async () => [],
    persist: async () => ({ written: 0, skipped: 0, durable: true }),
    metricsText: async () => "",
    metricsContentType: "text/plain",
    control: new FakeControl(),
    peers: new FakePeers(),
  };
  const api = (token: string | null) =>
    createApi(services, {
      version: "1",
      clock: new ManualClock(),
      access: token === null ? OPEN_ACCESS : oneToken(token),
      onFault: () => undefined,
    });

  test("the server listens on loopback at a free port", async () => {
    const served = serve();
    expect(served.host).toBe("127.0.0.1");
    expect(served.port).toBeGreaterThan(0);
    expect(served.url).toBe(`http://127.0.0.1:${served.port}`);
  });

  test.each(["0.0.0.0", "192.168.1.1", "::", "example.org"])(
    "listening on %s requires a token",
    (host) => {
      expect(() => api(null).listen({ host, port: 0 })).toThrow("no token is configured");
    },
  );

  test("a public address is served if a token is set", async () => {
    await using server = api("0123456789abcdef").listen({ host: "0.0.0.0", port: 0 });
    expect((await fetch(`http://127.0.0.1:${server.port}/healthz`)).status).toBe(200);
  });

  test("a taken address is refused with a fix", async () => {
    using taken = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data: () => undefined } });
    const { port } = taken;
    let thrown: unknown;
    try {
      api(null).listen({ port });
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toMatchObject({ code: "SOCKET_IN_USE", fix: expect.any(String) });
    expect((thrown as Error).message).toStartWith(`cannot listen on 127.0.0.1, port ${port}: `);
  });

  test("the address is free after the server is disposed", async () => {
    const first = api(null).listen({ port: 0 });
    await fetch(`${first.url}/healthz`);
    await first[Symbol.asyncDispose]();
    expect(fetch(`${first.url}/healthz`)).rejects.toThrow();
    await using second = api(null).listen({ port: first.port });
    expect((await fetch(`${second.url}/healthz`)).status).toBe(200);
  });
});

test("a refused caller is counted and reported without its token", async () => {
  const guarded = serve({ access: oneToken("0123456789abcdef") });
  const { refused, clock } = guarded.told;
  const secret = "wrong-token-0123456789";
  const headers = { authorization: `Bearer ${secret}` };
  const wrong = () => guarded.get("/v1/status", { headers });
  for (let i = 0; i < 5; i++) expect((await wrong()).status).toBe(401);
  expect(refused).toEqual([{ code: "UNAUTHORIZED", address: "127.0.0.1", count: 1 }]);
  clock.advance(60_000);
  await wrong();
  expect(refused.slice(1)).toEqual([{ code: "UNAUTHORIZED", address: "127.0.0.1", count: 5 }]);
  expect(JSON.stringify(refused)).not.toContain(secret);
  const authorized = { headers: { authorization: "Bearer 0123456789abcdef" } };
  const text = await (await guarded.get("/metrics", authorized)).text();
  expect(text).toContain('hearth_api_refused_total{code="UNAUTHORIZED"} 6');
  expect(text).toContain('hearth_api_refused_total{code="FORBIDDEN"} 0');
  const open = serve();
  await open.get("/v1/status", { headers: { host: "evil.example" } });
  await open.get("/v1/persist", { method: "POST", headers: { origin: "https://evil.example" } });
  expect(open.told.refused.map(({ code }) => code)).toEqual(["HOST_REFUSED", "ORIGIN_REFUSED"]);
});
