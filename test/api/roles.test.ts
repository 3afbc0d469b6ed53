import { describe, expect, test } from "bun:test";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  OPEN_ACCESS,
  readAccess,
  readTokens,
  type TokenEntry,
  Tokens,
} from "../../src/api/index.ts";
import { ROLES, type Role } from "../../src/control/index.ts";
import { tempDir } from "../support/index.ts";
import { problem, raw, serve } from "./serve.ts";

/** Every route with its required role, written out so that a change is noticed. */
const ROUTES: readonly (readonly [string, string, "open" | Role, string?])[] = [
  ["GET", "/healthz", "open"],
  ["GET", "/readyz", "open"],
  ["GET", "/metrics", "read"],
  ["GET", "/openapi", "read"],
  ["GET", "/openapi/json", "read"],
  ["GET", "/v1/status", "read"],
  ["GET", "/v1/sessions", "read"],
  ["GET", "/v1/sessions/5", "read"],
  ["GET", "/v1/pins", "read"],
  ["GET", "/v1/leases", "read"],
  ["GET", "/v1/tree", "read"],
  ["GET", "/v1/explain?names=5", "read"],
  ["POST", "/v1/explain", "read", '{"names":[5]}'],
  ["GET", "/v1/events", "read"],
  ["GET", "/v1/peers", "read"],
  ["GET", "/v1/pulls?key=5", "read"],
  ["GET", "/v1/commands/a", "read"],
  ["POST", "/v1/commands", "read", '{"type":"Flush"}'],
  ["POST", "/hicache/pin_blocks", "read", '{"block_hashes":[5]}'],
  ["POST", "/hicache/unpin_blocks", "read", '{"block_hashes":[5]}'],
  ["GET", "/flush_cache", "purge"],
  ["POST", "/flush_cache", "purge"],
  ["POST", "/v1/unfence", "purge", `{"issuer":"router-1"}`],
  ["POST", "/v1/purge", "purge", `{"blocks":[{"digest":"${"ab".repeat(32)}"}]}`],
  ["POST", "/v1/persist", "operate"],
];

const TOKEN_OF: Readonly<Record<Role, string>> = {
  read: "read-0123456789abcdef",
  operate: "operate-0123456789abcdef",
  purge: "purge-0123456789abcdef",
};
const ENTRIES: readonly TokenEntry[] = ROLES.map((role) => ({
  name: `${role}-er`,
  role,
  token: TOKEN_OF[role],
}));

const contains = (role: Role, needed: "open" | Role) =>
  needed === "open" || ROLES.indexOf(role) >= ROLES.indexOf(needed);

const init = (method: string, body?: string, headers: Record<string, string> = {}) => ({
  method,
  headers: { "content-type": "application/json", ...headers },
  ...(body === undefined ? {} : { body }),
});

