import { describe, expect, test } from "bun:test";
import type { FrameHeader, PeerAnswer } from "../../../src/peers/index.ts";
import { OpenItems, type Part, whyNoAnswer } from "../../../src/peers/wire/index.ts";
import { PLAIN_FRAME, PULL, sequence } from "./golden-cases.ts";

const ITEM = PULL.items[0]!;
const HEADER: FrameHeader = { ...PLAIN_FRAME, layer: ITEM.layer };
const frame = (index: number, changes: Partial<FrameHeader> = {}): Part => {
  return { kind: "frame", index, header: { ...HEADER, ...changes } };
};
const open = () => new OpenItems(PULL.namespace, PULL.items);

describe("an answer to an item", () => {
  test("is accepted once", () => {
    const items = open();
    expect([items.size, items.has(0), items.has(2)]).toEqual([2, true, false]);
    expect(items.take(frame(0))).toBeNull();
    expect([items.size, items.has(0)]).toEqual([1, false]);
    expect(items.take(frame(0))).toBe("second answer to one item");
    expect(items.take({ kind: "refusal", index: 1, refusal: { kind: "absent" } })).toBeNull();
    expect(items.size).toBe(0);
  });

  test.each([
    ["an item that was not requested", 2, {}],
    ["frame address", 0, { digest: sequence(9) }],
    ["frame address", 0, { layer: 1 }],
    ["frame namespace", 0, { namespace: sequence(9) }],
    ["longer than requested", 0, { bytes: ITEM.bytesMax + 1 }],
    ["frame generation", 0, { generation: 8n }],
    ["frame address", 1, {}],
  ])("a part that does not match the request is refused: %s", (why, index, changes) => {
    const items = open();
    expect(items.take(frame(index, changes))).toContain(why);
    expect(items.size).toBe(2);
  });

  test("may be of any generation if none was requested", () => {
    const items = new OpenItems(PULL.namespace, [{ ...ITEM, generation: 0n }]);
    expect(items.take(frame(0, { generation: 99n }))).toBeNull();
  });
});

describe("an answer to a request", () => {
  const request = { op: "has", namespace: sequence(0), blocks: [ITEM, ITEM] } as const;
  const has = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };

  const ANSWERS: readonly [string, PeerAnswer, boolean][] = [
    ["two blocks", { op: "has", blocks: [has, has] }, true],
    ["one block", { op: "has", blocks: [has] }, false],
    ["names", { op: "find", found: [[], []] }, false],
    ["busy", { op: "busy", retryAfterMs: 1 }, true],
    ["refused", { op: "refused", why: "" }, true],
  ];

  test.each(ANSWERS)("for two blocks: %s", (_what, answer, fits) => {
    expect(whyNoAnswer(request, answer) === null).toBe(fits);
  });

  test("has one entry per requested name", () => {
    const find = { op: "find", names: [sequence(0), sequence(1)] } as const;
    expect(whyNoAnswer(find, { op: "find", found: [[], []] })).toBeNull();
    expect(whyNoAnswer(find, { op: "find", found: [[]] })).toBe("expected 2 names, received 1");
  });
});
