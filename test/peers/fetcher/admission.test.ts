import { expect, test } from "bun:test";
import type { NamespaceIndex, WorkerId } from "../../../src/core/index.ts";
import { Admission, type Grant } from "../../../src/peers/fetcher/index.ts";
import type { PullPriority } from "../../../src/peers/index.ts";

const BOUNDS = { bytesMax: 100, peerBytesMax: 60, namespaceBytesMax: 80 };

class Door {
  readonly admission = new Admission(BOUNDS);
  readonly inside = new Map<string, Grant>();
  readonly order: string[] = [];
  readonly refused: string[] = [];

  enter(
    name: string,
    bytes: number,
    where: { peer?: string; namespace?: number; priority?: PullPriority } = {},
  ) {
    return this.admission.enter({
      bytes,
      peer: (where.peer ?? "a") as WorkerId,
      namespace: (where.namespace ?? 1) as NamespaceIndex,
      priority: where.priority ?? "acquire",
      admitted: (grant) => {
        this.inside.set(name, grant);
        this.order.push(name);
      },
      refused: () => void this.refused.push(name),
    });
  }

  leave(name: string): void {
    this.inside.get(name)!.release();
    this.inside.delete(name);
  }
}

test("what fits is admitted at once; each limit holds blocks back", () => {
  const door = new Door();
  door.enter("first", 60);
  door.enter("same peer", 10);
  door.enter("same namespace", 25, { peer: "b" });
  door.enter("other namespace", 35, { peer: "b", namespace: 2 });
  door.enter("more than all", 10, { peer: "c", namespace: 3 });
  expect(door.order).toEqual(["first", "other namespace"]);
  expect(door.admission).toMatchObject({ inFlightBytes: 95, waiting: 3 });
  door.leave("first");
  expect(door.order).toHaveLength(5);
  expect(door.admission.waiting).toBe(0);
});

test("urgent blocks go first, then those of the namespace with the fewest bytes in flight", () => {
  const door = new Door();
  door.enter("big", 60);
  door.enter("copy", 50, { peer: "b", namespace: 2, priority: "mirror" });
  door.enter("warm", 50, { peer: "b", namespace: 2, priority: "warm" });
  door.enter("served", 20, { peer: "b", namespace: 1 });
  door.enter("poor", 20, { peer: "b", namespace: 3 });
  expect(door.order).toEqual(["big", "served", "poor"]);
  door.leave("big");
  door.leave("served");
  door.leave("poor");
  expect(door.order.slice(3)).toEqual(["warm"]);
});

test("a large one is not starved by small ones behind it", () => {
  const door = new Door();
  door.enter("first", 40);
  door.enter("large", 60);
  for (let i = 0; i < 5; i++) door.enter(`small ${i}`, 5);
  expect(door.order).toEqual(["first"]);
  door.leave("first");
  expect(door.order).toEqual(["first", "large"]);
  door.leave("large");
  expect(door.order).toHaveLength(7);
});

test("a block that leaves the queue lets others pass, and leaves once", () => {
  const door = new Door();
  door.enter("first", 50);
  const ticket = door.enter("large", 60)!;
  door.enter("small", 5);
  ticket.leave();
  ticket.leave();
  expect(door.order).toEqual(["first", "small"]);
  expect(door.admission.waiting).toBe(0);
});

test("a block above a limit is refused, also after the limits were lowered", () => {
  const door = new Door();
  expect(door.enter("longer than a peer may send", 61)).toBeNull();
  door.enter("first", 60);
  door.enter("waits", 50);
  door.admission.configure({ ...BOUNDS, bytesMax: 40 });
  expect(door.refused).toEqual(["waits"]);
  expect(door.enter("still too long", 41)).toBeNull();
  door.admission.configure(BOUNDS);
  door.leave("first");
  expect(door.admission).toMatchObject({ inFlightBytes: 0, waiting: 0 });
});

test("a grant is released once", () => {
  const door = new Door();
  door.enter("one", 10);
  const grant = door.inside.get("one")!;
  grant.release();
  expect(() => grant.release()).toThrow("released once");
});

test("the number of waiting blocks is bounded", () => {
  const door = new Door();
  door.enter("first", 60);
  for (let i = 0; i < 65_536; i++) expect(door.enter("waits", 1)).not.toBeNull();
  expect(door.enter("one too many", 1)).toBeNull();
});