describe("roles by token", () => {
  const served = serve({ access: { ...OPEN_ACCESS, tokens: new Tokens(ENTRIES) } });

  for (const [method, path, needed, body] of ROUTES) {
    test(`${method} ${path} needs ${needed}`, async () => {
      const bare = await served.get(path, init(method, body));
      expect(bare.status === 401).toBe(needed !== "open");
      for (const role of ROLES) {
        const authorization = `Bearer ${TOKEN_OF[role]}`;
        const answer = await served.get(path, init(method, body, { authorization }));
        expect([role, [401, 403].includes(answer.status)]).toEqual([role, !contains(role, needed)]);
        if (answer.status !== 403) continue;
        const { code, detail, fix } = await problem(answer);
        expect([code, detail]).toEqual([
          "FORBIDDEN",
          `this request requires the role ${needed}; ${role}-er has ${role}`,
        ]);
        expect(fix).toContain("api.tokens_file");
      }
    });
  }

  test("every route has a role", async () => {
    const headers = { authorization: `Bearer ${TOKEN_OF.read}` };
    const { paths } = (await (await served.get("/openapi/json", { headers })).json()) as {
      paths: Record<string, Record<string, unknown>>;
    };
    const described = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    const known = ROUTES.map(([method, path]) =>
      `${method} ${path.split("?")[0]}`.replace(/sessions\/5|commands\/a/, (at) =>
        at.replace(/\w$/, "{id}"),
      ),
    ).filter((route) => !route.includes("openapi"));
    expect(described.sort()).toEqual(known.sort());
  });

  test("the role and the token's name reach the control plane", async () => {
    const authorization = `Bearer ${TOKEN_OF.operate}`;
    await served.get("/v1/commands", init("POST", "{}", { authorization }));
    expect(served.told.control.submitted.at(-1)!.sender).toEqual({
      ...{ via: "http", from: "operate-er 127.0.0.1", name: "operate-er", role: "operate" },
      ...{ roleKey: "api.tokens_file", account: "operate-er", broadcast: false },
    });
  });

  test("another spelling of a path does not bypass its role", async () => {
    served.told.control.flushes.length = 0;
    served.told.purge = () => {
      throw new Error("purged");
    };
    for (const path of [
      ...["/v1/purge/", "//v1/purge", "/v1//purge", "/v1/./purge", "/v1/x/../purge", "/v1/purg%65"],
      ...["/healthz/../v1/purge", "/healthz/%2e%2e/v1/purge", "/V1/purge", "/v1/purge;x"],
      ...["/flush_cache/", "/flush%5Fcache", "/%66lush_cache", "/v1/sessions/../../flush_cache"],
      ...["/v1/commands/..%2f..%2fflush_cache", "/flush_cache?/healthz", "/flush_cache?x=/healthz"],
    ]) {
      for (const method of ["GET", "HEAD", "POST", "PUT", "OPTIONS"]) {
        const head = `${method} ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0`;
        const authorized = `${head}\r\nAuthorization: Bearer ${TOKEN_OF.read}`;
        const [status, bare] = [await raw(served.port, authorized), await raw(served.port, head)];
        expect([path, status]).toEqual([path, expect.stringMatching(/ 4\d\d /)]);
        expect([path, bare]).toEqual([path, expect.stringMatching(/ 40[01] /)]);
      }
    }
    expect(served.told.control.flushes).toEqual([]);
    expect(served.told.faults).toEqual([]);
  });
});

describe("the role on loopback", () => {
  test.each(ROLES)("%s holds for callers without credentials", async (loopbackRole) => {
    const served = serve({ access: { ...OPEN_ACCESS, loopbackRole } });
    for (const [method, path, needed, body] of ROUTES) {
      const answer = await served.get(path, init(method, body));
      const isIn = answer.status !== 401 && answer.status !== 403;
      expect([method, path, isIn]).toEqual([method, path, contains(loopbackRole, needed)]);
      if (isIn) continue;
      const fix = `ask over api.socket, or set api.loopback_role = "${needed}"`;
      expect((await problem(answer)).fix).toBe(fix);
    }
  });
});

describe("a page of another site", () => {
  const served = serve();
  const ask = async (method: string, path: string, headers: Record<string, string>) =>
    (await served.get(path, init(method, "{}".slice(0, method === "GET" ? 0 : 2), headers))).status;

  test.each<Record<string, string>>([
    { origin: "https://evil.example" },
    { origin: "http://127.0.0.1:1" },
    { origin: "null" },
    { origin: "" },
    { "sec-fetch-site": "cross-site" },
    { "sec-fetch-site": "same-site" },
    { "sec-fetch-site": "same-origin", origin: "https://evil.example" },
  ])("with %j changes nothing", async (headers) => {
    const before = served.told.control.submitted.length;
    const post = init("POST", '{"block_hashes":[1]}', headers);
    const answer = await served.get("/hicache/pin_blocks", post);
    expect(await problem(answer)).toMatchObject({ status: 403, code: "ORIGIN_REFUSED" });
    expect(await ask("POST", "/v1/commands", headers)).toBe(403);
    expect(await ask("POST", "/v1/persist", headers)).toBe(403);
    expect((await served.get("/flush_cache", { headers })).status).toBe(403);
    expect(served.told.control.submitted.length).toBe(before);
    expect(served.told.control.flushes).toEqual([]);
    expect((await served.get("/v1/status", { headers })).status).toBe(200);
  });

  test.each<(url: string) => Record<string, string>>([
    (origin) => ({ origin }),
    (origin) => ({ origin, "sec-fetch-site": "same-origin" }),
    () => ({ "sec-fetch-site": "none" }),
    () => ({}),
  ])("own pages and programs are not mistaken for another site (%#)", async (headers) => {
    expect(await ask("POST", "/v1/commands", headers(served.url))).not.toBe(403);
  });
});

