import { describe, expect, test } from "bun:test";
import { TurnBudget, type TurnSource } from "../../src/core/index.ts";
import { Connection, ENGINE_LIMITS, type FrameHandler, type Wire } from "../../src/engine/index.ts";
import { createOutput, encodePingRequest, pendingOutput } from "../../src/engine/protocol/index.ts";

/** An event loop controlled by the test. Handling a frame takes 1 ms of its clock. */
class Loop {
  nowMs = 0;
  readonly #next: (() => void)[] = [];
  readonly budget = new TurnBudget({
    nowMs: () => this.nowMs,
    nextTurn: (run) => void this.#next.push(run),
  });

  async turn(): Promise<void> {
    for (const run of this.#next.splice(0)) run();
    for (let i = 0; i < 20; i++) await Promise.resolve();
  }
}

function pings(...ids: number[]): Uint8Array {
  const output = createOutput();
  for (const id of ids) encodePingRequest(output, id, new Uint8Array(8));
  return pendingOutput(output).slice();
}

function connect(loop: Loop, source: TurnSource, handle: FrameHandler): Connection {
  const wire: Wire = {
    write: (bytes) => bytes.length,
    ...{ pause() {}, resume() {}, end() {}, terminate() {} },
  };
  return new Connection(1, wire, {
    ...{ limits: ENGINE_LIMITS, handle, nowMs: () => loop.nowMs, source },
    onFault: (_connection, error) => {
      throw error;
    },
  });
}

describe("the requests of an engine", () => {
  test("are handled for one slice a turn, whatever connection they use", async () => {
    const loop = new Loop();
    const handled: number[] = [];
    const handle: FrameHandler = (_connection, { requestId }) => {
      handled.push(requestId);
      loop.nowMs++;
      return null;
    };
    const greedy = loop.budget.source();
    const lines = [connect(loop, greedy, handle), connect(loop, greedy, handle)];
    const polite = connect(loop, loop.budget.source(), handle);
    lines[0]!.receive(pings(1, 2, 3, 4, 5));
    lines[1]!.receive(pings(11, 12));
    polite.receive(pings(21));
    expect(handled).toEqual([1, 2, 21]);
    for (let turn = 0; turn < 8; turn++) await loop.turn();
    expect(handled.filter((id) => id < 10)).toEqual([1, 2, 3, 4, 5]);
    expect(handled.filter((id) => id > 10 && id < 20)).toEqual([11, 12]);
  });

  test("that take several pieces are whole before the next one of the connection", async () => {
    const loop = new Loop();
    const handled: string[] = [];
    const handle: FrameHandler = (_connection, { requestId }) => {
      if (requestId !== 2) {
        handled.push(`${requestId}`);
        return null;
      }
      return (function* () {
        for (let piece = 0; piece < 7; piece++) {
          handled.push(`2.${piece}`);
          loop.nowMs++;
          yield;
        }
        return null;
      })();
    };
    const line = connect(loop, loop.budget.source(), handle);
    line.receive(pings(1, 2, 3));
    expect(handled).toEqual(["1", "2.0", "2.1"]);
    line.receive(pings(4));
    for (let turn = 0; turn < 8; turn++) await loop.turn();
    const pieces = Array.from({ length: 7 }, (_, piece) => `2.${piece}`);
    expect(handled).toEqual(["1", ...pieces, "3", "4"]);
  });
});
