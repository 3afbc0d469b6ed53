import { describe, expect, test } from "bun:test";
import {
  loopTurns,
  NamedSources,
  runInTurns,
  TurnBudget,
  TurnQueue,
  type TurnSource,
} from "../../src/core/index.ts";

/** A loop that a test turns: time passes only where work says so. */
class Loop {
  nowMs = 0;
  readonly #next: (() => void)[] = [];
  readonly budget = new TurnBudget({
    nowMs: () => this.nowMs,
    nextTurn: (run) => void this.#next.push(run),
  });

  work(ms: number): void {
    this.nowMs += ms;
  }

  get isIdle(): boolean {
    return this.#next.length === 0;
  }

  /** One turn: the immediates that were scheduled before it, then their microtasks. */
  async turn(): Promise<void> {
    for (const run of this.#next.splice(0)) run();
    for (let i = 0; i < 20; i++) await Promise.resolve();
  }

  /** Turns until nothing is scheduled; how many there were. */
  async turnAll(): Promise<number> {
    let turns = 0;
    for (; !this.isIdle; turns++) await this.turn();
    return turns;
  }
}

describe("a turn", () => {
  test("lasts from the first announced work to the next immediate", async () => {
    const loop = new Loop();
    const turns: number[] = [];
    using _listening = loop.budget.onTurn((ms) => turns.push(ms));
    const source = loop.budget.source();
    loop.work(100);
    source.begin();
    loop.work(1);
    source.goOn();
    loop.work(6);
    await loop.turn();
    expect(turns).toEqual([7]);
    expect(loop.budget.stats).toEqual({ turns: 1, longTurns: 1, cpuMs: 7 });
    expect(loop.isIdle).toBe(true);
  });

  test("is long by its processor time, not by its waits for a processor", async () => {
    const loop = new Loop();
    let cpuMs = 1_000;
    loop.budget.measureCpu(() => cpuMs);
    const turns: [number, number][] = [];
    using _listening = loop.budget.onTurn((ms, cpu) => turns.push([ms, cpu]));
    loop.budget.touch();
    loop.work(40);
    cpuMs += 2;
    expect(loop.budget.stats.cpuMs).toBe(2);
    await loop.turn();
    loop.budget.touch();
    loop.work(6);
    cpuMs += 6;
    await loop.turn();
    expect(turns).toEqual([
      [40, 2],
      [6, 6],
    ]);
    expect(loop.budget.stats).toEqual({ turns: 2, longTurns: 1, cpuMs: 8 });
  });

  test("gives a source at most its slice, and a whole one again in the next turn", async () => {
    const loop = new Loop();
    const source = loop.budget.source();
    expect(source.begin()).toBe(true);
    loop.work(1.5);
    expect(source.goOn()).toBe(true);
    loop.work(0.5);
    expect(source.goOn()).toBe(false);
    expect(source.begin()).toBe(false);
    await loop.turn();
    expect(source.begin()).toBe(true);
  });

  test("ends for all sources at the turn's limit, whichever of them used the time", () => {
    const loop = new Loop();
    const [a, b, c] = [loop.budget.source(), loop.budget.source(), loop.budget.source()];
    for (const source of [a, b]) {
      expect(source.begin()).toBe(true);
      loop.work(2);
      expect(source.goOn()).toBe(false);
    }
    expect(c.begin()).toBe(false);
  });

  test("gives slices round robin: a busy source delays another by one slice", async () => {
    const loop = new Loop();
    const order: string[] = [];
    const job = function* (name: string, pieces: number): Generator<void, void> {
      for (let i = 0; i < pieces; i++) {
        order.push(name);
        loop.work(1);
        yield;
      }
    };
    const sources = ["a", "b", "c"].map((name) => [name, loop.budget.source()] as const);
    const done = sources.map(([name, source]) => runInTurns(source, job(name, 6)));
    await loop.turnAll();
    await Promise.all(done);
    expect(order).toHaveLength(18);
    for (const [name] of sources) {
      const early = order.slice(0, 12).filter((one) => one === name);
      expect(early.length).toBeGreaterThanOrEqual(2);
    }
  });

  test("is never over its limit by more than one piece, however many sources wait", async () => {
    const loop = new Loop();
    const turns: number[] = [];
    using _listening = loop.budget.onTurn((ms) => turns.push(ms));
    const job = function* (): Generator<void, void> {
      for (let i = 0; i < 40; i++) {
        loop.work(0.3);
        yield;
      }
    };
    const done = Array.from({ length: 50 }, () => runInTurns(loop.budget.source(), job()));
    await loop.turnAll();
    await Promise.all(done);
    // Two sources of one turn: each may be over its slice by a piece.
    expect(Math.max(...turns)).toBeLessThanOrEqual(4 + 2 * 0.3 + 1e-9);
    expect(loop.budget.stats.longTurns).toBe(0);
  });

  test("code that shares a source gets its slices in the order of asking", async () => {
    const loop = new Loop();
    const source = loop.budget.source();
    const order: number[] = [];
    for (const one of [1, 2, 3]) void source.turn().then(() => order.push(one));
    await loop.turn();
    await loop.turn();
    expect(order.slice(0, 2)).toEqual([1, 2]);
    await loop.turnAll();
    expect(order).toEqual([1, 2, 3]);
  });
});

describe("a queue", () => {
  const queueOf = (loop: Loop, source: TurnSource, itemsMax = 100, bytesMax = 1_000) => {
    const ran: number[] = [];
    const queue = new TurnQueue<number>({
      ...{ source, itemsMax, bytesMax },
      run: (item) => {
        ran.push(item);
        loop.work(1);
      },
    });
    return { ran, queue };
  };

  test("runs an item at once if nothing waits, and the rest in order in later turns", async () => {
    const loop = new Loop();
    const { ran, queue } = queueOf(loop, loop.budget.source());
    for (let i = 0; i < 6; i++) queue.push(i);
    expect(ran).toEqual([0, 1]);
    await loop.turnAll();
    expect(ran).toEqual([0, 1, 2, 3, 4, 5]);
    expect(queue.isIdle).toBe(true);
  });

  test("drops what finds no room in items or bytes, and counts it", async () => {
    const loop = new Loop();
    const source = loop.budget.source();
    source.begin();
    loop.work(3);
    source.goOn();
    const { ran, queue } = queueOf(loop, source, 3, 10);
    expect([4, 4, 4, 1].map((bytes, i) => queue.push(i, bytes))).toEqual([true, true, false, true]);
    expect(queue.push(9, 0)).toBe(false);
    expect([queue.dropped, queue.length, queue.bytes]).toEqual([2, 3, 9]);
    await loop.turnAll();
    expect(ran).toEqual([0, 1, 3]);
    expect([queue.length, queue.bytes]).toEqual([0, 0]);
  });

  test("keeps an item that runs in pieces before the next one", async () => {
    const loop = new Loop();
    const ran: string[] = [];
    const queue = new TurnQueue<string>({
      ...{ source: loop.budget.source(), itemsMax: 10, bytesMax: 10 },
      *run(item) {
        for (let piece = 0; piece < 3; piece++) {
          ran.push(`${item}${piece}`);
          loop.work(1.5);
          yield;
        }
      },
    });
    for (const item of ["a", "b"]) queue.push(item);
    await loop.turnAll();
    expect(ran).toEqual(["a0", "a1", "a2", "b0", "b1", "b2"]);
  });

  test("takes what its own item pushes, behind that item", async () => {
    const loop = new Loop();
    const ran: number[] = [];
    const queue: TurnQueue<number> = new TurnQueue<number>({
      ...{ source: loop.budget.source(), itemsMax: 10, bytesMax: 10 },
      run: (item) => {
        if (item < 3) queue.push(item + 1);
        ran.push(item);
      },
    });
    queue.push(1);
    await loop.turnAll();
    expect(ran).toEqual([1, 2, 3]);
  });

  test("runs nothing more once it is disposed", async () => {
    const loop = new Loop();
    const { ran, queue } = queueOf(loop, loop.budget.source());
    for (let i = 0; i < 6; i++) queue.push(i);
    queue[Symbol.dispose]();
    expect(queue.push(7)).toBe(false);
    await loop.turnAll();
    expect(ran).toEqual([0, 1]);
  });

  test("runs many thousand items in order", async () => {
    const loop = new Loop();
    const ran: number[] = [];
    const queue = new TurnQueue<number>({
      ...{ source: loop.budget.source(), itemsMax: 10_000, bytesMax: 0 },
      run: (item) => {
        ran.push(item);
        loop.work(0.01);
      },
    });
    const all = Array.from({ length: 10_000 }, (_, i) => i);
    for (const i of all) queue.push(i);
    await loop.turnAll();
    expect(ran).toEqual(all);
  });
});

test("the loop's own budget lets a timer run while a long job is at work", async () => {
  let isOver = false;
  let beats = 0;
  const timer = setInterval(() => void beats++, 1);
  await runInTurns(
    loopTurns.source(),
    (function* () {
      for (const endMs = performance.now() + 200; performance.now() < endMs; ) yield;
      isOver = true;
    })(),
  );
  clearInterval(timer);
  expect(isOver).toBe(true);
  expect(beats).toBeGreaterThan(5);
});

describe("jobs of a source", () => {
  test("keep their order, piece by piece, and others have slices between them", async () => {
    const loop = new Loop();
    const [greedy, polite] = [loop.budget.source(), loop.budget.source()];
    const done: string[] = [];
    function* job(name: string, pieces: number): Generator<void, string> {
      for (let piece = 0; piece < pieces; piece++) {
        loop.work(1);
        if (piece < pieces - 1) yield;
      }
      done.push(name);
      return name;
    }
    const results = [
      greedy.run(job("long", 5)),
      greedy.run(job("short", 1)),
      polite.run(job("polite", 1)),
    ];
    for (let turn = 0; turn < 12; turn++) await loop.turn();
    expect(done).toEqual(["polite", "long", "short"]);
    expect(await Promise.all(results)).toEqual(["long", "short", "polite"]);
  });

  test("reject as they throw; the next one runs", async () => {
    const loop = new Loop();
    const source = loop.budget.source();
    const failed = source.call(() => {
      throw new Error("broken");
    });
    expect(failed!).rejects.toThrow("broken");
    expect(await source.call(() => 7)).toBe(7);
  });

  test("beyond 8,192 that wait are not taken", () => {
    const source = new Loop().budget.source();
    for (let job = 0; job < 8_192; job++) expect(source.call(() => job)).not.toBeNull();
    expect(source.isIdle).toBe(false);
    let last: unknown = "taken";
    for (let job = 0; job < 2 && last !== null; job++) last = source.call(() => job);
    expect(last).toBeNull();
  });
});

describe("sources by name", () => {
  test("are the same for the same name; a name that comes while all are at work shares one", () => {
    const loop = new Loop();
    const sources = new NamedSources(2, loop.budget);
    const busy = ["a", "b"].map((name) => sources.of(name));
    for (const source of busy) source.run(endless(loop));
    expect(sources.of("a")).toBe(busy[0]!);
    expect(sources.of("c")).toBe(sources.of("d"));
    expect(busy).not.toContain(sources.of("c"));
  });

  test("that are idle make room for others", () => {
    const sources = new NamedSources(1, new Loop().budget);
    const first = sources.of("a");
    expect(sources.of("b")).not.toBe(first);
    expect(sources.of("a")).not.toBe(first);
  });
});

function* endless(loop: Loop): Generator<void, void> {
  for (;;) {
    loop.work(loop.budget.limits.turnMs);
    yield;
  }
}
