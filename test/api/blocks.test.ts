import { describe, expect, test } from "bun:test";
import type { PurgeRequest } from "../../src/api/index.ts";
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

  test("hands on what is to go, and says what became of each", async () => {
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

  test.each([
    ["no blocks", { blocks: [] }],
    ["a short digest", { blocks: [{ digest: "ab" }] }],
    ["a digest in capitals", { blocks: [{ digest: DIGEST.toUpperCase() }] }],
    ["a layer below 0", { blocks: [{ digest: DIGEST, layer: -1 }] }],
    ["a layer that is no number", { blocks: [{ digest: DIGEST, layer: "1" }] }],
    ["something else", [1]],
  ])("refuses %s", async (_, body) => {
    served.told.purge = () => {
      throw new Error("nothing is to be purged");
    };
    expect((await purge(body)).status).toBe(422);
  });

  test("does not repeat a long request that it refuses", async () => {
    const answer = await purge({ blocks: new Array(10_000).fill({ digest: "x".repeat(80) }) });
    const { detail } = await problem(answer);
    expect(detail).toBe("body/blocks/0/digest: Expected string to match '^[0-9a-f]{64}$'");
  });
});

test("POST /v1/persist says what was written and whether it is safe", async () => {
  const served = serve();
  const answer = await fetch(`${served.url}/v1/persist`, { method: "POST" });
  expect(await answer.json()).toEqual({ written: 4, skipped: 0, durable: true });
  expect(served.told.senders).toMatchObject([{ via: "http", name: "local" }]);
});
