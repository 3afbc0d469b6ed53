import { afterEach, describe, expect, test } from "bun:test";
import { connectHttp, pin } from "hearth/client";
import type { Receipt } from "../../../src/control/index.ts";
import { encodeReceipt, MSGPACK_TYPE } from "../../../src/control/index.ts";
import { FakeAgent, json, problem, receipt } from "../../cli/fake-agent.ts";
import { makeCertificates, tempDir, waitFor } from "../../support/index.ts";

const done = receipt([{ block: 1, outcome: "done" }]);

describe("over HTTP", () => {
  test("a lost answer is retried with the same id and has one effect", async () => {
    const carriedOut = new Set<string>();
    let nth = 0;
    await using agent = new FakeAgent({
      "POST /v1/commands": ({ body }) => {
        carriedOut.add((body as { id: string }).id);
        if (++nth === 1) return problem(500, "an unexpected error");
        // Refused before the id is looked up: the first attempt may have been carried out.
        const busy = receipt([], { status: "rejected", reason: "busy: 8192 commands wait" });
        return nth === 2 ? json(busy, 503) : { ...done, duplicate: true };
      },
    });
    await using client = connectHttp({ url: agent.url, issuer: "me" });
    const result = await client.send("node-1", pin([1]));
    expect(result).toMatchObject({ kind: "receipt", receipt: { duplicate: true } });
    expect(agent.commands).toHaveLength(3);
    expect(carriedOut.size).toBe(1);
  });

  test("progress is polled while the answer is outstanding", async () => {
    const gate = Promise.withResolvers<object>();
    const running = receipt([], {
      status: "running",
      progress: { done_blocks: 3, total_blocks: 9, bytes: 1 },
    });
    await using agent = new FakeAgent({
      "POST /v1/commands": () => gate.promise,
      "GET /v1/commands/a%20b": () => running,
    });
    await using client = connectHttp({ url: agent.url, issuer: "me" });
    const seen: Receipt[] = [];
    const onProgress = (at: Receipt) => {
      seen.push(at);
      gate.resolve(done);
    };
    const result = await client.send("", pin([1], { id: "a b" }), { onProgress });
    expect(result.kind).toBe("receipt");
    expect(seen).toMatchObject([{ status: "running", progress: { done_blocks: 3 } }]);
    const asked = agent.seen.find(({ path }) => path === "/v1/commands/a%20b");
    expect(asked?.query).toEqual({ issuer: "me" });
  });

  test("MessagePack both ways", async () => {
    const bytes = Uint8Array.from(encodeReceipt(done as Receipt, MSGPACK_TYPE));
    const headers = { "content-type": MSGPACK_TYPE };
    const answer = () => new Response(bytes, { headers });
    await using agent = new FakeAgent({ "POST /v1/commands": answer });
    await using client = connectHttp({ url: agent.url, encoding: "msgpack" });
    expect(await client.send("", pin([2n ** 64n - 1n]))).toEqual({
      kind: "receipt",
      receipt: done as Receipt,
    });
    expect(agent.seen[0]?.contentType).toBe(MSGPACK_TYPE);
  });

  test("the receipt of another agent at the address is rejected", async () => {
    await using agent = new FakeAgent({
      "POST /v1/commands": () => ({ ...done, worker_id: "node-2" }),
    });
    await using client = connectHttp({ url: agent.url });
    expect(await client.send("node-1", pin([1]))).toMatchObject({
      kind: "unreachable",
      why: "node-2 answered instead of node-1",
    });
  });

  test("broadcast and discovery reach only the one agent", async () => {
    await using agent = new FakeAgent({ "POST /v1/commands": () => done });
    await using client = connectHttp({ url: agent.url });
    expect(await client.broadcast(pin([1]))).toEqual({
      ...{ receipts: [done as Receipt], silent: [], why: null },
    });
    expect(await client.workers()).toEqual([
      { id: "node-1", version: "0.1.0", incarnation: "18446744073709551615" },
    ]);
    expect(client.publish("node-1", pin([1]))).toBe("sent");
    await waitFor(() => agent.commands.length === 2);
  });

  test("discovery says why no agent was found", async () => {
    const refuse = () => problem(401, "the bearer token is missing or wrong");
    const agent = new FakeAgent({ "GET /v1/status": refuse });
    await using client = connectHttp({ url: agent.url });
    await expect(client.workers()).rejects.toMatchObject({ code: "ENGINE_REFUSED" });
    await agent[Symbol.asyncDispose]();
    await expect(client.workers()).rejects.toMatchObject({ code: "DEADLINE" });
  });

  test("a signal and the end of the client end a wait", async () => {
    await using agent = new FakeAgent({ "POST /v1/commands": () => new Promise(() => undefined) });
    const client = connectHttp({ url: agent.url });
    const controller = new AbortController();
    const first = client.send("", pin([1]), { signal: controller.signal });
    await waitFor(() => agent.commands.length === 1);
    controller.abort();
    await expect(first).rejects.toMatchObject({ code: "ABORTED" });
    const second = client.send("", pin([1]));
    await waitFor(() => agent.commands.length === 2);
    const ended = second.catch((thrown: unknown) => thrown);
    await client[Symbol.asyncDispose]();
    expect(await ended).toMatchObject({ code: "ENGINE_CLOSED" });
    await expect(client.get("/v1/status")).rejects.toMatchObject({ code: "ENGINE_CLOSED" });
  });
});

