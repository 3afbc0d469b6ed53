import { describe, expect, test } from "bun:test";
import { WaitQueue } from "../../src/router/index.ts";
import { ManualClock } from "../support/index.ts";

function open(requestsMax = 3, waitMs = 1_000) {
  const clock = new ManualClock();
  const queue = new WaitQueue<string, string>(clock, { requestsMax, waitMs }, (item, waitedMs) => {
    return `${item} gave up after ${waitedMs}`;
  });
  return { clock, queue };
}

describe("a queue of requests", () => {
  test("the queue serves higher priorities first, then the earlier request", async () => {
    const { queue } = open(9);
    const order: string[] = [];
    const waits = [
      queue.wait("b", 1, undefined),
      queue.wait("a", 5, undefined),
      queue.wait("c", 1, undefined),
      queue.wait("d", -1, undefined),
    ];
    queue.serve(({ item }) => {
      order.push(item);
      return item === "c" ? null : `${item} served`;
    });
    expect(order).toEqual(["a", "b", "c", "d"]);
    expect(queue.length).toBe(1);
    expect(await waits[0]).toBe("b served");
    queue[Symbol.dispose]();
    expect(await waits[2]).toBe("c gave up after 0");
  });

  test("the queue is bounded in number and time", async () => {
    const { clock, queue } = open(1);
    const waits = queue.wait("a", 0, undefined);
    expect(queue.wait("b", 9, undefined)).toBeNull();
    clock.advance(1_000);
    expect(await waits).toBe("a gave up after 1000");
    expect(queue.length).toBe(0);
    expect(clock.pending).toBe(0);
  });

  test("an aborted request leaves the queue", async () => {
    const { clock, queue } = open();
    const controller = new AbortController();
    const waits = queue.wait("a", 0, controller.signal);
    controller.abort();
    expect(waits).rejects.toMatchObject({ code: "ABORTED" });
    expect(queue.length).toBe(0);
    expect(clock.pending).toBe(0);
    expect(queue.wait("b", 0, controller.signal)).rejects.toMatchObject({ code: "ABORTED" });
    expect(queue.length).toBe(0);
  });

  test("with no capacity or no wait time nothing is queued", () => {
    expect(open(0).queue.wait("a", 0, undefined)).toBeNull();
    expect(open(3, 0).queue.wait("a", 0, undefined)).toBeNull();
  });
});
