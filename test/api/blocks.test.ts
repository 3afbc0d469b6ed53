import { describe, expect, test } from "bun:test";
import type { PurgeRequest } from "../../src/api/index.ts";
import { systemClock } from "../../src/core/index.ts";
import { problem, serve } from "./serve.ts";

const DIGEST = "0123456789abcdef".repeat(4);

describe("POST /v1/purge", () => {
  const served = serve();
  const purge = (body: unknown) =>
    fetch(`${served.url}/v1/purge`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });

  test("a purge forwards the blocks and answers with each outcome", async () => {
    const asked: PurgeRequest[] = [];
    served.told.purge = (blocks) => {
      asked.push(...blocks);
      return ["done", "held"];
    };
    const answer = await purge({ blocks: [{ digest: DIGEST }, { digest: DIGEST, layer: 7 }] });
    expect(answer.status).toBe(200);
    expect(await answer.json()).toEqual({ outcomes: ["done", "held"] });
    expect(asked).toEqual([{ digest: DIGEST }, { digest: DIGEST, layer: 7 }]);
    expect(served.told.senders).toMatchObject([{ via: "http", name: "local", role: "purge" }]);
  });

  test("the longest list is read in pieces, in order", async () => {
    const blocks = Array.from({ length: 10_000 }, (_, at) => {
      return { digest: at.toString(16).padStart(64, "0") };
    });
    let asked: readonly PurgeRequest[] = [];
    served.told.purge = (given) => {
      asked = given;
      return given.map(() => "missing" as const);
    };
    const answer = await purge({ blocks });
    expect(((await answer.json()) as { outcomes: string[] }).outcomes).toHaveLength(10_000);
    expect(asked).toEqual(blocks);
  });

  test.each([
    ["no blocks", { blocks: [] }],
    ["a short digest", { blocks: [{ digest: "ab" }] }],
    ["a digest in capitals", { blocks: [{ digest: DIGEST.toUpperCase() }] }],
    ["a layer below 0", { blocks: [{ digest: DIGEST, layer: -1 }] }],
    ["a layer that is not a number", { blocks: [{ digest: DIGEST, layer: "1" }] }],
    ["a layer that is a fraction", { blocks: [{ digest: DIGEST, layer: 0.5 }] }],
    ["the number of all layers", { blocks: [{ digest: DIGEST, layer: 0xffff_ffff }] }],
    ["a block that is none", { blocks: [null] }],
    ["blocks that are no list", { blocks: DIGEST }],
    ["too many blocks", { blocks: new Array(10_001).fill({ digest: DIGEST }) }],
    ["something else", [1]],
  ])("refuses %s", async (_, body) => {
    served.told.purge = () => {
      throw new Error("nothing is to be purged");
    };
    expect((await purge(body)).status).toBe(422);
  });

  test("a deeply nested body is refused at once, and the server keeps answering", async () => {
    const depth = 100_000;
    const lists = `${"[".repeat(depth)}${"]".repeat(depth)}`;
    const startedMs = systemClock.monotonicMs();
    for (const path of ["/v1/purge", "/v1/explain", "/hicache/pin_blocks", "/v1/persist"]) {
      const answer = await fetch(`${served.url}${path}`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: `{"type":"Cache","pin":true,"block_hashes":${lists}}`,
      });
      expect(answer.status).toBe(path === "/v1/persist" ? 200 : 422);
    }
    expect(systemClock.monotonicMs() - startedMs).toBeLessThan(3_000);
    expect(served.told.faults).toEqual([]);
  });

  test("the refusal of a long request does not repeat the request", async () => {
    const answer = await purge({ blocks: new Array(10_000).fill({ digest: "x".repeat(80) }) });
    const { detail } = await problem(answer);
    expect(detail).toBe("blocks[0].digest is not 64 hex digits in lower case");
  });
});

test("HEAD does not flush the cache", async () => {
  const served = serve({ flushByGet: true });
  const answer = await served.get("/flush_cache", { method: "HEAD" });
  expect(answer.status).toBe(405);
  expect(answer.headers.get("allow")).toBe("GET, POST");
  const other = await served.get("/flush_cache", { method: "DELETE" });
  expect(other.headers.get("allow")).toBe("GET, POST");
  expect(served.told.control.flushes).toEqual([]);
});

test("POST /v1/persist reports the blocks written and their durability", async () => {
  const served = serve();
  const answer = await fetch(`${served.url}/v1/persist`, { method: "POST" });
  expect(await answer.json()).toEqual({ written: 4, skipped: 0, durable: true });
  expect(served.told.senders).toMatchObject([{ via: "http", name: "local" }]);
});