describe("with a proxy in the environment", () => {
  const names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];
  const before = Object.fromEntries(names.map((name) => [name, process.env[name]]));
  afterEach(() => {
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  });

  test.each([undefined, "example.com"])("NO_PROXY %p: no proxy gets the token", async (spared) => {
    await using proxy = new FakeAgent({});
    await using agent = new FakeAgent({ "POST /v1/commands": () => done });
    for (const name of names) process.env[name] = proxy.url;
    for (const name of ["NO_PROXY", "no_proxy"]) {
      if (spared === undefined) delete process.env[name];
      else process.env[name] = spared;
    }
    // The runtime does use the proxy: otherwise the test would prove nothing.
    await (await fetch(`${agent.url}/v1/status`)).text();
    expect(proxy.seen).toHaveLength(1);
    await using client = connectHttp({ url: agent.url, token: "0123456789abcdef" });
    expect((await client.send("node-1", pin([1]))).kind).toBe("receipt");
    expect(agent.seen.map(({ token }) => token)).toEqual(Array(2).fill("Bearer 0123456789abcdef"));
    expect(proxy.seen).toHaveLength(1);
    expect([process.env.NO_PROXY, process.env.no_proxy]).toEqual([spared, spared]);
  });
});

describe("over TLS", () => {
  const files = makeCertificates(tempDir());
  const read = (file: string) => Bun.file(file).text();

  test("certificates of both sides are checked", async () => {
    const tls = {
      ...{ cert: await read(files.certFile), key: await read(files.keyFile) },
      ...{ ca: await read(files.caFile), requestCert: true, rejectUnauthorized: true },
    };
    await using agent = new FakeAgent({ "POST /v1/commands": () => done }, tls);
    const own = { cert: await read(files.clientCertFile), key: await read(files.clientKeyFile) };
    const ca = await read(files.caFile);
    const send = async (shown: { ca?: string; cert?: string; key?: string }) => {
      await using client = connectHttp({ url: agent.url, tls: shown });
      return await client.send("", pin([1]), { deadlineMs: 2_000 });
    };
    expect((await send({ ca, ...own })).kind).toBe("receipt");
    expect(await send({ ca: await read(files.otherCaFile), ...own })).toMatchObject({
      kind: "refused",
      tries: 1,
    });
    expect((await send({ ca })).kind).not.toBe("receipt");
    expect(agent.commands).toHaveLength(1);
  });
});
