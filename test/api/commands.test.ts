import { describe, expect, test } from "bun:test";
import { decodeReceipt, encodeBody, REFUSALS, type RefusalCode } from "../../src/control/index.ts";
import { parseJson } from "../../src/core/index.ts";
import { NO_COUNTS, receiptOf, refused } from "./fake-control.ts";
import { problem, raw, serve } from "./serve.ts";

const MSGPACK = "application/msgpack";
const served = serve();
const { control } = served.told;

function post(body: RequestInit["body"], headers: Record<string, string> = {}, query = "") {
  return served.get(`/v1/commands${query}`, {
    method: "POST",
    body: body ?? null,
    headers: { "content-type": "application/json", ...headers },
  });
}

describe("POST /v1/commands", () => {
  test("a command is forwarded unchanged and answered with its exact receipt", async () => {
    const body = '{"type":"Cache","block_hashes":[18446744073709551615,-1],"pin":true,"id":"é"}';
    control.answer = () =>
      receiptOf({
        id: "é",
        counts: { ...NO_COUNTS, done: 2 },
        blocks: [
          { block: 2n ** 64n - 1n, outcome: "done" },
          { block: -1, outcome: "done" },
        ],
      });
    const answer = await post(body);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe("application/json");
    const text = await answer.text();
    expect(text).toContain('"block":18446744073709551615');
    expect(parseJson(text)).toMatchObject({ id: "é", counts: { done: 2 } });
    const { body: bytes, contentType, sender } = control.submitted.at(-1)!;
    expect(Buffer.from(bytes).toString()).toBe(body);
    expect(contentType).toBe("application/json");
    const from = "local 127.0.0.1";
    const known = { role: "purge", roleKey: "api.loopback_role", broadcast: false };
    expect(sender as unknown).toEqual({ via: "http", from, name: "local", ...known });
  });

  test("a MessagePack command gets a MessagePack receipt", async () => {
    control.answer = () => receiptOf({ blocks: [{ block: 2n ** 63n, outcome: "missing" }] });
    const command = { type: "Cache", block_hashes: [2n ** 63n], pin: true };
    const answer = await post(Uint8Array.from(encodeBody(command, MSGPACK)), {
      "content-type": "application/x-msgpack",
    });
    expect(answer.headers.get("content-type")).toBe(MSGPACK);
    const receipt = decodeReceipt(await answer.bytes(), MSGPACK);
    expect(receipt?.blocks).toEqual([{ block: 2n ** 63n, outcome: "missing" }]);
    expect(control.submitted.at(-1)!.contentType).toBe("application/x-msgpack");
  });

  test("the receipt has the type that Accept names", async () => {
    control.answer = () => receiptOf();
    expect((await post("{}", { accept: MSGPACK })).headers.get("content-type")).toBe(MSGPACK);
    const json = await post(Uint8Array.of(0x80), {
      "content-type": MSGPACK,
      accept: "application/json",
    });
    expect(await json.json()).toMatchObject({ status: "ok" });
  });

  test.each(
    Object.entries({
      malformed: 422,
      unknown_type: 422,
      too_large: 413,
      too_deep: 422,
      forbidden: 403,
      broadcast_refused: 403,
      expired: 409,
      unproven: 403,
      replayed: 409,
      implausible: 422,
      rate_limited: 429,
      id_reused: 409,
      stale: 409,
      fenced: 409,
      busy: 503,
      internal: 500,
    } satisfies Record<RefusalCode, number>),
  )("a command refused as %s is %d, with the receipt", async (word, status) => {
    control.answer = () => refused(word as RefusalCode);
    const answer = await post("{}");
    expect(answer.status).toBe(status);
    const { reason, status: said } = (await answer.json()) as { reason: string; status: string };
    expect([said, reason]).toEqual(["rejected", `${word}: ${REFUSALS[word as "busy"].meaning}`]);
  });

  test.each(["", "budget: 3 GiB of 4 GiB", "constructor: x"])(
    "%p is a conflict",
    async (reason) => {
      control.answer = () => receiptOf({ status: "rejected", reason });
      expect((await post("{}")).status).toBe(409);
    },
  );

  test("a partial outcome is answered 200", async () => {
    control.answer = () => receiptOf({ status: "partial" });
    expect((await post("{}")).status).toBe(200);
  });

  test("a command body of 1 MiB is accepted, a longer one refused", async () => {
    control.answer = () => receiptOf();
    const fits = "x".repeat(2 ** 20);
    expect((await post(fits)).status).toBe(200);
    expect(control.submitted.at(-1)!.body.length).toBe(2 ** 20);
    const before = control.submitted.length;
    for (const long of [`${fits}x`, "x".repeat(5 * 2 ** 20)]) {
      expect(await problem(await post(long))).toMatchObject({ code: "TOO_LARGE", status: 413 });
    }
    let left = 17;
    const chunks = new ReadableStream({
      async pull(controller) {
        await new Promise(setImmediate);
        if (left-- === 0) controller.close();
        else controller.enqueue(new Uint8Array(2 ** 16));
      },
    });
    expect(await problem(await post(chunks))).toMatchObject({ code: "TOO_LARGE", status: 413 });
    expect(control.submitted.length).toBe(before);
  });
});