describe("the tokens file", () => {
  const folder = tempDir();
  let files = 0;
  const file = (text: string, mode = 0o600) => {
    const path = join(folder, `tokens-${files++}`);
    writeFileSync(path, text);
    chmodSync(path, mode);
    return path;
  };
  const read = (text: string, mode?: number) =>
    readTokens({ tokenFile: null, tokensFile: file(text, mode) });
  const A = "a".repeat(16);
  const B = "b".repeat(16);

  test("the tokens file has names, roles, tokens and comments", async () => {
    const list = await read(`# who may\n\n grafana  read\t${A} \r\n#x\nops@site operate ${B}==`);
    expect(list).toEqual({
      entries: [
        { name: "grafana", role: "read", token: A },
        { name: "ops@site", role: "operate", token: `${B}==` },
      ],
      warnings: [],
    });
  });

  test("the tokens file may have two tokens of one name, for rotation", async () => {
    expect((await read(`a read ${A}\na read ${B}`))?.entries).toHaveLength(2);
  });

  test("a tokens file that others can read, or that has no token, causes a warning", async () => {
    expect((await read(`a read ${A}`, 0o644))?.warnings.join("\n")).toContain("chmod o-r ");
    expect((await read("# nobody yet\n"))?.warnings.join("\n")).toContain(
      "all requests are refused",
    );
  });

  test.each([
    ["line 1: 2 words", `a ${A}`],
    ["line 2: 4 words", `#\na read ${A} x`],
    ["line 1: not a name", `-a read ${A}`],
    ["line 1: not a name", `${"a".repeat(65)} read ${A}`],
    ["line 1: the name local", `local read ${A}`],
    ["line 1: not a role", `a admin ${A}`],
    ["line 1: not a bearer token", "a read short"],
    ["line 1: not a bearer token", `a read ${"ü".repeat(20)}`],
    ["a and b have the same token", `a read ${A}\nb purge ${A}`],
    ["line 1: 1001 tokens", Array.from({ length: 1_001 }, (_, i) => `a read ${A}${i}`).join("\n")],
    ["line 1: the file is longer", `#${"x".repeat(256 * 1024)}`],
  ])("is refused: %s", async (what, text) => {
    const thrown = await read(text).catch((error: unknown) => error);
    expect(thrown).toMatchObject({ code: "CONFIG_INVALID", fix: expect.any(String) });
    expect(String(thrown)).toContain(what);
    expect(JSON.stringify(thrown) + String(thrown)).not.toContain(A);
  });

  test("a reload drops removed tokens, and a refused file changes nothing", async () => {
    const tokensFile = file(`a purge ${A}\n`);
    const tls = { tlsCertFile: null, tlsKeyFile: null, tlsClientCaFile: null };
    const roles = { loopbackRole: "purge", tlsClientRole: "read" } as const;
    const listen = { host: "127.0.0.1", port: 0, loopback: true };
    const { access, reload } = await readAccess({
      ...{ listen, tokenFile: null, tokensFile, ...tls, ...roles },
    });
    const served = serve({ access });
    const open = async (token: string) =>
      (await served.get("/v1/status", { headers: { authorization: `Bearer ${token}` } })).status;
    expect([await open(A), await open(B)]).toEqual([200, 401]);
    writeFileSync(tokensFile, `a purge ${B}\n`);
    expect([await open(A), await open(B)]).toEqual([200, 401]);
    expect(await reload()).toEqual([]);
    expect([await open(A), await open(B)]).toEqual([401, 200]);
    writeFileSync(tokensFile, "a purge\n");
    expect(reload()).rejects.toThrow("line 1: 2 words");
    expect([await open(A), await open(B)]).toEqual([401, 200]);
    writeFileSync(tokensFile, "\n");
    expect((await reload()).join("\n")).toContain("all requests are refused");
    expect([await open(A), await open(B)]).toEqual([401, 401]);
  });
});

describe("a token is compared", () => {
  test("a token is compared with every known token", () => {
    let compared: number[] = [];
    const entries = Array.from({ length: 50 }, (_, i) => ({
      ...{ name: `n${i}`, role: "read" as const, token: `token-number-${i}-0123456789` },
    }));
    const tokens = new Tokens(entries, (a, b) => {
      compared.push(a.length, b.length);
      return Buffer.compare(a, b) === 0;
    });
    for (const at of [0, 25, 49, 50]) {
      compared = [];
      const found = tokens.find(`Bearer token-number-${at}-0123456789`);
      expect(found?.name ?? null).toBe(at === 50 ? null : `n${at}`);
      expect(compared).toEqual(new Array(100).fill(32));
    }
    compared = [];
    expect([null, "", "Bearer", "Basic x"].map((header) => tokens.find(header))).toEqual([
      ...[null, null, null, null],
    ]);
    expect(compared).toHaveLength(400);
  });
});
