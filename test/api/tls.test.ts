import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { OPEN_ACCESS, readTls, Tokens } from "../../src/api/index.ts";
import { makeCertificates, tempDir } from "../support/index.ts";
import { problem, type Served, serve } from "./serve.ts";

const folder = tempDir();
const files = makeCertificates(folder);
const text = (path: string) => readFileSync(path, "utf8");
const OWN = { tlsCertFile: files.certFile, tlsKeyFile: files.keyFile };
const ca = text(files.caFile);
const CLIENT = { ca, cert: text(files.clientCertFile), key: text(files.clientKeyFile) };
const STRANGER = { ca, cert: text(files.strangerCertFile), key: text(files.strangerKeyFile) };

const TOKEN = "0123456789abcdef";
const authorization = `Bearer ${TOKEN}`;
const tokens = new Tokens([{ name: "ops", role: "purge", token: TOKEN }]);
const onlyTls = await readTls({ ...OWN, tlsClientCaFile: null });
const mutual = await readTls({ ...OWN, tlsClientCaFile: files.caFile });

const ask = (served: Served, path: string, tls: object, init: RequestInit = {}) =>
  fetch(`${served.url}${path}`, { ...init, tls } as RequestInit);

describe("HTTPS", () => {
  test("with a token is served to other machines, under any name", async () => {
    const served = serve({ access: { ...OPEN_ACCESS, tls: onlyTls, tokens }, host: "0.0.0.0" });
    expect(served.url).toStartWith("https://0.0.0.0:");
    const url = `https://localhost:${served.port}/v1/status`;
    const init = { headers: { authorization }, tls: { ca } } as RequestInit;
    expect((await fetch(url, init)).status).toBe(200);
    expect((await fetch(url, { tls: { ca } } as RequestInit)).status).toBe(401);
    expect(fetch(url)).rejects.toThrow();
    expect(fetch(url.replace("https", "http"))).rejects.toThrow();
  });

  test("without credentials is for loopback alone, under its names alone", async () => {
    const access = { ...OPEN_ACCESS, tls: onlyTls };
    expect(() => serve({ access, host: "0.0.0.0" })).toThrow("no token is configured");
    const served = serve({ access });
    expect((await ask(served, "/v1/status", { ca })).status).toBe(200);
    const init = { headers: { host: "evil.example" } };
    expect(await problem(await ask(served, "/v1/status", { ca }, init))).toMatchObject({
      code: "HOST_REFUSED",
    });
  });
});

describe("client certificates", () => {
  const access = { ...OPEN_ACCESS, tls: mutual, clientRole: "operate" as const };
  const served = serve({ access, host: "0.0.0.0" });
  const to = { ...served, url: `https://127.0.0.1:${served.port}` };

  test("are asked for on every path, health among them", async () => {
    for (const tls of [{ ca }, STRANGER]) {
      for (const path of ["/healthz", "/v1/status"]) {
        expect(ask(to, path, tls)).rejects.toThrow();
      }
    }
    expect((await ask(to, "/healthz", CLIENT)).status).toBe(200);
  });

  test("give their role, and a name for the audit log", async () => {
    expect((await ask(to, "/v1/status", CLIENT)).status).toBe(200);
    expect((await ask(to, "/v1/persist", CLIENT, { method: "POST" })).status).toBe(200);
    const found = await problem(await ask(to, "/flush_cache", CLIENT));
    expect(found).toMatchObject({
      ...{ status: 403, code: "FORBIDDEN" },
      detail: "this request requires the role purge; certificate has operate",
      fix: expect.stringContaining('api.tls_client_role = "purge"'),
    });
    await ask(to, "/v1/commands", CLIENT, { method: "POST", body: "{}" });
    expect(served.told.control.submitted.at(-1)!.sender).toMatchObject({
      ...{ name: "certificate", from: "certificate 127.0.0.1", role: "operate" },
    });
  });

  test("do not let a page of another site use a browser's", async () => {
    const headers = { origin: "https://evil.example" };
    const answer = await ask(to, "/v1/persist", CLIENT, { method: "POST", headers });
    expect(await problem(answer)).toMatchObject({ code: "ORIGIN_REFUSED" });
  });

  test("go with a token, whose role holds then; a wrong one is refused", async () => {
    const both = serve({ access: { ...access, clientRole: "read", tokens } });
    const flush = (headers: Record<string, string>) =>
      ask(both, "/flush_cache", CLIENT, { method: "POST", headers });
    expect((await flush({})).status).toBe(403);
    expect((await flush({ authorization })).status).toBe(200);
    const { status, fix } = await problem(await flush({ authorization: `${authorization}x` }));
    expect([status, fix]).toEqual([401, expect.stringContaining("or no token")]);
    expect(ask(both, "/flush_cache", { ca }, { headers: { authorization } })).rejects.toThrow();
  });
});

describe("TLS files", () => {
  const refused = (given: Partial<Parameters<typeof readTls>[0]>) =>
    readTls({ ...OWN, tlsClientCaFile: null, ...given }).catch((error: unknown) => error);

  test("TLS files are a pair, or absent", async () => {
    const none = { tlsCertFile: null, tlsKeyFile: null, tlsClientCaFile: null };
    expect(await readTls(none)).toBeNull();
    expect(onlyTls).toMatchObject({ clientCa: null });
    expect(mutual).toMatchObject({ clientCa: ca });
  });

  test("invalid TLS files are refused without quoting them", async () => {
    const rubbish = join(folder, "rubbish.pem");
    const secret = text(files.keyFile).split("\n")[1]!;
    writeFileSync(rubbish, `-----BEGIN PRIVATE KEY-----\n${secret}\n`);
    for (const [given, what] of [
      [{ tlsKeyFile: files.clientKeyFile }, "is not the key of"],
      [{ tlsKeyFile: rubbish }, "does not begin with a private key in PEM"],
      [{ tlsCertFile: rubbish }, "does not begin with a certificate in PEM"],
      [{ tlsClientCaFile: rubbish }, "does not begin with a certificate in PEM"],
      [{ tlsKeyFile: join(folder, "none") }, "cannot be read"],
      [{ tlsClientCaFile: folder }, "cannot be read"],
    ] as const) {
      const thrown = await refused(given);
      expect(thrown).toMatchObject({ code: "CONFIG_INVALID", fix: expect.any(String) });
      expect(String(thrown)).toContain(what);
      expect(String(thrown)).not.toContain(secret);
    }
  });
});