test("the idle timeout ends slow bodies but not slow answers", async () => {
  const hasty = serve({ idleSeconds: 1 });
  const { control } = hasty.told;
  const done = Promise.withResolvers<ReturnType<typeof receiptOf>>();
  control.answer = () => done.promise;
  control.flush = () => done.promise;
  const long = [
    hasty.get("/v1/commands", { method: "POST", body: "{}" }),
    hasty.get("/flush_cache", { method: "POST", headers: { accept: "application/json" } }),
  ];
  const head = "POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50";
  expect(await raw(hasty.port, head)).toBe("");
  done.resolve(receiptOf());
  for (const answer of await Promise.all(long)) expect(answer.status).toBe(200);
  expect(control.submitted).toHaveLength(1);
});

describe("wait=false", () => {
  const WARM = { type: "Warm", block_keys: [1], id: "w 1/ü", issuer: "router-1" };

  test("wait=false answers 202 with the path of the receipt", async () => {
    const done = Promise.withResolvers<ReturnType<typeof receiptOf>>();
    const running = receiptOf({ id: WARM.id, issuer: "router-1", status: "running", type: "Warm" });
    control.receipts.set(WARM.id, running);
    control.answer = () => done.promise;
    const answer = await post(JSON.stringify(WARM), {}, "?wait=false");
    expect(answer.status).toBe(202);
    expect(await answer.json()).toMatchObject({ status: "running" });
    const place = answer.headers.get("location")!;
    expect(place).toBe("/v1/commands/w%201%2F%C3%BC?issuer=router-1");
    expect(await (await served.get(place)).json()).toEqual({ ...running });
    const last = { ...running, status: "ok" as const };
    control.receipts.set(WARM.id, last);
    done.resolve(last);
    expect(await (await served.get(place)).json()).toMatchObject({ status: "ok" });
  });

  test("wait=false answers with the final receipt if the command ended at once", async () => {
    control.answer = () => receiptOf({ id: "w-2" });
    const answer = await post(JSON.stringify({ ...WARM, id: "w-2" }), {}, "?wait=false");
    expect([answer.status, answer.headers.get("location")]).toEqual([200, null]);
    control.answer = () => refused("malformed");
    expect((await post("{", {}, "?wait=false")).status).toBe(422);
  });

  test("wait=false requires a command id", async () => {
    const before = control.submitted.length;
    const { id: _, ...plain } = WARM;
    const answer = await post(JSON.stringify(plain), {}, "?wait=false");
    expect(await problem(answer)).toMatchObject({ status: 422, fix: expect.any(String) });
    expect(control.submitted.length).toBe(before);
  });

  test("a command that fails after the answer is logged", async () => {
    const done = Promise.withResolvers<never>();
    control.receipts.set("w-3", receiptOf({ id: "w-3", issuer: "router-1", status: "running" }));
    control.answer = () => done.promise;
    expect((await post(JSON.stringify({ ...WARM, id: "w-3" }), {}, "?wait=false")).status).toBe(
      202,
    );
    done.reject(new Error("the disk is gone"));
    await done.promise.catch(() => undefined);
    await served.get("/healthz");
    expect(served.told.faults.at(-1)).toMatchObject({ path: "/v1/commands" });
  });

  test.each(["?wait=no", "?wait=", "?wait=1"])("%s is refused", async (query) => {
    expect(await problem(await post("{}", {}, query))).toMatchObject({ status: 422 });
  });
});

describe("GET /v1/commands/{id}", () => {
  test("a receipt of any status is answered in any type", async () => {
    control.receipts.set("a", refused("busy", { id: "a" }));
    const answer = await served.get("/v1/commands/a");
    expect(answer.status).toBe(200);
    expect(await answer.json()).toMatchObject({ status: "rejected" });
    const packed = await served.get("/v1/commands/a", { headers: { accept: MSGPACK } });
    expect(decodeReceipt(await packed.bytes(), MSGPACK)?.id).toBe("a");
  });

  test.each(["/v1/commands/a?issuer=other", "/v1/commands/b", "/v1/commands/%2e%2e"])(
    "%s is not known",
    async (path) => {
      expect(await problem(await served.get(path))).toMatchObject({ status: 404 });
    },
  );

  test.each([`/v1/commands/${"x".repeat(129)}`, `/v1/commands/a?issuer=${"x".repeat(129)}`])(
    "%s is too long",
    async (path) => {
      expect(await problem(await served.get(path))).toMatchObject({ status: 422 });
    },
  );
});
