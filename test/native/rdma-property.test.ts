import { expect, test } from "bun:test";
import fc from "fast-check";
import type { RdmaQueuePair, RdmaRead, RdmaWindow } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { fake, KIB, openSide, openThings, portOf, SETTINGS, type Side } from "./rdma-kit.ts";

const LINKS = 3;
const BLOCK = 64 * KIB;
const BLOCKS = 64;

const of = (kind: string, at: number) =>
  fc.record({ kind: fc.constant(kind), link: fc.nat(LINKS - 1), at: fc.nat(at) });

/** One operation of a side on one of its queue pairs. Numbers choose among the existing objects. */
const step = fc.oneof(
  { weight: 5, arbitrary: of("lend", BLOCKS - 1) },
  { weight: 9, arbitrary: of("read", BLOCKS - 1) },
  { weight: 3, arbitrary: of("back", 20) },
  { weight: 3, arbitrary: of("cancel", 20) },
  { weight: 3, arbitrary: of("wait", 20) },
  { weight: 1, arbitrary: of("end", 1) },
);
const steps = fc.array(step, { minLength: 10, maxLength: 60, size: "max" });

const plan = fc.constantFrom(
  "",
  "delay=1",
  "read=10@7",
  "read=12@5",
  "hang@9",
  "reg=12@6",
  "port-down@11",
  "fatal@11",
  "ibv_dereg_mr=16@3",
  "ibv_post_send=12@8",
  "ibv_modify_qp=22@9",
);

interface Lent {
  readonly token: number;
  readonly at: number;
  readonly window: Promise<RdmaWindow | null>;
}

/** Queue pairs from the owner to the reader, with the lendings and reads of each. */
class World {
  readonly #owner: Side;
  readonly #client: Side;
  readonly #links: {
    lender: RdmaQueuePair;
    reader: RdmaQueuePair;
    lent: Lent[];
    tokens: number[];
  }[];
  readonly #over: PromiseLike<unknown>[] = [];
  /** While a read into a place is in progress, no other one begins there. */
  readonly #busy = new Set<number>();

  constructor(owner: Side, client: Side) {
    this.#owner = owner;
    this.#client = client;
    for (let i = 0; i < BLOCKS; i++) owner.arena.fill(i * BLOCK, BLOCK, BigInt(i));
    this.#links = Array.from({ length: LINKS }, () => {
      const settings = { ...SETTINGS, pieceBytes: 16 * KIB };
      const lender = owner.rdma.link(portOf(owner).index, settings);
      const reader = client.rdma.link(portOf(client).index, settings);
      return { lender, reader, lent: [], tokens: [] };
    });
    for (const { lender, reader } of this.#links) {
      lender.connect(reader.address);
      reader.connect(lender.address);
    }
  }

  async do({ kind, link, at }: { kind: string; link: number; at: number }): Promise<void> {
    const { lender, reader, lent, tokens } = this.#links[link]!;
    const loan = lent[at % Math.max(lent.length, 1)];
    if (kind === "lend") this.#lend(link, at);
    else if (kind === "read" && loan !== undefined) await this.#read(link, loan, at);
    else if (kind === "back" && loan !== undefined) this.#over.push(lender.takeBack(loan.token));
    else if (kind === "cancel" && tokens.length > 0) reader.cancel(tokens[at % tokens.length]!);
    else if (kind === "wait") await loan?.window;
    else if (kind === "end") {
      this.#over.push((at === 0 ? lender : reader)[Symbol.asyncDispose]());
    }
  }

  #lend(link: number, at: number): void {
    const { lender, lent } = this.#links[link]!;
    const loan = lender.lend(at * BLOCK, BLOCK);
    const window = loan.lent.then((outcome) => (outcome.ok ? outcome.window : null));
    lent.push({ token: loan.token, at, window });
    this.#over.push(window);
  }

  async #read(link: number, loan: Lent, to: number): Promise<void> {
    const { reader, tokens } = this.#links[link]!;
    const window = await loan.window;
    if (window === null || this.#busy.has(to)) return;
    this.#busy.add(to);
    const { token, done } = reader.read(window, to * BLOCK, BLOCK);
    tokens.push(token);
    this.#over.push(done.then((outcome) => this.#judge(outcome, loan, to)));
  }

  /** The bytes read equal the lent ones, and the reader owns the place again. */
  #judge(done: RdmaRead, { at }: Lent, to: number): void {
    this.#busy.delete(to);
    if (!done.ok) return;
    expect(this.#client.arena.firstWrong(to * BLOCK, BLOCK, BigInt(at))).toBe(null);
    expect(done.checksum).toBe(this.#owner.arena.checksum(at * BLOCK, BLOCK));
  }

  async end(): Promise<void> {
    await Promise.all(
      this.#links.flatMap(({ lender, reader }) => [
        lender[Symbol.asyncDispose](),
        reader[Symbol.asyncDispose](),
      ]),
    );
    await Promise.all(this.#over);
    await Promise.all(
      this.#links.flatMap(({ lender, lent }) => lent.map(({ token }) => lender.takeBack(token))),
    );
  }
}

describeNative("RDMA with operations in any order", () => {
  test("ends every operation, and reads return the lent bytes", async () => {
    await fc.assert(
      fc.asyncProperty(plan, steps, async (faults, many) => {
        fake().configure(`retry=50;${faults}`);
        {
          await using owner = openSide(fake().path, { bytes: BLOCK * BLOCKS, windowSpans: 8 });
          await using client = openSide(fake().path, { bytes: BLOCK * BLOCKS, readsMax: 16 });
          const world = new World(owner, client);
          for (const each of many) await world.do(each);
          await world.end();
        }
        expect(openThings()).toEqual({});
      }),
      { seed: 11, numRuns: 60 },
    );
  });
});
