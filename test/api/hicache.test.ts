import { describe, expect, test } from "bun:test";
import { decodeReceipt } from "../../src/control/index.ts";
import { NO_COUNTS, receiptOf, refused } from "./fake-control.ts";
import { problem, serve } from "./serve.ts";

const served = serve({ flushByGet: true });
const { control } = served.told;

function post(path: string, body: string) {
  return served.get(path, { method: "POST", body });
}

const lastCommand = () => Buffer.from(control.submitted.at(-1)!.body).toString();

describe("POST /hicache/pin_blocks", () => {
  test("a pin has the owner hicache and exact 64-bit hashes", async () => {
    control.answer = () =>
      receiptOf({ status: "partial", counts: { ...NO_COUNTS, done: 2, missing: 1 } });
    const body = '{"block_hashes": [18446744073709551615, -9223372036854775808, 9007199254740993]}';
    const answer = await post("/hicache/pin_blocks", body);
    expect([answer.status, await answer.text()]).toEqual([200, '{"pinned_count":2}']);
    expect(lastCommand()).toBe(
      '{"type":"Cache","block_hashes":[18446744073709551615,-9223372036854775808,' +
        '9007199254740993],"pin":true,"owner":"hicache"}',
    );
    expect(control.submitted.at(-1)!.contentType).toBe("application/json");
  });

  test("a pin accepts an owner and a time to live, and no other field", async () => {
    control.answer = () => receiptOf({ counts: { ...NO_COUNTS, already: 1, deferred: 1 } });
    const body = '{"block_hashes":[1,2],"owner":"me","ttl_seconds":60,"type":"Flush","epoch":7}';
    const answer = await post("/hicache/pin_blocks", body);
    expect(await answer.json()).toEqual({ pinned_count: 2 });
    expect(JSON.parse(lastCommand())).toEqual({
      ...{ type: "Cache", block_hashes: [1, 2], pin: true, owner: "me", ttl_seconds: 60 },
    });
  });

  test("a refused pin is answered with a problem", async () => {
    control.answer = () => refused("rate_limited");
    expect(await problem(await post("/hicache/pin_blocks", '{"block_hashes":[1]}'))).toMatchObject({
      status: 429,
      code: "COMMAND_REJECTED",
      detail: expect.stringMatching(/^rate_limited: /),
    });
  });
});

test("POST /hicache/unpin_blocks counts removed pins only", async () => {
  control.answer = () => receiptOf({ counts: { ...NO_COUNTS, done: 3, already: 2, missing: 1 } });
  const answer = await post("/hicache/unpin_blocks", '{"block_hashes":[1,2],"owner":null}');
  expect(await answer.json()).toEqual({ unpinned_count: 3 });
  expect(JSON.parse(lastCommand())).toEqual({
    ...{ type: "Cache", block_hashes: [1, 2], pin: false, owner: "hicache" },
  });
});

test.each([
  ...["", "x", "[1]", "1", "null", '"x"', '{"block_hashes":[1]', "{}}"],
  `{"block_hashes":[${"9".repeat(401)}]}`,
  "[".repeat(10_000),
])("a body that is %j is refused before it is a command", async (body) => {
  const before = control.submitted.length;
  expect(await problem(await post("/hicache/pin_blocks", body))).toMatchObject({
    status: 422,
    code: "REQUEST_INVALID",
  });
  expect(control.submitted.length).toBe(before);
});

test("a body with invalid UTF-8 is refused", async () => {
  const answer = await served.get("/hicache/pin_blocks", {
    method: "POST",
    body: Uint8Array.of(0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d),
  });
  expect(await problem(answer)).toMatchObject({ status: 422 });
});

test("fields named like object methods are ordinary fields", async () => {
  control.answer = () => receiptOf();
  const body = '{"__proto__":{"owner":"evil"},"constructor":1,"block_hashes":[1],"owner":"me"}';
  expect((await post("/hicache/pin_blocks", body)).status).toBe(200);
  expect(JSON.parse(lastCommand()).owner).toBe("me");
});

describe("/flush_cache", () => {
  test.each(["GET", "POST"])("%s reports removed and kept blocks as text", async (method) => {
    const pin = { kind: "pin" as const, owner: "a" };
    control.flushed = receiptOf({
      type: "Flush",
      status: "partial",
      counts: { ...NO_COUNTS, done: 97, held: 3 },
      bytes: 97 * 2 ** 20,
      held: [
        { block: 1, layer: 0, outcome: "held", by: [pin, pin, { kind: "lease", name: "s" }] },
        { block: 2, layer: 0, outcome: "held", by: [pin] },
        { block: 3, layer: 0, outcome: "held", by: [{ kind: "session", name: "7" }] },
      ],
    });
    const answer = await served.get("/flush_cache", { method });
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toStartWith("text/plain");
    expect(await answer.text()).toBe(
      "Cache flushed.\nRemoved 97 blocks (97MiB).\n" +
        "Kept 3 blocks: 2 by pin, 1 by lease, 1 by session.\n",
    );
    expect(control.flushes.at(-1)).toMatchObject({ via: "http", role: "purge" });
  });

  test("GET is refused unless api.flush_by_get is set", async () => {
    const usual = serve();
    const answer = await usual.get("/flush_cache");
    expect(answer.headers.get("allow")).toBe("POST");
    expect(await problem(answer)).toMatchObject({
      ...{ status: 405, code: "METHOD_NOT_ALLOWED" },
      fix: expect.stringContaining("api.flush_by_get"),
    });
    expect(usual.told.control.flushes).toEqual([]);
    expect((await usual.get("/flush_cache", { method: "POST" })).status).toBe(200);
  });

  test("GET for an image on another site's page is refused by its Referer", async () => {
    const before = control.flushes.length;
    const ask = (referer: string) => served.get("/flush_cache", { headers: { referer } });
    for (const referer of ["https://evil.example/page", "http://127.0.0.1:1/", "about:blank"]) {
      expect(await problem(await ask(referer))).toMatchObject({ code: "ORIGIN_REFUSED" });
    }
    expect(control.flushes.length).toBe(before);
    expect((await ask(`${served.url}/openapi`)).status).toBe(200);
  });

  test("the text says for how many blocks the protection is known", async () => {
    const by = [{ kind: "pin" as const, owner: "a" }];
    const held = [{ block: 1, layer: 0, outcome: "held", by }];
    control.flushed = receiptOf({ counts: { ...NO_COUNTS, held: 5_000, deferred: 2 }, held });
    expect(await (await served.get("/flush_cache")).text()).toBe(
      "Cache flushed.\nRemoved 0 blocks.\nKept 5000 blocks; of the first 1: 1 by pin.\n" +
        "2 blocks are still being removed.\n",
    );
  });

  test("the answer is a receipt if Accept names one", async () => {
    control.flushed = receiptOf({ type: "Flush", counts: { ...NO_COUNTS, done: 1 } });
    const ask = (accept: string) => served.get("/flush_cache", { headers: { accept } });
    expect(await (await ask("application/json")).json()).toMatchObject({ type: "Flush" });
    const packed = await (await ask("application/msgpack")).bytes();
    expect(decodeReceipt(packed, "application/msgpack")?.counts.done).toBe(1);
    expect(await (await ask("*/*")).text()).toStartWith("Cache flushed.");
  });

  test("a refused flush reports the reason", async () => {
    control.flushed = refused("busy");
    const answer = await served.get("/flush_cache", { method: "POST" });
    expect([answer.status, await answer.text()]).toEqual([
      503,
      expect.stringMatching(/^Cache not flushed: busy: /),
    ]);
  });
});
